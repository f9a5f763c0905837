# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   title: "Lab: when do the workers agree?"
# ---

# %% [markdown]
# # Lab: when do the workers agree?
#
# Waiting for other workers costs time. Not waiting has a different cost:
# updates are computed from old weights. Every synchronization strategy is a
# compromise between the two, and this lab measures both costs.
#
# Time here is *virtual*: every piece of work declares how long it takes, and
# the logs of the ranks then determine when each event could have happened. The
# figures are therefore exact and the same on every machine. Guess before you
# look. At the end are four exercises, graded by the techniques' own claims; the
# [tour](00-tour.md) explains how.

# %% tags=["setup"]
import math

import matplotlib.pyplot as plt
import torch

from atlas.formulas import FORMULAS
from atlas.lab import begin, experiment, grade, lanes, predict, watch
from atlas.notebooks import GREY
from atlas.timeline import virtual
from exemplars.runtime import constant, one_slow, span
from exemplars.workload import Step, Task, digits

begin()

# %% [markdown]
# ## 1. One slow rank
#
# In **bulk-synchronous** SGD all ranks compute a gradient, sum the gradients,
# and take the same step. A gradient takes 3 seconds and an update 1, so four
# steps take 16. Now rank 1 becomes three times slower. On average a rank then
# needs 4.5 seconds for a gradient. *How long do four steps take?*

# %%
guess = predict("virtual seconds", 4 * (4.5 + 1))
guess


# %%
def synchronous(w, clock):
    import exemplars.sync_strategy.synchronous.bsp_synchronous_sgd as bsp

    sizes = {"steps": 4, "batch": 50, "bucket": 1000, "rate": 0.1}
    for _ in bsp.train(w, digits, clock=clock, **sizes):
        pass


even = watch(synchronous, constant(3)).line
uneven = watch(synchronous, one_slow(rank=1, factor=3, seconds=3)).line

guess.against(
    uneven.makespan,
    "No rank continues before the last one has arrived, so averages do not matter: "
    "each of the four steps takes as long as its slowest rank.",
    law=r"\sum_{t} \Bigl( \max_r \text{seconds}(r, t) + \text{update} \Bigr)",
)

# %%
colors = {"compute": "C0", "update": "C2"}
top, bottom = plt.figure(figsize=(7.6, 4.6)).subplots(2, 1)
lanes(top, even, colors, "four steps, all equally fast")
lanes(bottom, uneven, colors, "the same, rank 1 three times slower; gray is idle")
plt.show()

# %% [markdown]
# The fast ranks spend most of their time waiting. With many ranks this happens
# even when no machine is broken: the slowest of a thousand is always slow.
#
# ## 2. Ahead, but not too far
#
# **Stale-synchronous parallel** lets a worker run ahead of the slowest one by at
# most s steps, which it calls clocks. Rank 0 is the server; one of the three
# workers is three times slower. They work for six clocks with s = 1. *Of the 18
# reads, how many have to wait?*

# %%
guess = predict("reads that wait", 5)
guess

# %%
SSP = "stale-synchronous-parallel"
by_s = {s: experiment(SSP, staleness=s) for s in (0, 1, 2, 3, 4)}
waits = {s: run["ranks"][0]["measured"]["waits"] for s, run in by_s.items()}

guess.against(
    waits[1],
    "The slow worker never waits. Each of the two fast workers has a head start; "
    "once it is used up, the worker waits at every clock:",
    "ssp_waits",
    law=r"(p - 2) \left( t - 1 - \left\lfloor \frac{k s}{k - 1} \right\rfloor \right)",
    ranks=4,
    rank=0,
    steps=6,
    staleness=1,
    slowdown=3,
)

# %%
left, right = plt.figure().subplots(1, 2)
left.plot(
    waits.keys(), [FORMULAS["ssp_waits"](4, 0, 6, s, 3) for s in waits], label="formula"
)
left.plot(waits.keys(), waits.values(), "o", label="counted")
left.set(title="reads that wait, of 18", xlabel="s", xticks=list(waits))
left.legend()
spans = {s: run["derived"]["makespan"] for s, run in by_s.items()}
right.bar(spans.keys(), spans.values(), color="C0")
right.set(title="virtual seconds until all are done", xlabel="s", xticks=list(waits))
plt.show()

# %% [markdown]
# A larger s means fewer waits, yet training ends no sooner: if one worker is
# always slow, the others only reach the end earlier and wait there. Bounded
# staleness helps in a different case. Suppose that no worker is slow, but that
# each pauses once, all at different times:


# %%
def pauses(rank, step):
    return 5.0 if step == 2 * rank - 1 else 1.0


def bounded(w, staleness):
    import exemplars.sync_strategy.bounded_staleness.stale_synchronous_parallel as ssp

    sizes = {"steps": 6, "local_batch": 8, "rate": 0.05, "clock": pauses}
    for _ in ssp.train(w, digits, staleness=staleness, **sizes):
        pass


paused = {s: watch(bounded, s).line for s in (0, 2)}
both = plt.figure(figsize=(7.6, 4.6)).subplots(2, 1, sharex=True)
for ax, (s, line) in zip(both, paused.items(), strict=True):
    lanes(ax, line, {"compute": "C0"}, f"s = {s}: {line.makespan:g} seconds")
both[0].set(xlabel="", xlim=(0, paused[0].makespan))
plt.show()

# %% [markdown]
# (Rank 0 is the server and computes nothing.) With s = 0 every pause stops all
# workers, and the pauses add up. With s = 2 they overlap.
#
# ## 3. No bound at all
#
# **Downpour** never waits: a server applies each gradient when it arrives. The
# *staleness* of a gradient is the number of updates between the moment its
# weights were read and the moment it is applied. There are three workers, one
# of them three times slower than the others. *How stale are the slow worker's
# gradients?*

# %%
guess = predict("age of the slow worker's gradients, in updates", 3)
guess


# %%
def pour(w, k):
    from exemplars.sync_strategy.asynchronous import downpour

    sizes = {"duration": 36, "local_batch": 8, "rate": 0.05}
    clock = one_slow(rank=1, factor=k)
    return [step.age for step in downpour.train(w, digits, clock=clock, **sizes)]


def by_worker(seen):
    """The ages that the server saw, by the worker whose gradient came."""
    came = [e["peer"] for e in seen.traces[0] if e["kind"] == "recv"]
    found = {q: [] for q in sorted(set(came))}
    for q, age in zip(came, seen.values[0], strict=True):
        found[q].append(age)
    return found


ages = {k: by_worker(watch(pour, k)) for k in (1, 3, 6)}
guess.against(
    ages[3][1][-1],
    "While the slow worker computes, each of the two other workers pushes three times.",
    "downpour_straggler_staleness",
    ranks=4,
    slowdown=3,
)

# %%
every = plt.figure(figsize=(7.6, 2.6)).subplots(1, 3, sharey=True)
for ax, (k, found) in zip(every, ages.items(), strict=True):
    slow, rest = found[1], [age for q in found if q > 1 for age in found[q]]
    both = [rest, slow]
    bins = [x - 0.5 for x in range(15)]
    ax.hist(
        both, bins, stacked=True, color=["C0", "C1"], label=["workers 2, 3", "worker 1"]
    )
    ax.set(title=f"worker 1 is {k} times slower", xlabel="staleness")
every[0].set_ylabel("gradients")
every[0].legend()
plt.show()

# %% [markdown]
# The other workers are hardly affected: their gradients are about as stale as
# without a straggler. But nothing bounds the staleness of the slow worker's
# gradients.
#
# ## 4. Synchronize now and then
#
# **Local SGD** lets every rank train alone for H steps and then averages the
# weights. Let a step take 1 to 2 seconds, at random, and let messages be free.
# With H = 16 the ranks average 16 times less often than with H = 1. *What
# percentage of the time does that save?*

# %%
guess = predict("percent of the virtual time saved", 94)
guess

# %%
STEPS, PERIODS = 64, (1, 4, 16, 64)


def local(w, period):
    import exemplars.sync_strategy.periodic.local_sgd as sgd

    sizes = {"steps": STEPS, "local_batch": 8, "rate": 0.4}
    for step in sgd.train(w, digits, period=period, **sizes):
        weights = step.weights
    model = digits.model().to(w.device)
    x, y = (t.to(w.device) for t in digits.batch(7, 1797))
    with torch.no_grad():
        for p, trained in zip(model.parameters(), weights, strict=True):
            p.copy_(trained)
        return digits.loss(model, x, y).item() / len(y)


met = {h: watch(local, h) for h in PERIODS}
took = {h: seen.line.makespan for h, seen in met.items()}
guess.against(
    100 * (1 - took[16] / took[1]),
    "Only waiting is saved, and there was not that much of it. With H = 1 each "
    "step takes as long as the slowest of four ranks. The first formula is the "
    "mean of the largest of p numbers between 1 and 2. A larger H can at best "
    "reach the mean of a single number, 1.5:",
    law=r"1 + \frac{p}{p + 1} = 1.8 \qquad \frac{1.8 - 1.5}{1.8} = 17\,\%",
)

# %%
left, middle, right = plt.figure(figsize=(7.6, 2.6)).subplots(1, 3)
left.plot(took.keys(), took.values(), "o-")
left.set(title="virtual seconds", ylim=(0, 1.2 * took[1]))
middle.plot(
    PERIODS, [FORMULAS["periodic_rounds"](STEPS, h) for h in PERIODS], label="formula"
)
middle.plot(PERIODS, [seen.calls[0] for seen in met.values()], "o", label="counted")
middle.set(title="rounds of averaging", yscale="log")
middle.set_yticks([1, 4, 16, 64], [1, 4, 16, 64])
middle.legend()
right.plot(PERIODS, [seen.values[0] for seen in met.values()], "o-", color="C1")
right.set(title="loss on all digits", ylim=(0, 0.6))
for ax in (left, middle, right):
    ax.set_xscale("log", base=2)
    ax.set_xticks(PERIODS, PERIODS)
    ax.set_xlabel("H")
    ax.minorticks_off()
plt.show()

# %% [markdown]
# What a larger H really saves is messages. On this small task, where all shares
# of the data look alike, averaging ranks that trained alone is nearly as good as
# training together, up to a point.
#
# ## 5. Bubbles
#
# A **pipeline** gives each rank a stage of the network. A batch goes through in
# m micro-batches; a forward takes 1 second, a backward 2. *GPipe* runs all
# forwards and then all backwards. *1F1B* alternates as soon as it can. With four
# stages and six micro-batches, *what percentage of the time is a stage idle in
# 1F1B?*

# %%
guess = predict("percent idle", 20)
guess

# %%
pipes = {name: experiment(name) for name in ("gpipe", "one-f-one-b")}
lines = {
    name: virtual(rank["events"] for rank in run["ranks"])
    for name, run in pipes.items()
}
line = lines["one-f-one-b"]
guess.against(
    100 * line.idle[0] / line.makespan,
    "Three stages must be filled before the last can start, and emptied after it "
    "has finished, whatever the order in between:",
    "pipeline_bubble",
    scale=0.01,
    ranks=4,
    microbatches=6,
)

# %%
both = plt.figure(figsize=(7.6, 4.6)).subplots(2, 1)
for ax, (name, line) in zip(both, lines.items(), strict=True):
    idle = line.idle[0] / line.makespan
    lanes(ax, line, {"F": "C0", "B": "C1"}, f"{name}: {idle:.0%} idle")
plt.show()

# %% [markdown]
# Forwards are blue and backwards orange, numbered by micro-batch. The bubble is
# the same in both. What 1F1B saves is memory. A stage keeps the activations of a
# micro-batch from its forward to its backward. These are the most micro-batches
# that each stage held at once:

# %%
for name, run in pipes.items():
    print(f"{name:<12}", *(rank["measured"]["in_flight"] for rank in run["ranks"]))

# %% [markdown]
# So 1F1B can afford more micro-batches, and more micro-batches shrink the bubble:

# %%
ms = (2, 6, 12, 24)
cuts = {m: {"microbatches": m, "batch": 5 * m} for m in ms}
thinner = {m: experiment("one-f-one-b", **cuts[m])["derived"] for m in ms}
ax = plt.figure(figsize=(7.6, 2.4)).subplots()
ax.plot(
    range(1, 30),
    [FORMULAS["pipeline_bubble"](4, m) for m in range(1, 30)],
    label="formula",
)
ax.plot(
    ms, [d["idle"][0] / d["makespan"] for d in thinner.values()], "o", label="from runs"
)
ax.set(title="idle share, four stages", xlabel="micro-batches", ylim=(0, 0.8))
ax.legend()
plt.show()

# %% [markdown]
# ## 6. Stale gradients need small steps
#
# Descend a parabola, whose gradient is the weight itself, with step size eta.
# Every eta below 2 converges. Now let three Downpour workers do it, so that
# every gradient is two updates old. *Up to which eta does it converge?*

# %%
guess = predict("largest eta that converges", 2)
guess


# %%
class Parabola(Task):
    def loss(self, model, x, y):
        """Half the square of all weights, whatever the batch; a sum over y."""
        return y.numel() * sum(p.square().sum() for p in model.parameters()) / 2


def parabola(w, rates):
    from exemplars.sync_strategy.asynchronous import downpour

    task = Parabola(digits.name, digits.model, digits.batch)
    duration = 120 // (w.size - 1)  # 120 updates, by however many
    sizes = []
    for rate in rates:
        updates = downpour.train(
            w, task, duration=duration, local_batch=8, rate=rate, clock=constant(1)
        )
        for step in updates:
            weights = step.weights
        sizes.append(max((x.abs().max().item() for x in weights), default=0))
    return sizes


def limit(staleness):
    return 2 * math.sin(math.pi / (2 * (2 * staleness + 1)))


rates = [0.3, 0.5, 0.6, 0.64, 0.9, 1.1, 1.4, 1.9, 2.1]
left_over = {p - 2: watch(parabola, rates, ranks=p).values[0] for p in (2, 3, 4)}
converged = [r for r, size in zip(rates, left_over[2], strict=True) if size < 0.1]
guess.against(
    max(converged),
    "(Of the values that were tried.) An update that reacts to the state of two "
    "updates ago overshoots, and the correction overshoots again. The law for "
    "gradients that are all s updates old, and its value for s = 2:",
    law=r"\eta < 2 \sin \frac{\pi}{2 (2 s + 1)} = "
    f"{limit(2):.3f}",
)

# %%
ax = plt.figure().subplots()
for s, sizes in left_over.items():
    ax.plot(rates, sizes, "o-", color=f"C{s}", markersize=4, label=f"staleness {s}")
    ax.axvline(limit(s), color=f"C{s}", linewidth=0.8, linestyle=(0, (4, 4)))
ax.axhline(0.18, color=GREY, linewidth=0.8)
ax.set(yscale="log", ylim=(1e-12, 1e8), xlabel="eta")
ax.set(title="largest weight after 120 updates; it began near the gray line")
ax.legend()
plt.show()

# %% [markdown]
# The dashed lines show the law. Twice the staleness allows about half the step:
# that is the price of not waiting. Whether it is worth paying depends on what
# waiting costs. Here is the digits task with one worker that is three times
# slower, at rates chosen by hand (the two strategies that do not wait step more
# often, on fewer samples each time):

# %%
from atlas.race.courses import Course
from atlas.race.runs import run as race
from atlas.race.strategies import ENTRIES

rated = {"bsp-synchronous-sgd": 0.3, SSP: 0.1, "downpour": 0.1}
raced = {
    name: race(ENTRIES[name], Course("digits", 80, rate, straggler=True, looks=8))
    for name, rate in rated.items()
}
left, right = plt.figure().subplots(1, 2, sharey=True)
for name, found in raced.items():
    samples, seconds, losses = zip(*found["curve"], strict=True)
    left.plot(samples, losses, label=name)
    right.plot(seconds, losses, label=name)
left.set(title="loss against samples", xlabel="samples", ylim=(0, None))
right.set(title="loss against time", xlabel="virtual seconds")
left.legend(loc="lower left")
plt.show()

# %% [markdown]
# The left plot shows which strategy learns most per sample, the right plot which
# learns most per second. `atlas race` makes this comparison with care: more
# strategies, three seeds, the best rate for each.
#
# ## Exercises
#
# Each cell contains code that is unfinished or wrong. `grade` runs the
# technique's program with your code and judges every claim.
#
# ### Exercise 1: fill in the missing condition
#
# Worker q has finished `self.finished[q]` clocks, the slowest worker
# `self.slowest`, and the bound is `self.staleness`. May q read? As the code
# stands, every worker always may.

# %% tags=["exercise"]
from exemplars.sync_strategy.bounded_staleness.stale_synchronous_parallel import Server


class Bounded(Server):
    def may_read(self, q):
        return True  # the missing condition


grade("stale-synchronous-parallel", Server=Bounded)

# %% [markdown]
# <details class="solution" markdown>
# <summary>A solution, and its grade</summary>


# %% tags=["solution"] jupyter={"source_hidden": true}
class Bounded(Server):
    def may_read(self, q):
        return self.finished[q] - self.slowest <= self.staleness


grade("stale-synchronous-parallel", Server=Bounded)

# %% [markdown]
# </details>
#
# ### Exercise 2: find the planted bug
#
# Every rank takes the mean over its own share of the batch, and then the means
# are averaged over the ranks. The loss curve looks perfect. What is wrong? (A
# batch has 50 samples, and there are four ranks.)

# %% tags=["exercise"]
from exemplars.sync_strategy.synchronous.bsp_synchronous_sgd import (
    all_reduce_in_buckets,
)


def train(w, task, *, steps, batch, bucket, rate):
    model = task.model().to(w.device)
    parameters = list(model.parameters())
    for step in range(steps):
        x, y = task.batch(step, batch)
        mine = torch.arange(batch).tensor_split(w.size)[w.rank]
        with span("compute", label=step, cost=3):
            share = x[mine].to(w.device), y[mine].to(w.device)
            loss = task.loss(model, *share) / y[mine].numel() / w.size
            gradients = torch.autograd.grad(loss, parameters)
        all_reduce_in_buckets(gradients, bucket)
        with span("update", label=step, cost=1), torch.no_grad():
            for p, g in zip(parameters, gradients, strict=True):
                p.sub_(g, alpha=rate)
        yield Step(loss.item(), parameters)


grade("bsp-synchronous-sgd", train=train)

# %% [markdown]
# <details class="solution" markdown>
# <summary>A solution, and its grade</summary>
#
# Two ranks have 13 samples and two have 12: the mean of the means is not the
# mean. On every rank, divide by the size of the whole batch.


# %% tags=["solution"] jupyter={"source_hidden": true}
def train(w, task, *, steps, batch, bucket, rate):
    model = task.model().to(w.device)
    parameters = list(model.parameters())
    for step in range(steps):
        x, y = task.batch(step, batch)
        mine = torch.arange(batch).tensor_split(w.size)[w.rank]
        with span("compute", label=step, cost=3):
            share = x[mine].to(w.device), y[mine].to(w.device)
            loss = task.loss(model, *share) / y.numel()
            gradients = torch.autograd.grad(loss, parameters)
        all_reduce_in_buckets(gradients, bucket)
        with span("update", label=step, cost=1), torch.no_grad():
            for p, g in zip(parameters, gradients, strict=True):
                p.sub_(g, alpha=rate)
        yield Step(loss.item(), parameters)


grade("bsp-synchronous-sgd", train=train)

# %% [markdown]
# </details>
#
# ### Exercise 3: fill in the missing number
#
# Before it alternates, a stage of 1F1B runs some forwards. With how many does
# stage s of p begin? As the code stands, with none: the gradients are right, but
# nothing is pipelined.

# %% tags=["exercise"]
from exemplars.runtime import Action


def one_f_one_b(stage, stages, microbatches):
    warm_up = 0  # the missing number
    yield from (Action("F", i) for i in range(warm_up))
    for i in range(microbatches - warm_up):
        yield Action("F", warm_up + i)
        yield Action("B", i)
    yield from (Action("B", i) for i in range(microbatches - warm_up, microbatches))


grade("one-f-one-b", one_f_one_b=one_f_one_b)

# %% [markdown]
# <details class="solution" markdown>
# <summary>A solution, and its grade</summary>
#
# As many as there are stages after it, because the first gradient takes that
# long to come back, but no more than there are micro-batches.


# %% tags=["solution"] jupyter={"source_hidden": true}
def one_f_one_b(stage, stages, microbatches):
    warm_up = min(microbatches, stages - 1 - stage)
    yield from (Action("F", i) for i in range(warm_up))
    for i in range(microbatches - warm_up):
        yield Action("F", warm_up + i)
        yield Action("B", i)
    yield from (Action("B", i) for i in range(microbatches - warm_up, microbatches))


grade("one-f-one-b", one_f_one_b=one_f_one_b)

# %% [markdown]
# </details>
#
# ### Exercise 4: find the planted bug
#
# The ranks of local SGD average after every H steps, and after the last one.
# This code averages as often as it should, and the ranks agree in the end, but
# the result is wrong. (With seven steps and H = 3, after which steps should they
# average?)


# %% tags=["exercise"]
def ends_a_period(step, steps, period):
    return step % period == 0 or step == steps - 1


grade("local-sgd", ends_a_period=ends_a_period)

# %% [markdown]
# <details class="solution" markdown>
# <summary>A solution, and its grade</summary>
#
# Steps count from 0, so the first period ends with step H - 1. The wrong code
# averages after the first step, and one step late from then on.


# %% tags=["solution"] jupyter={"source_hidden": true}
def ends_a_period(step, steps, period):
    return (step + 1) % period == 0 or step == steps - 1


grade("local-sgd", ends_a_period=ends_a_period)

# %% [markdown]
# </details>
#
# ## What next
#
# - Read the programs: [bulk-synchronous
#   SGD](../sync-strategy/synchronous/bsp-synchronous-sgd.md), [stale-synchronous
#   parallel](../sync-strategy/bounded-staleness/stale-synchronous-parallel.md),
#   [Downpour](../sync-strategy/asynchronous/downpour.md), [local
#   SGD](../sync-strategy/periodic/local-sgd.md),
#   [1F1B](../sync-strategy/pipeline-flush/one-f-one-b.md).
# - Race them: `atlas race bsp-synchronous-sgd downpour local-sgd`.
# - The other labs: [how do the bytes move?](10-communication.md) and [who holds
#   what?](30-distribution.md)
