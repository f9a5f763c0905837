"""Token-level pipeline: the slices of one sequence follow one another.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.pipeline_flush.token_level_pipeline

In a causal model no token looks ahead. So a stage can work on the first
tokens of a sequence while the stage before is still at the next ones, and a
batch of a single sequence fills the pipeline. With M slices in the place of
micro-batches, p = 3 and M = 4, second by second:

    stage 0  F0 F1 F2 F3 .  .  .  .  .  .  B3 B3 B2 B2 B1 B1 B0 B0
    stage 1  .  F0 F1 F2 F3 .  .  .  B3 B3 B2 B2 B1 B1 B0 B0 .  .
    stage 2  .  .  F0 F1 F2 F3 B3 B3 B2 B2 B1 B1 B0 B0 .  .  .  .

The order is GPipe's, and so is the code: with the tokens in the place of the
samples, a micro-batch is a slice. But slices are not independent. Attention
of slice j reads the keys and values of slices 0 to j, which stay on their
stage and never travel. In backward, the gradient of a slice's keys is a sum
over all slices that have read them, so the last slice goes back first:

    dk[j] = sum over i >= j of what slice i contributes

What travels are the tokens' activations, each once, however they are sliced.

Source: Li et al. 2021 (TeraPipe).
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector

from exemplars.runtime import Held, World, meter, report, world
from exemplars.sync_strategy.pipeline_flush.gpipe import train as gpipe
from exemplars.workload import Block, Step, Task, seeded

WIDTH, HEADS = 16, 2

Pair = list[Tensor]  # keys and values


class Sliced(nn.Module):
    """A transformer layer that meets a sequence slice by slice."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = block
        self.past: list[Pair] = []

    def forward(self, x: Tensor) -> Tensor:
        """(tokens of a slice, batch, width) to the same."""
        x, block = x.transpose(0, 1), self.block
        q, *new = block.qkv(block.norm1(x)).chunk(3, dim=-1)
        #: Those of earlier slices as they were computed: nothing is computed
        #: twice, and nothing comes from another rank.
        k, v = (torch.cat(t, dim=1) for t in zip(*self.past, new))
        x = x + block.out(attend(q, k, v))
        y = x + block.down(F.gelu(block.up(block.norm2(x))))
        if torch.is_grad_enabled():
            y = Later.apply(y, self.past, *new)
            #: Later slices read a copy with no graph behind it, where their
            #: gradients can add up.
            self.past.append([t.detach().requires_grad_() for t in new])
        return y.transpose(0, 1).contiguous()


class Later(torch.autograd.Function):
    """Brings the gradients of later slices to this slice's keys and values."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, past: list[Pair], *new: Tensor) -> Tensor:
        """Nothing but y."""
        ctx.past = past
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """The sums are complete: all later slices have gone back."""
        #: Slices go back from the last to the first, so this one's are the
        #: newest that are left; those of the last slice nobody has read.
        dk, dv = (t.grad for t in ctx.past.pop())
        return dy, None, dk, dv


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of the last tokens to all so far."""
    q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q, k, v))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    #: Row i of a slice is token i + (those before it) of the sequence.
    before = k.shape[-2] - q.shape[-2]
    future = torch.ones_like(scores, dtype=torch.bool).triu(1 + before)
    weights = scores.masked_fill(future, float("-inf")).softmax(-1)
    return (weights @ v).transpose(1, 2).flatten(2)


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    batch: int,
    slices: int,
    rate: float,
    forward: float = 1,
    backward: float = 2,
) -> Iterator[Step]:
    """Plain SGD; a layer of the task per stage, tokens in front of samples."""

    def model() -> nn.Module:
        blocks: Any = task.model().children()
        return nn.Sequential(*(Sliced(block) for block in blocks))

    def tokens_first(step: int, size: int) -> tuple[Tensor, Tensor]:
        x, labels = task.batch(step, size)
        return x.transpose(0, 1), labels.transpose(0, 1)

    #: GPipe cuts the first dimension, which is now time.
    sliced = Task(task.name, model, tokens_first)
    sizes: Any = dict(steps=steps, batch=batch, rate=rate)
    cost: Any = dict(forward=forward, backward=backward)
    yield from gpipe(w, sliced, microbatches=slices, **sizes, **cost)


def reference(
    w: World, task: Task, *, steps: int, batch: int, rate: float
) -> tuple[Tensor, Tensor]:
    """Whole sequences on one process: losses, and this rank's weights."""
    model = task.model().to(w.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    losses = []
    for step in range(steps):
        x, labels = (t.to(w.device) for t in task.batch(step, batch))
        losses.append(task.loss(model, x, labels) / labels.numel())
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    own = [*model.children()][w.rank]
    return torch.stack(losses).detach(), parameters_to_vector(own.parameters())


def layers(w: World, held: Held | None = None) -> nn.Module:
    """A transformer layer per stage, this rank's watched from outside."""
    blocks = [Block(WIDTH, HEADS) for _ in range(w.size)]
    if held is not None:
        blocks[w.rank].qkv.register_forward_hook(held)
    return nn.Sequential(*blocks)


def main(
    w: World,
    *,
    steps: int = 2,
    batch: int = 3,
    tokens: int = 17,
    slices: int = 5,
    forward: float = 1,
    backward: float = 2,
) -> None:
    w.require(slices <= tokens, f"{slices} slices of {tokens} tokens")
    #: 17 tokens in 5 slices: their lengths differ by one.

    def samples(step: int, size: int) -> tuple[Tensor, Tensor]:
        x = w.randn(size, tokens, WIDTH, seed=step)
        return x, x.argmax(dim=-1).roll(1, dims=1)

    held = Held()
    task = Task("tokens", seeded(partial(layers, w)), samples)
    watched = Task("tokens", seeded(partial(layers, w, held)), samples)
    sizes: Any = dict(steps=steps, batch=batch, rate=0.5)
    cost: Any = dict(forward=forward, backward=backward)
    training = train(w, watched, slices=slices, **sizes, **cost)
    with meter() as moved:
        seen = [next(training)]  # one flush is counted, the others only train
    seen.extend(training)
    weights = parameters_to_vector(seen[-1].weights).detach()
    w.check("parameters", weights, lambda: reference(w, task, **sizes)[1], 64)
    if w.rank == w.size - 1:
        losses = weights.new_tensor([step.loss for step in seen])
        w.check("loss", losses, lambda: reference(w, task, **sizes)[0], 16)
    given = {"width": WIDTH, "itemsize": 8}
    report(w, given=given, bytes_sent=moved.bytes_sent, in_flight=held.most)


if __name__ == "__main__":
    with world() as w:
        main(w)
