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
#   title: "Lab: how do the bytes move?"
# ---

# %% [markdown]
# # Lab: how do the bytes move?
#
# Four ranks hold a tensor each, and all of them want the sum. That is the
# heart of data-parallel training, and there are many ways to do it. In each
# section you write down a guess, run ranks from a cell, and see how far off
# you were. At the end are four exercises, graded by the same claims that the
# atlas's own programs have to meet.
#
# Change the guesses to yours before you run the cells below them. The
# [tour](00-tour.md) explains ranks, meters and claims. Bytes and rounds are the
# same on every machine; seconds are those of the machine that ran this page.

# %% tags=["setup"]
import time

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from atlas.formulas import FORMULAS
from atlas.lab import atlas, begin, experiment, grade, predict, watch
from atlas.launch import launch
from atlas.notebooks import GREY
from exemplars.runtime import span
from exemplars.workload import digits

begin()

# %% [markdown]
# ## 1. Who carries the most?
#
# There are three ways to compute the sum. In a **star** every rank sends to rank
# 0, which adds up and sends the sum back. In a **tree** ranks add in pairs, then
# in pairs of pairs, and the sum comes down the way it went up. On a **ring** the
# tensor is cut into chunks that go round.


# %%
def star(w, n):
    x = w.randn(n, seed=w.rank)
    if w.rank == 0:
        theirs = torch.empty_like(x)
        for other in range(1, w.size):
            dist.recv(theirs, other)
            x += theirs
        for other in range(1, w.size):
            dist.send(x, other)
    else:
        dist.send(x, 0)
        dist.recv(x, 0)


def tree(w, n):
    x, reach = w.randn(n, seed=w.rank), 1
    theirs = torch.empty_like(x)
    while reach < w.size:  # up
        place = w.rank % (2 * reach)
        if place == reach:
            dist.send(x, w.rank - reach)
        elif place == 0 and w.rank + reach < w.size:
            dist.recv(theirs, w.rank + reach)
            x += theirs
        reach *= 2
    while reach > 1:  # and down
        reach //= 2
        place = w.rank % (2 * reach)
        if place == reach:
            dist.recv(x, w.rank - reach)
        elif place == 0 and w.rank + reach < w.size:
            dist.send(x, w.rank + reach)


def ring(w, n):
    from exemplars.communication_pattern.collective.ring_all_reduce import (
        ring_all_reduce,
    )

    ring_all_reduce(w.randn(n, seed=w.rank))


# %% [markdown]
# *How many tensors does the busiest rank of the tree send, if there are four
# ranks?* A rank has one parent. Is it one?

# %%
guess = predict("tensors sent by the busiest rank of the tree", 1)
guess

# %%
N = 100_003  # numbers, of 8 bytes each
TENSOR = 8 * N
WAYS = {"star": star, "tree": tree, "ring": ring}
seen = {name: watch(way, N) for name, way in WAYS.items()}

guess.against(
    max(seen["tree"].sent) / TENSOR,
    "Nobody sends more than one tensor up. But rank 0, at the top, sends the sum "
    "down once for every level, and there are as many levels as p can be halved: "
    r"$\log_2 p = 2$.",
)

# %%
for name, found in seen.items():
    busiest = max(found.sent) / TENSOR
    total = sum(found.sent) / TENSOR
    print(
        f"{name}: {found.rounds} rounds; the busiest rank sends {busiest:.2f} tensors,"
        f" all together {total:.2f}"
    )

# %% [markdown]
# All three move six tensors in total; no sum needs less. What differs is who
# carries them, and in how many rounds. In a dry run one process stands for rank
# 0 of any number of ranks, so we can count for far more ranks than cores:

# %%
many = (16, 64)
dry = {
    name: [watch(way, N, ranks=p, dry=True).sent[0] / TENSOR for p in many]
    for name, way in WAYS.items()
}
ps = range(2, 65)
sends = {
    "star": [p - 1 for p in ps],
    "tree": [(p - 1).bit_length() for p in ps],
    "ring": [2 * (p - 1) / p for p in ps],
}
takes = {
    "star": [2 * (p - 1) for p in ps],
    "tree": [2 * (p - 1).bit_length() for p in ps],
    "ring": [FORMULAS["ring_all_reduce_rounds"](p) for p in ps],
}

left, right = plt.figure().subplots(1, 2)
for i, name in enumerate(WAYS):
    found = seen[name]
    style = {"color": f"C{i}", "linestyle": (0, (3, 3)) if name == "ring" else "-"}
    left.plot(ps, sends[name], color=f"C{i}", label=name)
    left.plot((4, *many), [max(found.sent) / TENSOR, *dry[name]], "o", color=f"C{i}")
    right.plot(ps, takes[name], **style, label=name)
    right.plot(4, found.rounds, "o", color=f"C{i}")
left.set(title="tensors sent by the busiest rank")
right.set(title="rounds of messages")
for ax in (left, right):
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xticks([2, 4, 16, 64], [2, 4, 16, 64])
    ax.set_yticks([1, 2, 8, 32, 128], [1, 2, 8, 32, 128])
    ax.set_xlabel("ranks")
    ax.minorticks_off()
left.legend()
plt.show()

# %% [markdown]
# Lines are formulas, dots were counted. The star has as many rounds as the
# ring, and in each of them a whole tensor instead of a chunk. Tree and ring
# are the real choice: few rounds, or few bytes. Which one wins depends on
# what a round costs.
#
# ## 2. What does a message cost?
#
# A message of n bytes takes about alpha + n beta seconds: a *latency*, however
# short it is, and a time for each byte. Two ranks play ping-pong, and the best
# of several times is kept. *From how many bytes on do the bytes matter more
# than the latency?*

# %%
guess = predict("length of a message whose latency costs as much as its bytes", 1_000)
guess


# %%
def ping_pong(w, sizes, times):
    best = {}
    for size in sizes:
        x = torch.zeros(size, dtype=torch.uint8, device=w.device)
        took = []
        for _ in range(times):
            began = time.perf_counter()
            for sender in (0, 1):
                if w.rank == sender:
                    dist.send(x, 1 - w.rank)
                else:
                    dist.recv(x, 1 - w.rank)
            x[0].item()  # on a GPU: until it has really arrived
            took.append((time.perf_counter() - began) / 2)
        best[size] = min(took)
    return best


sizes = [2**k for k in range(3, 23)]
took = launch(ping_pong, 2, sizes, 30)[0]
# Least squares of relative errors, so that short messages count as well.
rows = torch.tensor([[1 / t, n / t] for n, t in took.items()], dtype=torch.double)
alpha, beta = torch.linalg.lstsq(rows, torch.ones(len(rows), 1).double()).solution
alpha, beta = max(alpha.item(), 1e-9), max(beta.item(), 1e-15)
print(f"alpha = {alpha * 1e6:.0f} microseconds, 1/beta = {1e-9 / beta:.2f} GB/s")

guess.against(
    alpha / beta,
    "It is alpha / beta: what could have been sent while the first byte was on "
    "its way. Shorter messages pay for latency, whatever is in them. The seconds "
    "of one message of n bytes:",
    "p2p_seconds",
    message_bytes=round(alpha / beta),
    alpha=float(f"{alpha:.3g}"),
    beta=float(f"{beta:.3g}"),
)

# %% [markdown]
# These two numbers predict something else: the time of a ring all-reduce, which
# is 2(p-1) messages of 1/p of the tensor, one after the other.


# %%
def time_ring(w, sizes, times):
    from exemplars.communication_pattern.collective.ring_all_reduce import (
        ring_all_reduce,
    )

    best = {}
    for size in sizes:
        x, took = torch.zeros(size // 8, dtype=torch.double, device=w.device), []
        for _ in range(times):
            dist.barrier()
            began = time.perf_counter()
            ring_all_reduce(x)
            x[0].item()
            took.append(time.perf_counter() - began)
        best[size] = min(took)
    return best


ringed = launch(time_ring, 4, sizes[3::2], 20)[0]
predicted = [FORMULAS["all_reduce_seconds"](4, n, alpha, beta) for n in sizes]

ax = plt.figure(figsize=(7.6, 3.2)).subplots()
ax.plot(sizes, [alpha + n * beta for n in sizes], label="fit: alpha + n beta")
ax.plot(took.keys(), took.values(), "o", markersize=4, color="C0", label="a message")
ax.plot(sizes, predicted, color="C1", label="the formula of the ring, from that fit")
ax.plot(ringed.keys(), ringed.values(), "s", markersize=4, color="C1", label="a ring")
ax.axvline(alpha / beta, color=GREY, linewidth=0.8, linestyle=(0, (4, 4)))
ax.set(xscale="log", yscale="log", xlabel="bytes", title="seconds, best of several")
ax.legend()
plt.show()

# %% [markdown]
# To the left of the dashed line the curves are flat: only the number of
# messages counts, and a tree would win. To the right they rise with the bytes.
# Where the squares lie above their line, the ranks had to share cores: the
# formula models links, not ranks that wait for a processor.
#
# ## 3. Many small tensors
#
# A network has hundreds of small gradients. **Fusion** copies them side by
# side into a buffer, reduces the buffer, and copies them out again. Fifty
# tensors of 1,001 numbers, and a buffer of 8,192: *how many all-reduces?*
# Divide, and you get 6.1.

# %%
guess = predict("all-reduces", 6)
guess

# %%
run = experiment("tensor-fusion", bucket=8192)
guess.against(
    run["ranks"][0]["measured"]["calls"],
    "A tensor is never cut, so what counts is how many whole ones fit: eight. "
    "The rest of the buffer stays empty.",
    "fusion_calls",
    units=50,
    elements=1001,
    bucket=8192,
)

# %% [markdown]
# A larger buffer saves more. Each all-reduce that is not made saves 2(p-1)
# latencies; with the alpha from above that is a time. Bytes are the same.

# %%
rooms = [1001, 2002, 4004, 16_016, 50_050]
calls = {
    room: experiment("tensor-fusion", bucket=room)["ranks"][0]["measured"]["calls"]
    for room in rooms
}
calls[8192] = run["ranks"][0]["measured"]["calls"]
every = range(1001, 60_000, 13)

left, right = plt.figure().subplots(1, 2)
formula = [FORMULAS["fusion_calls"](50, 1001, c) for c in every]
left.step(every, formula, label="formula")
left.plot(calls.keys(), calls.values(), "o", label="counted")
left.set(title="all-reduces for 50 tensors", yscale="log")
left.set_yticks([1, 3, 10, 30], ["1", "3", "10", "30"])
left.legend()
for p, color in ((4, "C0"), (64, "C2"), (1024, "C3")):
    cost = [2 * (p - 1) * alpha * count for count in formula]
    right.step(every, cost, color=color, label=f"{p} ranks")
right.set(title="seconds of latency that are left", yscale="log")
right.legend()
for ax in (left, right):
    ax.set(xscale="log", xlabel="numbers in the buffer")
    ax.set_xticks([1000, 10_000, 50_000], ["1,000", "10,000", "50,000"])
    ax.minorticks_off()
plt.show()

# %% [markdown]
# ## 4. Send one number in a hundred
#
# **Top-k** sends the k largest entries of the gradient, and their places. Of
# 2,410 entries send 24, one in a hundred. *What percentage of the bytes of a
# ring all-reduce does a rank send?*

# %%
guess = predict("percent of the ring's bytes", 1)
guess

# %%
KEPT, STEPS = 24, 60


def train(w, kept, feedback):
    from exemplars.communication_pattern.sparsification.top_k_error_feedback import (
        TopK,
        sum_of_all,
    )

    model = digits.model().to(w.device)
    weights = parameters_to_vector(model.parameters()).detach()
    compressor = TopK(weights, kept=kept)
    whole = [t.to(w.device) for t in digits.batch(7, 1797)]
    losses = []
    for step in range(STEPS):
        x, y = (t.to(w.device) for t in digits.batch(step * w.size + w.rank, 24))
        loss = digits.loss(model, x, y) / len(y)
        gradient = torch.autograd.grad(loss, list(model.parameters()))
        if not feedback:
            compressor.residual.zero_()
        sent = compressor.compress(parameters_to_vector(gradient))
        weights = weights - 0.5 / w.size * sum_of_all(*sent, len(weights))
        vector_to_parameters(weights, model.parameters())
        if w.rank == 0:
            with torch.no_grad():
                losses.append(digits.loss(model, *whole).item() / len(whole[1]))
    return losses


n = sum(p.numel() for p in digits.model().parameters())
remembers = watch(train, KEPT, True)
forgets = watch(train, KEPT, False)
dense = watch(train, n, True)

ring_bytes = 2 * 3 / 4 * n * 8
guess.against(
    100 * 3 * remembers.payload[0] / STEPS / ring_bytes,
    "Each value of 8 bytes has a place of 4 beside it. And the ranks choose "
    "different places, so nothing can be added up on the way: all is gathered, "
    "p-1 times what one rank has, where the ring sends less than twice that.",
    "top_k_gathered",
    scale=ring_bytes / 100,
    ranks=4,
    kept=KEPT,
    itemsize=8,
    steps=1,
)

# %% [markdown]
# What is not sent is not lost: a rank keeps it and adds it to its next
# gradient. This is called *error feedback*. The same 1 % with and without it:

# %%
ax = plt.figure().subplots()
ax.plot(dense.values[0], color=GREY, label="all entries")
ax.plot(remembers.values[0], color="C0", label=f"{KEPT} entries, the rest kept")
ax.plot(forgets.values[0], color="C1", label=f"{KEPT} entries, the rest forgotten")
ax.set(title="loss on all digits", xlabel="steps", ylim=(0, None))
ax.legend()
plt.show()

# %% [markdown]
# With error feedback the loss lags at first, because what is kept arrives late,
# and then catches up. Without it, an entry that is small in every step is never
# sent, however often it occurs.
#
# ## 5. Fast links inside, slow links between
#
# Eight GPUs in one node have fast links; the links between nodes are slow. The
# **hierarchical** all-reduce first adds up inside, so that each rank owns one
# chunk, then sums only that chunk with its counterparts, then shares inside.
# Take 1,024 ranks in 32 nodes of 32. *What percentage of the tensor does
# a rank send out of its node?* There are 32 in a node, so about 3 %?

# %%
guess = predict("percent of the tensor that a rank sends out of its node", 3)
guess

# %%
from atlas.measure import measure

technique = atlas().techniques["hierarchical"]
wide = measure(technique, 1024, mode="dry")
guess.against(
    100 * wide["ranks"][0]["measured"]["between"] / TENSOR,
    "Only a 32nd of the tensor is the rank's to sum. But a sum over 32 nodes is "
    "an all-reduce too, and sends nearly twice what it sums; g nodes of c, up to "
    "the rounding of chunks:",
    "hierarchical_between",
    law=r"\frac{2 (g - 1)}{g} \cdot \frac{n b}{c}",
    scale=TENSOR / 100,
    ranks=1024,
    rank=0,
    elements=N,
    itemsize=8,
    node_size=32,
)


# %% [markdown]
# Who sends to whom, on four ranks in two nodes, counted:


# %%
def two_levels(w, n):
    from exemplars.communication_pattern.collective.hierarchical import all_reduce

    ranks = torch.arange(w.size).view(2, -1)
    node, place = divmod(w.rank, w.size // 2)
    all_reduce(w.randn(n, seed=w.rank), ranks[node].tolist(), ranks[:, place].tolist())


both = {"one ring of four": seen["ring"], "two nodes of two": watch(two_levels, N)}
for ax, (name, found) in zip(plt.figure().subplots(1, 2), both.items(), strict=True):
    for src, row in enumerate(found.sent_to):
        for dst, sent in row.items():
            color = "C0" if src // 2 == dst // 2 else "C1"
            share = sent / TENSOR
            ax.scatter(dst, src, s=900 * share, color=color, linewidths=0)
            ax.text(dst, src, f"{share:.1f}", color="white", ha="center", va="center")
    leaves = sum(
        sent for s, row in enumerate(found.sent_to) for d, sent in row.items()
        if s // 2 != d // 2
    )  # fmt: skip
    ax.set(title=f"{name}: {leaves / TENSOR:.1f} tensors between")
    ax.set(xlim=(-0.6, 3.6), ylim=(3.6, -0.6), aspect="equal")
    ax.set(xlabel="to rank", ylabel="from rank", xticks=range(4), yticks=range(4))
    ax.axhline(1.5, color=GREY, linewidth=0.8)
    ax.axvline(1.5, color=GREY, linewidth=0.8)
plt.show()

# %% [markdown]
# Blue stays inside a node, orange leaves it; numbers are tensors. Fewer bytes
# cross, all ranks share the crossing, and the long ring of slow rounds becomes
# two short ones:

# %%
for p, c in ((4, 2), (64, 8), (1024, 8), (1024, 32)):
    flat = FORMULAS["ring_all_reduce_rounds"](p)
    short = FORMULAS["hierarchical_rounds"](p, c)
    slow = FORMULAS["ring_all_reduce_rounds"](p // c)
    print(
        f"{p:>5} ranks, {c:>2} in a node: {flat:>5} rounds become {short:>4},"
        f" of which {slow:>4} cross nodes"
    )

# %% [markdown]
# ## Exercises
#
# Each cell holds code that is unfinished or wrong. `grade` runs the atlas's
# own program with your function in the place of its own, and judges every
# claim. What you see below the cells is the verdict on them as they stand.
#
# ### Exercise 1: fill in the missing line
#
# The first half of the ring adds up. In the second half the finished chunks go
# round once more. Which chunk does rank r send in round k, and which does it
# receive? Rank r has finished chunk r+1. (`pass_right(outgoing, incoming)`
# sends to the right while it receives from the left.)

# %% tags=["exercise"]
from exemplars.communication_pattern.collective.ring_all_reduce import pass_right


def ring_all_reduce(x):
    r, p = dist.get_rank(), dist.get_world_size()
    chunk = x.view(-1).tensor_split(p)
    arrived = torch.empty_like(chunk[0])
    for k in range(p - 1):
        into = chunk[(r - k - 1) % p]
        pass_right(chunk[(r - k) % p], arrived[: len(into)])
        into.add_(arrived[: len(into)])
    for _k in range(p - 1):
        ...  # the missing line


grade("ring-all-reduce", ring_all_reduce=ring_all_reduce)

# %% [markdown]
# <details class="solution" markdown>
# <summary>A solution, and its grade</summary>


# %% tags=["solution"] jupyter={"source_hidden": true}
def ring_all_reduce(x):
    r, p = dist.get_rank(), dist.get_world_size()
    chunk = x.view(-1).tensor_split(p)
    arrived = torch.empty_like(chunk[0])
    for k in range(p - 1):
        into = chunk[(r - k - 1) % p]
        pass_right(chunk[(r - k) % p], arrived[: len(into)])
        into.add_(arrived[: len(into)])
    for k in range(p - 1):
        pass_right(chunk[(r - k + 1) % p], chunk[(r - k) % p])


grade("ring-all-reduce", ring_all_reduce=ring_all_reduce)

# %% [markdown]
# </details>
#
# ### Exercise 2: find the planted bug
#
# This compressor sends the k largest entries and keeps the rest, so it seems.
# Yet what it sent and what it keeps do not add up to what came in.


# %% tags=["exercise"]
class TopK:
    def __init__(self, like, *, kept):
        self.residual = torch.zeros_like(like)
        self.kept = kept

    def compress(self, gradient):
        wanted = gradient + self.residual
        places = wanted.abs().topk(self.kept).indices
        self.residual = gradient.index_fill(0, places, 0.0)
        return wanted[places], places.to(torch.int32)


grade("top-k-error-feedback", TopK=TopK)

# %% [markdown]
# <details class="solution" markdown>
# <summary>A solution, and its grade</summary>
#
# What was kept from earlier steps, and not sent now either, has to be kept
# again: the residual is what is left of `wanted`, not of `gradient`.


# %% tags=["solution"] jupyter={"source_hidden": true}
class TopK:
    def __init__(self, like, *, kept):
        self.residual = torch.zeros_like(like)
        self.kept = kept

    def compress(self, gradient):
        wanted = gradient + self.residual
        places = wanted.abs().topk(self.kept).indices
        self.residual = wanted.index_fill(0, places, 0.0)
        return wanted[places], places.to(torch.int32)


grade("top-k-error-feedback", TopK=TopK)

# %% [markdown]
# </details>
#
# ### Exercise 3: find the planted bug
#
# Neighbors that fit into the buffer together. With fifty tensors of equal
# size and room for eight, some of them are never summed. Which, and why?


# %% tags=["exercise"]
def fitting(tensors, bucket):
    group, room = [], bucket
    for t in tensors:
        if group and t.numel() > room:
            yield group
            group, room = [], bucket
        group.append(t)
        room -= t.numel()


grade("tensor-fusion", fitting=fitting)

# %% [markdown]
# <details class="solution" markdown>
# <summary>A solution, and its grade</summary>
#
# A group leaves when the next tensor does not fit. After the last tensor there
# is no next, and the group of the last two never leaves.


# %% tags=["solution"] jupyter={"source_hidden": true}
def fitting(tensors, bucket):
    group, room = [], bucket
    for t in tensors:
        if group and t.numel() > room:
            yield group
            group, room = [], bucket
        group.append(t)
        room -= t.numel()
    yield group


grade("tensor-fusion", fitting=fitting)

# %% [markdown]
# </details>
#
# ### Exercise 4: fill in the missing line
#
# Three steps: reduce inside, sum between, gather inside. `reduce_scatter`
# leaves this rank with one finished chunk of its node, `mine`. What travels
# between the nodes? (As it stands, nothing does.)

# %% tags=["exercise"]
from exemplars.communication_pattern.collective.hierarchical import (
    all_gather,
    reduce_scatter,
)


def all_reduce(x, row, column):
    chunk = x.view(-1).tensor_split(len(row))
    with span("inside: reduce"):
        mine = reduce_scatter(chunk, row)
    with span("between"):
        part = mine.new_empty(0).tensor_split(len(column))  # the missing line
        reduce_scatter(part, column)
        all_gather(part, column)
    with span("inside: gather"):
        all_gather(chunk, row)


grade("hierarchical", all_reduce=all_reduce)

# %% [markdown]
# <details class="solution" markdown>
# <summary>A solution, and its grade</summary>


# %% tags=["solution"] jupyter={"source_hidden": true}
def all_reduce(x, row, column):
    chunk = x.view(-1).tensor_split(len(row))
    with span("inside: reduce"):
        mine = reduce_scatter(chunk, row)
    with span("between"):
        part = mine.tensor_split(len(column))
        reduce_scatter(part, column)
        all_gather(part, column)
    with span("inside: gather"):
        all_gather(chunk, row)


grade("hierarchical", all_reduce=all_reduce)

# %% [markdown]
# </details>
#
# ## What next
#
# - Read the programs: [ring](../communication-pattern/collective/ring-all-reduce.md),
#   [hierarchical](../communication-pattern/collective/hierarchical.md),
#   [fusion](../communication-pattern/scheduling/tensor-fusion.md),
#   [top-k](../communication-pattern/sparsification/top-k-error-feedback.md).
# - The other labs: [when do the workers agree?](20-synchronization.md) and
#   [who holds what?](30-distribution.md)
