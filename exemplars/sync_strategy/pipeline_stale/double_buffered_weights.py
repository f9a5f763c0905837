"""Double-buffered weights: no flush, two versions, and a delay of exactly one.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.pipeline_stale.double_buffered_weights

Weight stashing makes a version per micro-batch, so the first stage holds p of
them. Here the gradients of m micro-batches add up to one update, and batch k
uses version k-1 at every stage, though the last stages already have version
k. For p = 3, m = 2, with v the version, and * where a batch is complete:

    stage 0  F0v0 F1v0 F2v0 B0 F3v0 B1* F4v1 B2  F5v1 B3* F6v2 ...
    stage 1       F0v0 F1v0 B0 F2v0 B1* F3v0 B2  F4v1 B3* F5v1 ...
    stage 2            F0v0 B0 F1v0 B1* F2v0 B2  F3v0 B3* F4v1 ...

Version k+1 comes from version k and from gradients at version k-1:
w[k+1] = w[k] - rate * gradient(w[k-1]), a delay of one update for any p. Once
batch k is complete nobody asks for version k-1, so two buffers suffice. The
condition: version k-1 must exist on the first stage when batch k comes in.
At most p-1 micro-batches are then on their way, so m >= p-1 is enough.

Source: Narayanan et al. 2021 (PipeDream-2BW), section 3.1.
"""

import copy
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from exemplars.parameter_distribution.inter_layer.layer_partition import Part
from exemplars.runtime import World, meter, report, span, world
from exemplars.sync_strategy.pipeline_flush.one_f_one_b import (
    exchange,
    one_f_one_b,
)
from exemplars.workload import Step, Task, digits, equal_layers


class Stage:
    """A part of the model in two versions: the newest, and the one before."""

    def __init__(self, w: World, task: Task, *cost: float) -> None:
        self.part, self.rank, self.cost = Part(w, task), w.rank, cost
        self.newest, self.versions = 0, {0: self.part.layers}
        self.waiting: dict[int, tuple[Tensor, Tensor]] = {}
        self.outgoing: tuple[Tensor | None, int] = None, w.rank

    def forward(self, j: int, version: int, n: int, *pair: Tensor) -> None:
        """Micro-batch j, a part of a batch of n, through this version."""
        x = self.part.entering(pair[0])
        exchange(*self.outgoing, x, self.rank - 1)
        self.part.layers = self.versions[version]
        with span("F", label=j, cost=self.cost[0]):
            y = self.part.forward(x, pair[1], n)
        self.waiting[j] = x, y
        self.outgoing = y.detach(), self.rank + 1

    def backward(self, j: int) -> float:
        """Gradients add up in the version that the forward went through."""
        x, y = self.waiting.pop(j)
        dy = torch.empty_like(y)
        exchange(*self.outgoing, dy, self.rank + 1)
        with span("B", label=j, cost=self.cost[1]):
            #: Nothing is stashed: the version stays as it is until the last
            #: micro-batch of its batch is back.
            y.backward(None if self.part.last else dy)
        self.outgoing = x.grad, self.rank - 1
        return y.item() if self.part.last else float("nan")

    def update(self, version: int, rate: float) -> int:
        """One version more, from the gradients at an old one; their age."""
        current, used = self.newest, self.versions[version]
        made = copy.deepcopy(self.versions[current])
        for weight, old in zip(made.parameters(), used.parameters()):
            assert old.grad is not None
            weight.data.sub_(old.grad, alpha=rate)
            #: The first version serves two batches.
            old.grad = None
        #: Two buffers: what is on its way now belongs to the next batch,
        #: which uses the version that has been the newest so far.
        self.versions = {current: self.versions[current], current + 1: made}
        self.part.layers, self.newest = made, current + 1
        return current - version


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    batch: int,
    microbatches: int,
    rate: float,
    forward: float = 1,
    backward: float = 2,
) -> Iterator[Step]:
    """A step is a batch; costs are virtual seconds of a micro-batch."""
    w.require(microbatches >= w.size - 1, f"{microbatches} are too few")
    stage, loss = Stage(w, task, forward, backward), 0.0
    load = lru_cache(1)(task.batch)
    #: The order of 1F1B, as if all of training were one batch: no flush.
    for kind, j in one_f_one_b(w.rank, w.size, steps * microbatches):
        k, part = divmod(j, microbatches)
        #: Also where version k exists already: a batch has one version, and
        #: it is the same at all stages.
        version = max(0, k - 1)
        if kind == "F":
            whole = (t.to(w.device) for t in load(k, batch))
            x, y = (t.tensor_split(microbatches)[part] for t in whole)
            stage.forward(j, version, batch, x, y)
            continue
        loss += stage.backward(j)
        #: After the last backward of a batch; no other stage is asked.
        if part == microbatches - 1:
            age = stage.update(version, rate)
            yield Step(loss, [*stage.part.layers.parameters()], age)
            loss = 0.0
    exchange(*stage.outgoing, None, w.rank)


def reference(
    w: World, task: Task, *, steps: int, batch: int, rate: float
) -> tuple[Tensor, list[Tensor]]:
    """One process, whole batches, every gradient one update late.

    Returns the losses, and this rank's weights.
    """
    older, newest = task.model().to(w.device), task.model().to(w.device)
    losses = []
    for k in range(steps):
        x, labels = (t.to(w.device) for t in task.batch(k, batch))
        losses.append(task.loss(older, x, labels) / batch)
        grads = torch.autograd.grad(losses[-1], [*older.parameters()])
        older = copy.deepcopy(newest)
        for weight, grad in zip(newest.parameters(), grads):
            weight.data -= rate * grad
    own = nn.Sequential(*newest.children())[w.rank]
    return torch.stack(losses).detach(), [*own.parameters()]


def main(
    w: World,
    *,
    steps: int = 4,
    samples: int = 5,
    spare: int = 0,
    rate: float = 0.5,
    forward: float = 1,
    backward: float = 2,
) -> None:
    w.require(steps > 1, f"{steps} step makes one version, not two; use 2")
    #: As few micro-batches in a batch as there can be, and some to spare.
    parts = max(1, w.size - 1) + spare
    task = Task("digits", lambda: equal_layers(w.size, 64), digits.batch)
    sizes: Any = dict(steps=steps, batch=samples * parts, rate=rate)
    own: Any = dict(microbatches=parts, forward=forward, backward=backward)
    newest, losses = list[Tensor](), list[float]()
    with w.memory(parameters=lambda: newest) as memory, meter() as moved:
        for step in train(w, task, **sizes, **own):
            newest[:] = step.weights
            losses.append(step.loss)
            memory.mark("updated")
    # A sum over micro-batches against one over the batch: rounding only.
    w.check("weights", newest, lambda: reference(w, task, **sizes)[1], 16)
    if w.rank == w.size - 1:
        told = newest[0].new_tensor(losses)
        w.check("loss", told, lambda: reference(w, task, **sizes)[0], 16)
    held = memory.live("updated")["parameters"]
    versions = held / sum(t.nbytes for t in newest)
    given = dict(microbatches=steps * parts, activation_bytes=samples * 64 * 8)
    counts = {"staleness": step.age, "versions": versions}
    report(w, given=given, bytes_sent=moved.bytes_sent, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
