"""Weight stashing: the pipeline never empties; each batch keeps its version.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.pipeline_stale.weight_stashing

A stage updates its weights after every backward and goes on, so the pipeline
fills once in a training and not once in a batch. For p = 3, with v the
version of the weights that a batch goes forward through:

    stage 0  F0v0 F1v0 F2v0 B0 F3v1 B1 F4v2 B2 F5v3 ...
    stage 1       F0v0 F1v0 B0 F2v1 B1 F3v2 B2 F4v3 ...
    stage 2            F0v0 B0 F1v1 B1 F2v2 B2 F3v3 ...

Between a batch's forward and its backward, stage s makes p-1-s updates. A
backward multiplies by the weights, as in dx = dz A^T, and must use those of
its own forward: with any others it computes the gradient of nothing. So a
stage stashes old weights, p-s versions at once. The gradient is then a true
one, but at weights that are p-1-s versions old, and each stage has another
age.

Source: Narayanan et al. 2019 (PipeDream), section 3.3.
"""

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from exemplars.parameter_distribution.inter_layer.layer_partition import Part
from exemplars.runtime import Action, World, meter, report, span, world
from exemplars.sync_strategy.pipeline_flush.one_f_one_b import exchange
from exemplars.workload import Step, Task, digits, equal_layers


def without_flush(stage: int, stages: int, batches: int) -> Iterator[Action]:
    """Fill once, then one forward, one backward, until training ends."""
    ahead = min(batches, stages - 1 - stage)
    yield from (Action("F", i) for i in range(ahead))
    for i in range(batches):
        if ahead + i < batches:
            yield Action("F", ahead + i)
        yield Action("B", i)


class Stash(NamedTuple):
    """What a batch's backward needs of its forward."""

    version: int
    layers: nn.Module
    x: Tensor
    y: Tensor


class Stage:
    """A part of the model: the newest version, and those still in use."""

    def __init__(self, w: World, task: Task, rate: float) -> None:
        self.part, self.rate, self.version = Part(w, task), rate, 0
        self.stashed: dict[int, Stash] = {}

    def forward(self, i: int, x: Tensor, labels: Tensor) -> Tensor:
        """Batch i through the newest weights, which are stashed for it."""
        y = self.part.forward(x, labels, labels.numel())
        #: By reference: batches that meet the same version share it.
        self.stashed[i] = Stash(self.version, self.part.layers, x, y)
        return y.detach()

    def backward(self, i: int, dy: Tensor) -> tuple[Tensor | None, int]:
        """Back through the stashed weights; what goes on, and their age."""
        version, layers, x, y = self.stashed.pop(i)
        weights = [*layers.parameters()]
        inputs = weights if self.part.first else [*weights, x]
        #: Of one batch: .backward() would add it to what other batches left
        #: in the same version.
        grads = torch.autograd.grad(y, inputs, None if self.part.last else dy)
        #: A copy: in place, the update would change every stashed version.
        newest = copy.deepcopy(self.part.layers)
        #: An old gradient, applied to the newest weights.
        for weight, grad in zip(newest.parameters(), grads):
            weight.data.sub_(grad, alpha=self.rate)
        self.part.layers = newest
        age, self.version = self.version - version, self.version + 1
        return None if self.part.first else grads[-1], age


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
    stage = Stage(w, task, rate)
    outgoing, target = None, w.rank
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
    #: What the last backward made has yet to leave.
    exchange(outgoing, target, None, w.rank)


def reference(
    w: World, task: Task, *, steps: int, batch: int, rate: float
) -> tuple[Tensor, list[Tensor]]:
    """The stale updates on one process: versions by index, no pipeline.

    Returns the losses, and this rank's weights.
    """
    history = [[part] for part in task.model().to(w.device).children()]
    losses = []
    for i in range(steps):
        h, labels = (t.to(w.device) for t in task.batch(i, batch))
        used, newest = nn.Sequential(), nn.Sequential()
        for s, versions in enumerate(history):
            used.append(versions[max(0, i - (w.size - 1 - s))])
            newest.append(copy.deepcopy(versions[-1]))
            versions.append(newest[s])
        losses.append(task.loss(used, h, labels) / batch)
        grads = torch.autograd.grad(losses[-1], [*used.parameters()])
        for weight, grad in zip(newest.parameters(), grads):
            weight.grad = grad
        torch.optim.SGD(newest.parameters(), lr=rate).step()
    return torch.stack(losses), [*history[w.rank][-1].parameters()]


def main(
    w: World,
    *,
    batches_per_stage: int = 2,
    batch: int = 5,
    rate: float = 0.5,
    forward: float = 1,
    backward: float = 2,
) -> None:
    few = f"{batches_per_stage} batches per stage do not fill it; use 2"
    w.require(batches_per_stage > 1, few)
    task = Task("digits", lambda: equal_layers(w.size, 64), digits.batch)
    sizes: Any = dict(steps=batches_per_stage * w.size, batch=batch, rate=rate)
    cost: Any = dict(forward=forward, backward=backward)
    newest, losses, ages = list[Tensor](), list[float](), list[int]()
    with w.memory(parameters=lambda: newest) as memory, meter() as moved:
        for i, step in enumerate(train(w, task, **sizes, **cost)):
            newest[:] = step.weights
            losses.append(step.loss)
            ages.append(step.age)
            #: Whatever is alive here counts: the newest weights, and those
            #: that a stash still holds.
            memory.mark(f"step {i}")
    w.check("weights", newest, lambda: reference(w, task, **sizes)[1], 0)
    if w.rank == w.size - 1:
        told = newest[0].new_tensor(losses)
        w.check("loss", told, lambda: reference(w, task, **sizes)[0], 0)
    held = memory.live(f"step {w.size - 1}")["parameters"]
    versions = held / sum(t.nbytes for t in newest)
    given = dict(microbatches=sizes["steps"], activation_bytes=batch * 64 * 8)
    counts = {"staleness": max(ages), "versions": versions}
    report(w, given=given, bytes_sent=moved.bytes_sent, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
