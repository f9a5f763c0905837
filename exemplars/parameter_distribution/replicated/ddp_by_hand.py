"""Data parallelism by hand: gradients leave while backward still computes.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.replicated.ddp_by_hand

Source: Li et al. 2020.

All gradients are views of one vector, laid out in the order in which backward
finds them: the last layer's first. A hook on every parameter says when its
gradient is complete, and whatever bucket is then full leaves at once:

    backward      head   block 1   block 0   embedding
    vector       [ bucket 0 | bucket 1 | bucket 2 | .. ]
    network                  bucket 0   bucket 1   bucket 2 ..

Of k micro-batches only the last one sends; the others just add up. Each loss
is divided by the tokens of the whole batch, on all ranks: sentences have many
lengths, and a mean of means would favour the short ones.

A weight that is used twice (here the embedding, which is the head as well)
is one parameter with one gradient, complete after its last use. A frozen one
has none, and no place in the vector.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import CONTEXT, Step, characters

STEPS, MICROS, RATE = 2, 3, 0.5
BATCH = 50  # sentences; micro-batches are uneven
BUCKET = 1500  # elements
IGNORED = -100  # the label of a place beyond a sentence's end


class Replica:
    """A model whose gradients are one vector, and know when to leave."""

    def __init__(self, model: nn.Module) -> None:
        #: parameters() yields a tied weight once.
        learn = [p for p in model.parameters() if p.requires_grad][::-1]
        self.learn, self.sizes = learn, [p.numel() for p in learn]
        self.vector = torch.cat([torch.zeros_like(p).view(-1) for p in learn])
        self.early = 0
        for i, part in enumerate(self.vector.split(self.sizes)):
            learn[i].grad = part.view_as(learn[i])  # backward adds to it
            told = partial(self.arrived, i)
            learn[i].register_post_accumulate_grad_hook(told)

    def begin(self, last: bool) -> None:
        """Before a backward; only the last micro-batch's gradients leave."""
        self.waiting = set(range(len(self.learn)))
        self.buckets = self.vector.split(BUCKET) if last else ()
        self.works: list[Any] = []

    def arrived(self, i: int, _: Tensor) -> None:
        """The gradient of parameter i is complete, for this micro-batch."""
        with span("gradient", label=i, cost=1):
            self.waiting.discard(i)
        #: Up to the first one missing, so that the buckets leave in the same
        #: order on all ranks, even if gradients did not come in order.
        full = sum(self.sizes[: min(self.waiting, default=None)])
        ready = full // BUCKET if self.waiting else len(self.buckets)
        for bucket in self.buckets[len(self.works) : ready]:
            self.works.append(dist.all_reduce(bucket, async_op=True))
            self.early += bool(self.waiting)

    def finish(self) -> None:
        """Wait for the buckets, step, and start anew."""
        for work in self.works:
            work.wait()
        with span("update", cost=1), torch.no_grad():
            for p, part in zip(self.learn, self.vector.split(self.sizes)):
                p.sub_(part.view_as(p), alpha=RATE)
        self.vector.zero_()


def train(w: World, model: nn.Module, replica: Replica) -> Iterator[Step]:
    """Each rank on its micro-batches of every batch."""
    for step in range(STEPS):
        x, y = sentences(w, step)
        parts = torch.arange(BATCH).tensor_split(w.size * MICROS)
        mine = parts[w.rank * MICROS : (w.rank + 1) * MICROS]
        dist.all_reduce(tokens := (y[torch.cat(mine)] != IGNORED).sum())
        for k, rows in enumerate(mine):
            with span("forward", label=k, cost=4):
                loss = characters.loss(model, x[rows], y[rows]) / tokens
            replica.begin(last=k == MICROS - 1)
            loss.backward()
        replica.finish()
        yield Step(samples=BATCH, loss=loss.item())


def sentences(w: World, step: int) -> tuple[Tensor, Tensor]:
    """Of 1 to 16 letters; places beyond the end do not count."""
    x, y = (t.to(w.device) for t in characters.batch(step, BATCH))
    length = 1 + torch.arange(BATCH, device=w.device) ** 2 % CONTEXT
    beyond = torch.arange(CONTEXT, device=w.device) >= length[:, None]
    return x, y.masked_fill(beyond, IGNORED)


def network(w: World) -> nn.Module:
    """The embedding is the head's matrix too; the places are frozen."""
    model = characters.model().to(w.device)
    letters = model.get_parameter("0.letter.weight")
    model.get_submodule("4").register_parameter("weight", letters)
    model.get_parameter("0.place.weight").requires_grad_(False)
    return model


def reference(w: World) -> list[Tensor]:
    """One process, whole batches."""
    model = network(w)
    learn = [p for p in model.parameters() if p.requires_grad]
    for step in range(STEPS):
        x, y = sentences(w, step)
        loss = characters.loss(model, x, y) / (y != IGNORED).sum()
        with torch.no_grad():
            for p, g in zip(learn, torch.autograd.grad(loss, learn)):
                p.sub_(g, alpha=RATE)
    return [*model.parameters()]


def main(w: World) -> None:
    replica = Replica(model := network(w))
    all_of_it = [*model.parameters()]
    grads = [replica.vector]
    memory = w.memory(parameters=model.parameters, gradients=lambda: grads)
    with memory, meter() as moved:
        for _ in train(w, model, replica):
            memory.mark("step")
    # float64; another order of additions, amplified by a few steps
    w.check("parameters", all_of_it, lambda: reference(w), slack=64)
    w.check_same("same", all_of_it)
    n, e, live = len(replica.vector), replica.sizes[-1], memory.live("step")
    z = sum(p.numel() for p in all_of_it) - n
    given = {"n": n, "z": z, "e": e, "b": 8, "c": BUCKET, "t": STEPS}
    state = live["parameters"] + live["gradients"]
    found = {"calls": moved.count, "payload": moved.payload, "state": state}
    report(w, given=given, early=replica.early, **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
