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
#   title: "Your own code: is it right?"
# ---

# %% [markdown]
# # Your own code: is it right?
#
# Distributed training that is wrong seldom fails. It trains, and a little worse.
# In this notebook you write a function in a cell and have it checked: a
# collective against its contract, a wrapper against one process, and a whole
# training loop. Replace the functions by yours; nothing else has to change.
#
# The same checks run on files: [`atlas check`](../check.md).

# %%
import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from atlas.lab import begin, watch
from atlas.notebooks import COLOURS, GREY
from atlas.own import check, hold

begin()

# %% [markdown]
# ## 1. A collective
#
# This all-reduce sends each rank's tensor to everyone, in chunks of equal size.


# %%
def my_all_reduce(x):
    p = dist.get_world_size()
    chunk = len(x) // p
    for i in range(p):
        dist.all_reduce(x[i * chunk : (i + 1) * chunk])


hold(my_all_reduce, "all-reduce", ranks=[1, 2, 3])

# %% [markdown]
# With one rank everything holds, and with twelve elements on two or three ranks
# it would too. The contract tries sizes that do not divide, and shows the
# smallest case that fails: one element on two ranks. `tensor_split` gives the
# rest to somebody. A tensor with gaps may be refused, but not summed wrongly.


# %%
def my_all_reduce(x):
    if not x.is_contiguous():
        raise ValueError("the tensor has gaps")
    for part in x.flatten().tensor_split(dist.get_world_size()):
        if part.numel():
            dist.all_reduce(part)


hold(my_all_reduce, "all-reduce", ranks=[1, 2, 3])

# %% [markdown]
# The contract also says what may be sent. How does the number of bytes grow with
# the number of ranks? `watch` runs a function of a cell on ranks and meters it.


# %%
def summed(w, elements):
    x = w.randn(elements, seed=w.rank)
    my_all_reduce(x)


elements, counts = 1200, [2, 3, 4]
sent = [max(watch(summed, elements, ranks=p).sent) for p in counts]

fig, ax = plt.subplots()
ax.plot(counts, sent, "o", color=COLOURS[0], label="sent by a rank")
least = [2 * (p - 1) / p * elements * 8 for p in counts]
ax.plot(counts, least, color=GREY, label="the least possible")
ax.set(xlabel="ranks", ylabel="bytes", ylim=(0, None), xticks=counts)
ax.set_title("An all-reduce of 9600 bytes")
ax.legend()
plt.show()

# %% [markdown]
# ## 2. A wrapper
#
# Data parallelism by hand: average every gradient after the backward pass. What
# is wrong with this one?


# %%
def average_gradients(module):
    p = dist.get_world_size()
    for weight in module.parameters():
        if weight.grad is not None:
            dist.all_reduce(weight.grad)
    for weight in [*module.parameters()][:-1]:
        if weight.grad is not None:
            weight.grad /= p


hold(average_gradients, "data-parallel", ranks=[1, 2])

# %% [markdown]
# The last weight is summed and not averaged. So the head learns p times too fast,
# and after a step the gradients of all other weights are a little off: too little
# for a loss curve to show. Averaged over all weights it holds, with tied weights,
# frozen layers and micro-batches too:


# %%
def average_gradients(module):
    for weight in module.parameters():
        if weight.grad is not None:
            dist.all_reduce(weight.grad)
            weight.grad /= dist.get_world_size()


hold(average_gradients, "data-parallel", ranks=[1, 2, 3])

# %% [markdown]
# ## 3. A training loop
#
# A whole loop has no contract, but it has one process to be compared with. Here
# each rank takes its share of a batch in which some sentences are shorter: the
# padding does not count. Every rank averages over its own tokens, and the ranks'
# gradients are averaged again, which is what most scripts do.


# %%
def train(batch, normalize="mine"):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        words = torch.randint(20, (32, 6), generator=generator)
        lengths = torch.randint(1, 7, (32, 1), generator=generator)
        x = words[rank * batch : (rank + 1) * batch]
        counted = (torch.arange(6) < lengths)[rank * batch : (rank + 1) * batch]
        target = x.roll(1, dims=1).masked_fill(~counted, -100)
        tokens = counted.sum().double()
        if normalize == "all":
            dist.all_reduce(tokens)
            tokens /= ranks
        guessed = model(x).flatten(0, 1)
        loss = F.cross_entropy(guessed, target.flatten(), reduction="sum") / tokens
        optimizer.zero_grad()
        loss.backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
            weight.grad /= ranks
        optimizer.step()


check(train, ranks=4, one={"batch": 32}, many={"batch": 8})

# %% [markdown]
# The answer names the first tensor that differs and the cause, read off the
# numbers: the ranks hold unequal numbers of tokens, and their means were averaged
# as if they were equal. Loss curves do not show it. Dividing by the mean number of
# tokens of all ranks makes the two runs agree, as far as rounding allows:

# %%
check(train, ranks=4, one={"batch": 32}, many={"batch": 8, "normalize": "all"})

# %% [markdown]
# ## Your turn
#
# Replace `train` by your loop. It must see the same samples on one process as on
# all ranks together, which is why it takes its batch size as an argument. Or leave
# the notebook:
#
# - `atlas check train.py --ranks 4 --one "--batch 32" --many "--batch 8"` checks a
#   script as it is.
# - `atlas check mymodule:MyDDP --contract data-parallel` checks a part.
#   [All contracts](../check.md).
# - `atlas meter --ranks 4 train.py` shows [what it sends, and from where](../meter.md).
# - [Bugs by symptom](../bugs.md) explains each diagnosis on a short program.
