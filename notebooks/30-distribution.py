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
#   title: "Lab: who holds what?"
# ---

# %% [markdown]
# # Lab: who holds what?
#
# Training needs memory for more than the weights: gradients, optimizer state,
# activations. Every rank can keep all of it, or each rank can keep a part. This
# lab counts every byte that the ranks keep, from allocation to release, and what
# it costs to keep less.
#
# Guess before you look. At the end are four exercises, graded by the
# techniques' own claims; the [tour](00-tour.md) explains how.

# %% tags=["setup"]
import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch.optim import Adam

from atlas.formulas import FORMULAS
from atlas.lab import begin, experiment, grade, lanes, layers, predict, watch
from atlas.notebooks import GREY
from atlas.timeline import virtual
from exemplars.workload import equal_layers

begin()

# %% [markdown]
# ## 1. Four times the weights
#
# In plain data parallelism every rank keeps the weights, as many gradients, and
# Adam's two running means: four times the weights, with the same contents on
# every rank. **ZeRO-1** leaves weights and gradients whole and gives each rank a
# shard of Adam's state. *On four ranks, what percentage of that memory does a
# rank still need?*

# %%
guess = predict("percent of the memory of data parallelism", 25)
guess

# %%
LAYERS, WIDTH = 3, 32
UNIT = WIDTH * WIDTH + WIDTH  # weights of a layer
ALL = LAYERS * UNIT


def replicated(w):
    model = equal_layers(LAYERS, WIDTH).to(w.device)
    adam = Adam(model.parameters())
    moments = "exp_avg", "exp_avg_sq"
    rows = w.randn(50, WIDTH, seed=0).tensor_split(w.size)[w.rank]
    memory = w.memory(
        parameters=model.parameters,
        gradients=lambda: [p.grad for p in model.parameters()],
        optimizer=lambda: [s[m] for s in adam.state.values() for m in moments],
    )
    with memory:
        for _ in range(2):
            adam.zero_grad()
            (model(rows).square().sum() / 50).backward()
            for p in model.parameters():
                dist.all_reduce(p.grad)
            adam.step()
            memory.mark("step")
    live = memory.live("step")
    state = live["parameters"] + live["gradients"] + live["optimizer"]
    return {"state": state, "series": memory.series}


plain = watch(replicated).values[0]
names = ("zero-1", "zero-2", "zero-3")
zero = {name: experiment(name, width=WIDTH) for name in names}
state = {"data parallel": plain["state"]}
state |= {n: run["ranks"][0]["measured"]["state"] for n, run in zero.items()}

guess.against(
    100 * state["zero-1"] / state["data parallel"],
    "ZeRO-3 needs a quarter of *everything*. In ZeRO-1, weights and gradients stay "
    "whole, which is two of the four; a quarter of the other two is added:",
    "zero_1_state_bytes",
    law=r"b n \left( 2 + \frac{2}{p} \right)",
    scale=4 * 8 * ALL / 100,
    ranks=4,
    elements=ALL,
    itemsize=8,
)

# %%
for name, kept in state.items():
    share = kept / state["data parallel"]
    print(f"{name:<14} keeps {kept:>7,} bytes, {share:>6.1%}")

# %% [markdown]
# That is what a rank keeps from step to step. Within a step there is more: what
# autograd saves, and layers that are whole for a moment. Here are two steps of
# each, with every byte that was alive:

# %%
series = {"data parallel": plain["series"]}
series |= {n: run["ranks"][0]["memory"]["series"] for n, run in zero.items()}
names = ["parameters", "gradients", "optimizer", "activations", "other", "gathered"]

axes = plt.figure(figsize=(7.6, 4.6)).subplots(2, 2, sharey=True).flat
for ax, (name, found) in zip(axes, series.items(), strict=True):
    layers(ax, found, names, f"{name}, kB on rank 0")
axes[3].legend(fontsize=8, ncols=2, loc="upper right")
plt.show()

# %% [markdown]
# Each stage shrinks one more color: ZeRO-1 the optimizer state, ZeRO-2 the
# gradients, and ZeRO-3 the weights, though it needs room for one whole layer
# instead. Adam's state appears with the first update and stays.
#
# ## 2. What it costs in bytes
#
# An all-reduce is a reduce-scatter followed by an all-gather, and ZeRO-1 only
# puts the update between the two: it sends no extra byte. Now accumulate
# gradients over three micro-batches. **ZeRO-2** does not keep whole gradients.
# *How many times as many bytes as ZeRO-1 does it send?*

# %%
guess = predict("times the bytes of ZeRO-1", 1)
guess

# %%
volume = {name: run["ranks"][0]["measured"]["volume"] for name, run in zero.items()}
guess.against(
    volume["zero-2"] / volume["zero-1"],
    "ZeRO-1 accumulates the gradients locally and scatters once. ZeRO-2 has no "
    "room for whole gradients, so it scatters after each of the m micro-batches. "
    "Both gather the weights once:",
    "zero_2_volume",
    law=r"t (m + 1) \cdot \frac{p - 1}{p} n_u u b",
    scale=volume["zero-1"],
    ranks=4,
    unit_elements=UNIT,
    units=LAYERS,
    itemsize=8,
    microbatches=3,
    steps=2,
)

# %%
ks = (1, 3, 6)
two = {k: experiment("zero-2", width=WIDTH, microbatches=k) for k in ks}
one = FORMULAS["zero_1_volume"](4, ALL, 8, 2)
ax = plt.figure(figsize=(7.6, 2.6)).subplots()
line = [FORMULAS["zero_2_volume"](4, UNIT, LAYERS, 8, k, 2) / one for k in range(1, 8)]
ax.plot(range(1, 8), line, color="C1", label="ZeRO-2")
found = [run["ranks"][0]["measured"]["volume"] / one for run in two.values()]
ax.plot(ks, found, "o", color="C1", label="counted")
ax.axhline(1, color="C0", label="ZeRO-1")
ax.plot(1, volume["zero-3"] / one, "s", color="C2", label="ZeRO-3, one micro-batch")
ax.set(title="bytes sent, ZeRO-1 = 1", xlabel="micro-batches", ylim=(0, None))
ax.legend()
plt.show()

# %% [markdown]
# ## 3. Cut every matrix
#
# **Tensor parallelism** cuts the matrices themselves. In a transformer layer,
# attention is one pair of matrices and the perceptron another. The first matrix
# of a pair is cut by columns, the second by rows, and one all-reduce then adds
# up the parts. *How many all-reduces do two layers need, forward and backward?*

# %%
guess = predict("all-reduces, forward and backward", 4)
guess

# %%
TENSOR = "tensor-parallel-column-row"
cut = {p: experiment(TENSOR, p) for p in (1, 2, 4)}
found = cut[4]["ranks"][0]["measured"]
guess.against(
    found["forward_calls"] + found["backward_calls"],
    "Each layer has two pairs, and each pair is summed once in the forward pass. "
    "The backward pass is the mirror image: what every rank read gets a gradient "
    "from every rank. In each direction, for l layers:",
    "tensor_parallel_calls",
    scale=0.5,
    layers=2,
)

# %%
left, right = plt.figure().subplots(1, 2)
held = {p: run["ranks"][0]["memory"]["peak"] for p, run in cut.items()}
for i, name in enumerate(("parameters", "activations")):
    bars = [held[p][name] / 1000 for p in cut]
    left.bar([x + 0.4 * i - 0.2 for x in range(3)], bars, 0.38, label=name)
left.set(title="kB on rank 0, at most")
left.set_xticks(range(3), ["1 rank", "2 ranks", "4 ranks"])
left.legend()
tokens = range(0, 4097, 64)
sent = [FORMULAS["tensor_parallel_payload"](1, 1, t, 4096, 2) / 1e6 for t in tokens]
right.plot(tokens, sent)
right.set(title="MB to sum, a layer of width 4,096", xlabel="tokens in the batch")
plt.show()

# %% [markdown]
# Weights shrink with the number of ranks; only norms and some biases stay
# whole. Activations shrink less, because what enters and leaves a pair is whole
# on every rank. And what is summed grows with the number of tokens, in every
# layer: tensor parallelism needs the fastest links available.
#
# ## 4. Cut between layers
#
# A simpler way: each rank takes some whole **layers** and passes on what it has
# computed. There are no collectives at all. One batch goes through four ranks
# and back. *What percentage of the time is a rank idle?*

# %%
guess = predict("percent idle", 25)
guess

# %%
PARTITION = "layer-partition"
partition = experiment(PARTITION)
line = virtual(rank["events"] for rank in partition["ranks"])
guess.against(
    100 * line.idle[0] / line.makespan,
    "Nothing overlaps: while one rank computes, the other three wait for what it "
    "will send. Only one of the p ranks works at any time. Seconds idle in m "
    f"batches, of {line.makespan:g}:",
    "layer_partition_idle",
    scale=line.makespan / 100,
    ranks=4,
    steps=2,
    forward=1,
    backward=2,
)

# %%
ax = plt.figure(figsize=(7.6, 2.4)).subplots()
lanes(ax, line, {"F": "C0", "B": "C1"}, f"two batches: {line.makespan:g} seconds")
plt.show()
held = [rank["measured"]["state"] / 1000 for rank in partition["ranks"]]
print("kB of weights by rank:", *held)

# %% [markdown]
# A partition saves memory: each rank holds a quarter of the weights. It saves no
# time. To gain speed, the batch must be cut as well; the result is a pipeline,
# which the [lab on synchronization](20-synchronization.md) shows.
#
# ## 5. Keep less, compute more, or keep it elsewhere
#
# **Checkpointing** cuts a network of 16 layers into s segments, keeps only the
# input of each, and recomputes a segment when the backward pass reaches it.
# *Which number of segments keeps the least: 1, 2, 4, 8 or 16?* With more
# segments, each is shorter and needs less memory while it is recomputed.

# %%
guess = predict("segments that keep the least", 16)
guess


# %%
def kept_at_most(w):
    from exemplars.parameter_distribution.compact_state import (
        activation_checkpointing as checkpointing,
    )

    x = w.randn(5, 8, seed=0)
    tried = (1, 2, 4, 8, 16)
    return x.nbytes, {s: checkpointing.most_kept(w, 16, x, s) for s in tried}


one_layer, kept = watch(kept_at_most, ranks=1).values[0]
guess.against(
    min(kept, key=kept.get),
    "Short segments mean many segments, and the input of each is kept. The inputs "
    "grow with s and the activations of one segment shrink with s. Their sum, "
    "s + l/s, is smallest where the two are equal:",
    "checkpoint_best",
    layers=16,
)

# %%
ax = plt.figure(figsize=(7.6, 2.6)).subplots()
ss = range(1, 17)
ax.plot(ss, ss, color=GREY, linewidth=0.8, label="inputs of segments")
ax.plot(
    ss,
    [16 / s for s in ss],
    color=GREY,
    linestyle=(0, (4, 4)),
    linewidth=0.8,
    label="one segment",
)
exact = [FORMULAS["checkpoint_peak"](16, s, 1) for s in kept]
ax.plot(kept.keys(), exact, "o", color="C0", markersize=10, alpha=0.4, label="formula")
ax.plot(
    kept.keys(),
    [k / one_layer for k in kept.values()],
    "o",
    color="C1",
    markersize=4,
    label="counted",
)
ax.set(
    title="activations kept at most, in layers", xlabel="segments", xticks=list(kept)
)
ax.legend()
plt.show()

# %% [markdown]
# The price is one more forward pass, and the gradients are the same bit for bit.
#
# The alternative is memory that is slower and larger. The **offloaded
# optimizer** keeps Adam's state, which is used once per step, in host memory,
# and moves one gradient down and one weight up for every element:

# %%
away = experiment("cpu-offload-optimizer", width=WIDTH)
found = away["ranks"][0]["measured"]
for what in ("fast", "slow", "down", "up"):
    unit = "bytes moved in two steps" if what in ("down", "up") else "bytes kept"
    print(f"{what:<5} {found[what]:>7,} {unit}")
print(f"zero-1 keeps {state['zero-1']:,} bytes, all of them in fast memory")

# %% [markdown]
# ## 6. Choose by memory
#
# Give each of four ranks 1 MB for weights, gradients and Adam's state. With
# plain data parallelism, three layers of width 101 fit. ZeRO-3 needs a quarter
# of the memory. *What is the largest width that fits with ZeRO-3?*

# %%
guess = predict("largest width that fits", 4 * 101)
guess

# %%
BUDGET = 1_000_000


def widest(bytes_of):
    """The largest width whose state fits into the budget."""
    return max(h for h in range(1, 1000) if bytes_of(h * h + h) <= BUDGET)


def zero_3(n):
    return FORMULAS["zero_3_state_bytes"](4, n, LAYERS, 8)


width = widest(zero_3)
fits, bursts = (
    experiment("zero-3", width=h)["ranks"][0]["measured"]["state"]
    for h in (width, width + 1)
)
print(f"width {width} keeps {fits:,} bytes, width {width + 1} keeps {bursts:,}")
guess.against(
    width,
    "Four times as many weights fit. But a matrix of twice the width has four "
    "times as many weights, so the width only doubles. What a rank keeps of u "
    "layers with n_u weights each:",
    "zero_3_state_bytes",
    ranks=4,
    unit_elements=width * width + width,
    units=LAYERS,
    itemsize=8,
)

# %% [markdown]
# The same formulas answer the question at real sizes. How many weights fit onto
# accelerators with 80 GB, all in 32 bits, if half of the memory is left to
# activations?


# %%
def most(bytes_of, room=40e9):
    """The largest number of weights, in billions, whose state fits."""
    low, high = 0, 10**14
    while high - low > 10**6:
        middle = (low + high) // 2
        low, high = (middle, high) if bytes_of(middle) <= room else (low, middle)
    return low / 1e9


ps = [1, 2, 4, 8, 16, 32, 64, 128]
strategies = {
    "data parallel": lambda p, n: 16 * n,
    "zero-1": lambda p, n: FORMULAS["zero_1_state_bytes"](p, n, 4),
    "zero-2": lambda p, n: FORMULAS["zero_2_state_bytes"](p, n, 1, 4),
    "zero-1, offloaded": lambda p, n: FORMULAS["offload_fast_bytes"](p, n, 4),
    "zero-3": lambda p, n: FORMULAS["zero_3_state_bytes"](p, n, 1, 4),
}
ax = plt.figure(figsize=(7.6, 3.2)).subplots()
for i, (name, bytes_of) in enumerate(strategies.items()):
    fit = [most(lambda n, p=p, f=bytes_of: f(p, n)) for p in ps]
    ax.plot(
        ps, fit, "o-", markersize=4, color=GREY if i == 0 else f"C{i - 1}", label=name
    )
ax.set_xscale("log", base=2)
ax.set_yscale("log")
ax.set_xticks(ps, ps)
ax.set_yticks([2, 5, 10, 50, 300], [2, 5, 10, 50, 300])
ax.minorticks_off()
ax.set(title="billions of weights that fit", xlabel="ranks")
ax.legend()
plt.show()

# %% [markdown]
# All strategies but ZeRO-3 keep something whole, so they level off: one more rank
# adds no more room. Where several strategies fit, choose by the bytes they send:
# plain data parallelism while it fits, then ZeRO-1, which sends nothing extra,
# and ZeRO-3 last. The site's [guide](../choose.md) asks the other questions.
#
# ## Exercises
#
# Each cell contains code that is unfinished or wrong. `grade` runs the
# technique's program with your code and judges every claim.
#
# ### Exercise 1: fill in the missing line
#
# This is one step of ZeRO-1: scatter the gradients, then update the rank's own
# shards. A shard is a view of the weights. What is still missing before the next
# forward pass can begin?

# %% tags=["exercise"]
from exemplars.parameter_distribution.sharded.zero_1 import Zero1


class Sharded(Zero1):
    def step(self):
        for flat in self.flats:
            flat.shard.grad = flat.scatter()
        self.local.step()
        self.local.zero_grad()
        ...  # the missing lines


grade("zero-1", Zero1=Sharded)

# %% [markdown]
# <details class="solution" markdown>
# <summary>A solution, and its grade</summary>
#
# The new shards of the other ranks.


# %% tags=["solution"] jupyter={"source_hidden": true}
class Sharded(Zero1):
    def step(self):
        for flat in self.flats:
            flat.shard.grad = flat.scatter()
        self.local.step()
        self.local.zero_grad()
        for flat in self.flats:
            flat.gather()


grade("zero-1", Zero1=Sharded)

# %% [markdown]
# </details>
#
# ### Exercise 2: find the planted bug
#
# Where x enters a split layer, it is copied to all ranks. The output is right,
# and so is the loss of the first step. The loss of the second step is not.


# %% tags=["exercise"]
class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group=None):  # None: all ranks
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dx):
        return dx.clone(memory_format=torch.contiguous_format), None


grade("tensor-parallel-column-row", Enter=Enter)

# %% [markdown]
# <details class="solution" markdown>
# <summary>A solution, and its grade</summary>
#
# All ranks read x, so each of them contributes a part of its gradient: the
# backward of a copy is a sum.


# %% tags=["solution"] jupyter={"source_hidden": true}
class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group=None):  # None: all ranks
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dx):
        dx = dx.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(dx)
        return dx, None


grade("tensor-parallel-column-row", Enter=Enter)

# %% [markdown]
# </details>
#
# ### Exercise 3: fill in the missing line
#
# In ZeRO-2 the gradient of a layer is whole only for a moment; then each rank
# keeps its shard. As the code stands, a rank keeps a shard of its *own* gradient.
# Of which gradient should it keep the shard, and which collective computes it?


# %% tags=["exercise"]
from exemplars.parameter_distribution.sharded.zero_1 import gradient, packed
from exemplars.parameter_distribution.sharded.zero_2 import Unit


class Layer(Unit):
    def scatter(self):
        whole = packed(gradient(p) for p in self.parameters)
        r, p = dist.get_rank(), dist.get_world_size()
        mine = whole.view(p, -1)[r].clone()  # the line to replace
        return mine / p


grade("zero-2", Unit=Layer)

# %% [markdown]
# <details class="solution" markdown>
# <summary>A solution, and its grade</summary>


# %% tags=["solution"] jupyter={"source_hidden": true}
class Layer(Unit):
    def scatter(self):
        whole = packed(gradient(p) for p in self.parameters)
        p = dist.get_world_size()
        mine = whole.new_empty(len(whole) // p)
        dist.reduce_scatter_single(mine, whole)
        return mine / p


grade("zero-2", Unit=Layer)

# %% [markdown]
# </details>
#
# ### Exercise 4: find the planted bug
#
# Fast memory has room for one layer, so the layers take turns. The code below
# gets every gradient right, bit for bit. On a machine with exactly that much room,
# it would run out of memory.

# %% tags=["exercise"]
from exemplars.parameter_distribution.memory_tiers.model_spilling import Spilled


class Small(Spilled):
    def up(self, layer):
        if layer not in self.fast:
            below = self.slow[layer]
            self.fast = {layer: torch.empty_like(below, device=self.device)}
            self.link.up(below, into=self.fast[layer])
        return self.fast[layer]


grade("model-spilling", Spilled=Small)

# %% [markdown]
# <details class="solution" markdown>
# <summary>A solution, and its grade</summary>
#
# The new layer is allocated while the old one is still there: for a moment there
# are two. Free the old one first.


# %% tags=["solution"] jupyter={"source_hidden": true}
class Small(Spilled):
    def up(self, layer):
        if layer not in self.fast:
            self.fast.clear()
            below = self.slow[layer]
            self.fast = {layer: torch.empty_like(below, device=self.device)}
            self.link.up(below, into=self.fast[layer])
        return self.fast[layer]


grade("model-spilling", Spilled=Small)

# %% [markdown]
# </details>
#
# ## What next
#
# - Read the programs: [ZeRO-1](../parameter-distribution/sharded/zero-1.md),
#   [ZeRO-3](../parameter-distribution/sharded/zero-3.md), [tensor
#   parallelism](../parameter-distribution/intra-layer/tensor-parallel-column-row.md),
#   [checkpointing](../parameter-distribution/compact-state/activation-checkpointing.md)
# - The other labs: [how do the bytes move?](10-communication.md) and [when do
#   the workers agree?](20-synchronization.md)
