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
#   title: "A tour: predict it, run it, break it"
# ---

# %% [markdown]
# # A tour: predict it, run it, break it
#
# Many processes train one network by sending each other numbers. How many
# numbers they send, in which order, and who waits for whom: you need not take
# any of it on trust. In this tour you run some of the atlas's programs, guess
# what they send before you look, and then break one of them.
#
# Every figure below was made by the cells above it, on one machine.

# %%
import torch
import torch.distributed as dist

from atlas.launch import launch
from atlas.notebooks import figures, table

figures()

# %% [markdown]
# ## 1. Four ranks in a cell
#
# `launch(f, p)` starts p processes, called ranks, joins them into a group,
# calls `f(w)` on each of them and returns the answers in rank order. The
# function may be defined in a cell: it is sent to the ranks automatically.
#
# First, one rank looks around. With two or more GPUs, everything below runs
# on them over NCCL; otherwise it runs on the CPU over gloo. The cells are the
# same either way.


# %%
def look_around(w):
    return dist.get_backend(), torch.accelerator.device_count()


backend, devices = launch(look_around, 1)[0]
if devices < 2:
    backend, devices = "gloo", 4
ranks = min(4, devices)
hidden = {"CUDA_VISIBLE_DEVICES": ""} if backend == "gloo" else {}


def introduce(w):
    return f"rank {w.rank} of {w.size}, on {w.device}, over {dist.get_backend()}"


launch(introduce, ranks, env=hidden)

# %% [markdown]
# Now some work. Every rank holds a tensor, and all of them need the sum, as in
# each step of data-parallel training. The obvious way: every rank sends its
# tensor to rank 0, which adds them up and sends the sum back. `meter()` counts
# the bytes.

# %%
from exemplars.runtime import meter

N = 100_003  # numbers, of 8 bytes each


def star(w):
    x = w.randn(N)
    with meter() as moved:
        if w.rank == 0:
            others = range(1, w.size)
            for other in others:
                theirs = torch.empty_like(x)
                dist.recv(theirs, other)
                x += theirs
            for other in others:
                dist.send(x, other)
        else:
            dist.send(x, 0)
            dist.recv(x, 0)
    return moved.bytes_sent


for rank, sent in enumerate(launch(star, ranks, env=hidden)):
    print(f"rank {rank} sent {sent:>9,} bytes: {sent / (8 * N):.0f} x the tensor")

# %% [markdown]
# Rank 0 sends a whole tensor to each of the others. With a thousand ranks it
# would send almost a thousand tensors while the others wait.
#
# ## 2. Predict, then look
#
# On a **ring**, each rank sends only to its right neighbor. The tensor is cut
# into as many chunks as there are ranks. In every round each rank passes one
# chunk on: first to add up the sums, then to share the result.
#
# Before you read on: *how many bytes does each rank send now?* Guess in units
# of one tensor. Less than one? Two? Three?
#
# This formula gives the answer for p ranks, n numbers of b bytes each, and
# rank r. The chunks may be uneven, hence the rounding up:

# %%
from IPython.display import Markdown

from atlas.formulas import FORMULAS
from atlas.script.latex import latex
from atlas.taxonomy import load

atlas = load()
ring = atlas.techniques["ring-all-reduce"]
bytes_sent = FORMULAS["ring_all_reduce_bytes"]

Markdown(f"$$ {latex(bytes_sent)} $$")

# %% [markdown]
# The two chunks subtracted are about n/p each, so a rank sends close to
# 2(p-1)/p tensors: 1.5 on four ranks, and never more than two.
#
# Does it? `measure` runs the atlas's own ring program, which is shown in full
# [on its page](../communication-pattern/collective/ring-all-reduce.md), and
# `judge` checks the measurements against each claim. Bytes and rounds have no
# tolerance: they equal the formula, or the claim fails. The sum may be off by
# rounding, because the ring adds in a different order than a single process.

# %%
from atlas.measure import measure
from atlas.verdict import judge

run = measure(ring, ranks, mode=backend)
table(judge(ring, run))

# %% [markdown]
# ## 3. A thousand ranks on a laptop
#
# One process can be rank r of 1024. In a *dry run* the program runs unchanged,
# everything it sends is counted, and nothing arrives. The values are
# meaningless, but the byte counts are right, so the formula can be checked at
# sizes that no laptop could run.

# %%
dry = {p: measure(ring, p, mode="dry") for p in (64, 1024)}
table(v for v in judge(ring, dry[1024]) if v.claim == "bytes_sent")

# %%
import matplotlib.pyplot as plt

from atlas.notebooks import GREY

rounds = FORMULAS["ring_all_reduce_rounds"]
ps = range(2, 1025)
left, right = plt.figure().subplots(1, 2)


def tensors(found):
    return found["ranks"][0]["measured"]["bytes_sent"] / (8 * N)


left.axhline(2, color=GREY, linewidth=0.8, linestyle=(0, (4, 4)))
left.plot(ps, [bytes_sent(p, 0, N, 8) / (8 * N) for p in ps], label="formula")
left.plot(dry.keys(), [tensors(d) for d in dry.values()], "o", label="dry run")
left.plot(ranks, tensors(run), "o", label=f"run on {ranks} ranks")
left.set(title="sent by rank 0, in tensors", ylim=(0, 2.2))
left.legend(loc="lower right")

right.plot(ps, [rounds(p) for p in ps])
right.plot(ranks, run["derived"]["rounds"], "o", color="C2")
right.set(title="rounds of messages", yscale="log")
right.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])

for ax in (left, right):
    ax.set_xscale("log", base=2)
    ax.set_xticks([2, 4, 16, 64, 256, 1024], [2, 4, 16, 64, 256, 1024])
    ax.set_xlabel("ranks")
    ax.minorticks_off()
plt.show()

# %% [markdown]
# That is the trade-off of the ring. What a rank sends hardly depends on the
# number of ranks, but the number of rounds grows with it, and every round adds
# latency. Rings suit large tensors, not small tensors on many ranks.
#
# ## 4. Who waits for whom
#
# Bytes are half of the story. In a **pipeline** each rank holds a stage of
# the network, and the batch goes through it in micro-batches. *One forward,
# one backward* is the schedule that most large models trained this way use.
# Every rank logs what it does. From the logs, `virtual` computes when each
# event could have happened if a forward took 1 second and a backward 2. The
# result is the same on every machine, however few cores it has.

# %%
from atlas.timeline import virtual

pipeline = atlas.techniques["one-f-one-b"]
run = measure(pipeline, ranks, mode=backend)
line = virtual(rank["events"] for rank in run["ranks"])

# %%
ax = plt.figure(figsize=(7.6, 0.55 * ranks + 0.9)).subplots()
for r in range(ranks):
    ax.barh(r, line.makespan, height=0.74, color=GREY, alpha=0.13)
for s in line.spans:
    color = "C0" if s.name == "F" else "C1"
    length, middle = s.end - s.start, (s.start + s.end) / 2
    ax.barh(s.rank, length - 0.08, 0.74, s.start + 0.04, color=color)
    ax.text(middle, s.rank, s.label, color="white", ha="center", va="center")
for m in line.messages:
    near = 0.37 if m.dst > m.src else -0.37
    ends = {"xy": (m.arrived, m.dst - near), "xytext": (m.sent, m.src + near)}
    ax.annotate("", **ends, arrowprops={"arrowstyle": "-", "color": GREY})
ax.set_yticks(range(ranks), [f"stage {r}" for r in range(ranks)])
ax.set(xlim=(0, line.makespan), xlabel="virtual seconds")
ax.set_title("forwards in blue, backwards in orange, by micro-batch; gray is idle")
ax.invert_yaxis()
ax.spines[:].set_visible(False)
ax.tick_params(length=0)
plt.show()

# %% [markdown]
# Every stage is idle for as long as the first micro-batch takes to reach the
# last stage and the last micro-batch takes to come back. Read the idle time off
# the drawing and compare:

# %%
idle = FORMULAS["pipeline_idle"]
given = run["given"]
seconds = idle(ranks, given["forward"], given["backward"])
Markdown(f"$$ {latex(idle)} = {seconds} $$")

# %%
wanted = {"idle", "makespan", "in_flight"}
table(v for v in judge(pipeline, run) if v.claim in wanted)

# %% [markdown]
# (`in_flight` is the cost of this schedule: of all stages, the first keeps the
# activations of the most micro-batches until their gradients come back.)
#
# The number of micro-batches is not in the formula. More micro-batches leave
# the idle time unchanged and make it a smaller share of the total:

# %%
bubble = FORMULAS["pipeline_bubble"]
seen = line.idle[0] / line.makespan
print(f"m = {given['microbatches']:<3} {seen:>6.1%} idle, as drawn")
for m in (6, 12, 24, 96):
    print(f"m = {m:<3} {bubble(ranks, m):>6.1%} idle, by the formula")

# %% [markdown]
# ## 5. Break it
#
# A claim is worth something only if a mistake can make it fail. Each technique
# in the atlas comes with mistakes that people make, called *mutants*. This one
# is in the ring of a widely read tutorial:

# %%
import difflib

from atlas.measure import mutated

mutant = ring.mutants[0]
good = (atlas.root / ring.exemplar).read_text()
bad = mutated(atlas.root, ring, mutant)
diff = difflib.unified_diff(good.splitlines(), bad.splitlines(), n=1, lineterm="")

Markdown("\n".join([mutant.says, "", "```diff", *list(diff)[3:], "```"]))

# %% [markdown]
# Does it still compute the sum? Which claim will fail? Guess again.

# %%
run = measure(ring, ranks, mode=backend, source=bad)
table(judge(ring, run))

# %% [markdown]
# Every rank has the right sum. A test of the result would pass, and the loss
# curve would look right; only counting reveals the mistake. That is why the
# atlas counts.
#
# Try another, or write your own. A claim catches each of these. Which one?

# %%
for mutant in (*ring.mutants[1:], *pipeline.mutants):
    print(f"{mutant.id}: {mutant.says}")

# %% [markdown]
# ## What next
#
# - Read the two programs in full, with replays of their runs:
#   [ring all-reduce](../communication-pattern/collective/ring-all-reduce.md)
#   and [one forward, one backward](../sync-strategy/pipeline-flush/one-f-one-b.md).
# - Change one: each is a single file in `exemplars/`.
# - Run one without a notebook: `atlas run ring-all-reduce --ranks 4`, or over
#   many machines with `torchrun`; its page has the command.
# - Ask what happens with more ranks: `atlas run ring-all-reduce --dry 1024`.
# - See [which systems use which technique](../systems/index.md), and [what the
#   surveys call them](../surveys.md).
