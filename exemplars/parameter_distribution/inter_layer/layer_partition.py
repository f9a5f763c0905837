"""Layer partition: each rank holds whole layers; one computes, the rest wait.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.inter_layer.layer_partition

Put each part of the network on a rank of its own. A batch passes through the
ranks in turn, and its gradient returns in reverse order. For p = 3, with a
backward twice as long as a forward, second by second:

    rank 0  F . . . . . . B B     Each rank holds 1/p of the weights
    rank 1  . F . . . B B . .     and is busy for 1/p of the time.
    rank 2  . . F B B . . . .

Only the activation at a cut travels, and its gradient. A partition saves
memory and no time: no two ranks ever compute at once. A pipeline has the same
parts on the same ranks, and cuts the batch as well.

Source: Dean et al. 2012, section 3; Huang et al. 2019 (GPipe).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Step, Task, digits, equal_layers, seeded


class Part:
    """A rank's layers: one child of the model; the last rank has the rest."""

    def __init__(self, w: World, task: Task) -> None:
        self.task, model = task, task.model()
        if not isinstance(model, nn.Sequential) or len(model) < w.size:
            raise ValueError(f"{w.size} ranks: the model has fewer layers")
        self.first, self.last = w.rank == 0, w.rank == w.size - 1
        end = len(model) if self.last else w.rank + 1
        self.layers = nn.Sequential(*list(model)[w.rank : end]).to(w.device)
        self.before = model[: w.rank]
        #: Two ranks would each train a copy, and the copies would drift.
        others = nn.Sequential(self.before, model[end:])
        if not {*others.parameters()}.isdisjoint(self.layers.parameters()):
            raise ValueError(f"rank {w.rank} shares weights with another rank")
        #: On the meta device a tensor has a shape and no numbers: what the
        #: other ranks hold takes no memory here.
        self.before.to("meta")
        self.shaped: dict[torch.Size, Tensor] = {}

    @torch.no_grad()
    def entering(self, x: Tensor) -> Tensor:
        """The samples x on the first rank; elsewhere room for what comes."""
        if self.first:
            return x
        #: Every rank works out the shape by itself, so no shape is sent.
        if x.shape not in self.shaped:
            self.shaped[x.shape] = self.before(x.to("meta"))
        return torch.empty_like(self.shaped[x.shape], device=x.device)

    def forward(self, x: Tensor, labels: Tensor, count: int) -> Tensor:
        """What the layers make of x: on the last rank, loss per label."""
        #: A leaf: backward ends here and leaves the gradient in x.grad.
        x.requires_grad_(not self.first)
        if self.last:
            return self.task.loss(self.layers, x, labels) / count
        return self.layers(x)


def there_and_back(
    w: World, part: Part, x: Tensor, labels: Tensor, cost: dict[str, float]
) -> float:
    """One batch: receive, compute, send; then the same in reverse."""
    if not part.first:
        dist.recv(x, w.rank - 1)
    with span("F", cost=cost["F"]):
        y = part.forward(x, labels, labels.numel())
    dy = torch.empty_like(y)
    if not part.last:
        dist.send(y.detach(), w.rank + 1)
        dist.recv(dy, w.rank + 1)
    with span("B", cost=cost["B"]):
        #: The chain rule across ranks: dy is the gradient of the loss with
        #: respect to what this rank sent, as the next rank computed it.
        y.backward(None if part.last else dy)
    if x.grad is not None:
        dist.send(x.grad.contiguous(), w.rank - 1)
    #: Only the last rank sees the loss.
    return y.item() if part.last else float("nan")


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
    """Plain SGD; forward and backward are virtual seconds on one rank."""
    part = Part(w, task)
    weights = [*part.layers.parameters()]
    optimizer = torch.optim.SGD(weights, lr=rate)
    for step in range(steps):
        x, labels = (t.to(w.device) for t in task.batch(step, batch))
        cost = {"F": forward, "B": backward}
        loss = there_and_back(w, part, part.entering(x), labels, cost)
        optimizer.step()
        optimizer.zero_grad()
        yield Step(loss, weights)


def reference(
    w: World, task: Task, *, steps: int, batch: int, rate: float
) -> tuple[Tensor, Tensor]:
    """The whole model on one process: its losses, and this rank's weights."""
    model = task.model().to(w.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    losses = []
    for step in range(steps):
        x, labels = (t.to(w.device) for t in task.batch(step, batch))
        total = nn.functional.cross_entropy(model(x), labels, reduction="sum")
        losses.append(total / batch)
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    rest = [*model.children()][w.rank :]
    own = nn.Sequential(*(rest if w.rank == w.size - 1 else rest[:1]))
    return torch.stack(losses).detach(), parameters_to_vector(own.parameters())


def uneven(w: World) -> Task:
    """Digits by layers of unequal widths, of which the last rank has two."""

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 10), *equal_layers(w.size, 10))

    return replace(digits, model=seeded(model))


def main(
    w: World,
    *,
    steps: int = 2,
    batch: int = 5,
    rate: float = 0.5,
    forward: float = 1,
    backward: float = 2,
) -> None:
    #: One layer of 64 units for each rank; of the last one's 64 outputs, ten
    #: stand for digits.
    task = replace(digits, model=lambda: equal_layers(w.size, 64))
    sizes: dict[str, Any] = {"steps": steps, "batch": batch, "rate": rate}
    seen: list[Step] = []
    memory = w.memory(parameters=lambda: [*seen[-1].weights] if seen else [])
    with memory, meter() as moved:
        seen += train(w, task, forward=forward, backward=backward, **sizes)
    weights = parameters_to_vector(seen[-1].weights).detach()
    # The same operations in the same order: the same bits.
    w.check("parameters", weights, lambda: reference(w, task, **sizes)[1], 0)
    own = parameters_to_vector([*train(w, uneven(w), **sizes)][-1].weights)
    w.check("parameters", own, lambda: reference(w, uneven(w), **sizes)[1], 0)
    if w.rank == w.size - 1:
        losses = weights.new_tensor([step.loss for step in seen])
        w.check("loss", losses, lambda: reference(w, task, **sizes)[0], 0)
    state = memory.live()["parameters"]
    given = {"microbatches": steps, "activation_bytes": batch * 64 * 8}
    given |= {"width": 64, "itemsize": 8}
    report(w, given=given, bytes_sent=moved.bytes_sent, state=state)


if __name__ == "__main__":
    with world() as w:
        main(w)
