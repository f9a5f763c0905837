"""Vertical sync: a batch meets one version of the weights at all stages.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.pipeline_stale.vertical_sync

With weight stashing alone a stage takes its newest weights, so a batch goes
through old weights at the first stages and newer ones at the last. Vertical
sync gives a batch, at every stage, the version that the first stage had when
the batch came in. For p = 3, with v the version:

    stage 0  F0v0 F1v0 F2v0 B0 F3v1 B1 F4v2 B2 F5v3 ...
    stage 1       F0v0 F1v0 B0 F2v0 B1 F3v1 B2 F4v2 ...
    stage 2            F0v0 B0 F1v0 B1 F2v0 B2 F3v1 ...

Batch i makes update i, and the first stage has made p-1 fewer when the batch
comes in. So the pipeline is one process that applies every gradient p-1
updates late, w[i+1] = w[i] - rate * gradient(w[i-(p-1)]): a delay that is the
same for all layers. The price is memory: every stage holds p versions, also
the last one, which holds a single one when it stashes alone.

Source: Narayanan et al. 2019 (PipeDream), section 3.3.
"""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from exemplars.runtime import World, meter, report, span, world
from exemplars.sync_strategy.pipeline_flush.one_f_one_b import exchange
from exemplars.sync_strategy.pipeline_stale.weight_stashing import (
    Stage,
    without_flush,
)
from exemplars.workload import Step, Task, digits, equal_layers


def entries(stages: int, batches: int) -> Iterator[int]:
    """For each batch, the version that the first stage has as it comes in."""
    version = 0
    #: The order of work is known to all, so every stage can work out what
    #: the first one does, and no version number has to travel.
    for kind, _ in without_flush(0, stages, batches):
        if kind == "F":
            yield version
        version += kind == "B"


class Synced(Stage):
    """A stage that also keeps the versions of batches yet to come."""

    def __init__(
        self, w: World, task: Task, rate: float, entered: Sequence[int]
    ) -> None:
        super().__init__(w, task, rate)
        self.entered, self.versions = entered, {0: self.part.layers}

    def forward(self, i: int, x: Tensor, labels: Tensor) -> Tensor:
        """Batch i through the version it met on the first stage."""
        newest = self.version
        #: The stage steps back to an old version, stashes that one for the
        #: backward, and returns to its newest.
        self.version = self.entered[i]
        self.part.layers = self.versions[self.version]
        y = super().forward(i, x, labels)
        self.version, self.part.layers = newest, self.versions[newest]
        return y

    def backward(self, i: int, dy: Tensor) -> tuple[Tensor | None, int]:
        """As with stashing alone; then forget what no batch will ask for."""
        result = super().backward(i, dy)
        self.versions[self.version] = self.part.layers
        #: Those that are here have stashed theirs. The next to come has the
        #: oldest version of all that are still to come.
        coming = i + 1 + len(self.stashed)
        oldest = min(self.entered[coming:], default=self.version)
        for version in [v for v in self.versions if v < oldest]:
            del self.versions[version]
        return result


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    batch: int,
    rate: float,
    forward: float = 1,
    backward: float = 2,
) -> Iterator[Step]:
    """A step is a batch; forward and backward are its virtual seconds."""
    stage = Synced(w, task, rate, [*entries(w.size, steps)])
    outgoing, target = None, w.rank
    #: The order of weight stashing, with the same messages: only the weights
    #: that a batch meets are others.
    for kind, i in without_flush(w.rank, w.size, steps):
        if kind == "F":
            samples, labels = (t.to(w.device) for t in task.batch(i, batch))
            x = stage.part.entering(samples)
            exchange(outgoing, target, x, w.rank - 1)
            with span("F", label=i, cost=forward):
                outgoing, target = stage.forward(i, x, labels), w.rank + 1
        else:
            y = stage.stashed[i].y.detach()
            dy = torch.empty_like(y)
            exchange(outgoing, target, dy, w.rank + 1)
            with span("B", label=i, cost=backward):
                outgoing, age = stage.backward(i, dy)
            target = w.rank - 1
            loss = y.item() if stage.part.last else float("nan")
            yield Step(loss, [*stage.part.layers.parameters()], age)
    exchange(outgoing, target, None, w.rank)


def reference(
    w: World, task: Task, *, steps: int, batch: int, rate: float
) -> tuple[Tensor, list[Tensor]]:
    """One process whose every gradient is p-1 updates late.

    Returns the losses, and this rank's weights.
    """
    history, losses = [task.model().to(w.device)], []
    for i in range(steps):
        x, labels = (t.to(w.device) for t in task.batch(i, batch))
        #: The whole model at one version: this is what vertical sync buys.
        used = history[max(0, i - (w.size - 1))]
        losses.append(task.loss(used, x, labels) / batch)
        grads = torch.autograd.grad(losses[-1], [*used.parameters()])
        history.append(copy.deepcopy(history[-1]))
        for weight, grad in zip(history[-1].parameters(), grads):
            weight.grad = grad
        torch.optim.SGD(history[-1].parameters(), lr=rate).step()
    own = nn.Sequential(*history[-1].children())[w.rank]
    return torch.stack(losses), [*own.parameters()]


def main(
    w: World,
    *,
    batches_per_stage: int = 2,
    batch: int = 5,
    rate: float = 0.5,
    forward: float = 1,
    backward: float = 2,
) -> None:
    w.require(batches_per_stage > 1, f"{batches_per_stage}: use 2 or more")
    task = Task("digits", lambda: equal_layers(w.size, 64), digits.batch)
    sizes: Any = dict(steps=batches_per_stage * w.size, batch=batch, rate=rate)
    cost: Any = dict(forward=forward, backward=backward)
    newest, losses, ages = list[Tensor](), list[float](), list[int]()
    with w.memory(parameters=lambda: newest) as memory, meter() as moved:
        for i, step in enumerate(train(w, task, **sizes, **cost)):
            newest[:] = step.weights
            losses.append(step.loss)
            ages.append(step.age)
            #: Whatever is alive here counts: versions for batches to come,
            #: those that a stash still holds, and the newest one.
            memory.mark(f"step {i}")
    w.check("weights", newest, lambda: reference(w, task, **sizes)[1], 0)
    if w.rank == w.size - 1:
        told = newest[0].new_tensor(losses)
        w.check("loss", told, lambda: reference(w, task, **sizes)[0], 0)
    w.check_same("one_version", torch.tensor(ages))
    held = memory.live(f"step {w.size}")["parameters"]
    versions = held / sum(t.nbytes for t in newest)
    given = dict(microbatches=sizes["steps"], activation_bytes=batch * 64 * 8)
    counts = {"staleness": max(ages), "versions": versions}
    report(w, given=given, bytes_sent=moved.bytes_sent, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
