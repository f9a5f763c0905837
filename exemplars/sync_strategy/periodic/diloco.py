"""DiLoCo: AdamW alone for H steps, Nesterov momentum on what all have moved.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.periodic.diloco

All ranks start a period at the same weights c and take H steps of AdamW on
batches of their own. The mean of what they have moved is treated as a
gradient, the outer one, and an outer optimizer steps with it:

    d  =  mean over all ranks of (c - x_r)
    v  <-  0.9 v + d
    c  <-  c - 0.7 (d + 0.9 v)          (Nesterov: the step looks ahead)

Then all ranks go on from c. With rate 1 and no momentum c becomes the mean of
the weights: plain averaging. Momentum carries a direction that all ranks
agree on through several periods, so H may be hundreds, and ranks may be
continents apart. Only d travels; AdamW's moments stay on their rank. The
price is two more copies of the weights: where the period began, and v.

Source: Douillard et al. 2023, algorithm 1.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import SGD, AdamW

from exemplars.runtime import Clock, World, meter, report, span, world
from exemplars.sync_strategy.periodic.local_sgd import UNEVEN, ends_a_period
from exemplars.workload import Step, Task, characters, digits


class Outer:
    """Where the period began, and the outer momentum; the same everywhere."""

    def __init__(self, start: Tensor, rate: float, momentum: float) -> None:
        self.start = start.clone()
        self.velocity = torch.zeros_like(start)
        self.rate = rate
        self.momentum = momentum

    def meet(self, x: Tensor) -> None:
        """Take the outer step; x becomes the weights that all go on from."""
        #: How far this rank has come, from where all began: it points uphill,
        #: as a gradient does, because the optimizer will subtract it.
        change = self.start - x
        dist.all_reduce(change)
        change /= dist.get_world_size()
        self.velocity.mul_(self.momentum).add_(change)
        #: Nesterov's step looks ahead: along the change, and along the
        #: momentum that already contains it.
        ahead = change + self.momentum * self.velocity
        self.start -= self.rate * ahead
        #: A copy: AdamW works in place, and must not move the start along.
        x.copy_(self.start)


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    period: int,
    local_batch: int,
    rate: float = 0.01,
    outer_rate: float = 0.7,
    momentum: float = 0.9,
    clock: Clock = UNEVEN,
) -> Iterator[Step]:
    """AdamW alone, and a meeting at the end of every period."""
    model = task.model().to(w.device)
    #: Never reset: a meeting moves the weights under AdamW's feet, and its
    #: moments stay what this rank's own gradients made them.
    inner = AdamW(model.parameters(), lr=rate)
    x = parameters_to_vector(model.parameters()).detach()
    outer = Outer(x, outer_rate, momentum)
    for step in range(steps):
        rows, labels = task.batch(step * w.size + w.rank, local_batch)
        rows, labels = rows.to(w.device), labels.to(w.device)
        with span("AdamW", label=step, cost=clock(w.rank, step)):
            loss = task.loss(model, rows, labels) / labels.numel()
            inner.zero_grad()
            loss.backward()
            inner.step()
        if ends_a_period(step, steps, period):
            x = parameters_to_vector(model.parameters()).detach()
            outer.meet(x)
            vector_to_parameters(x, model.parameters())
        #: Between meetings one would keep the start: all ranks agree on it.
        yield Step(loss.item(), [outer.start])


def reference(w: World, task: Task, size: dict[str, Any]) -> Tensor:
    """All ranks on one process, and torch's own Nesterov as the outer step."""
    models = [task.model().to(w.device) for _ in range(w.size)]
    inner = [AdamW(m.parameters(), lr=size["rate"]) for m in models]
    center = parameters_to_vector(models[0].parameters()).detach()
    outer = SGD([center], size["outer_rate"], size["momentum"], nesterov=True)
    for first in range(0, size["steps"], size["period"]):
        last = min(first + size["period"], size["steps"])
        for r, (model, adam) in enumerate(zip(models, inner)):
            for step in range(first, last):
                x, y = task.batch(step * w.size + r, size["local_batch"])
                x, y = x.to(w.device), y.to(w.device)
                loss = task.loss(model, x, y) / y.numel()
                slope = torch.autograd.grad(loss, list(model.parameters()))
                for p, g in zip(model.parameters(), slope):
                    p.grad = g
                adam.step()
        every = [parameters_to_vector(m.parameters()) for m in models]
        center.grad = center - torch.stack(every).mean(0).detach()
        outer.step()
        for model in models:
            vector_to_parameters(center.clone(), model.parameters())
    return center


def mean(w: World, elements: int) -> Tensor:
    """Of what all ranks bring to the meeting that is plain averaging."""
    every = [w.randn(elements, seed=r) for r in range(w.size)]
    return torch.stack(every).mean(0)


def main(
    w: World,
    *,
    steps: int = 8,
    period: int = 3,
    outer_rate: float = 0.7,
    momentum: float = 0.9,
) -> None:
    w.require(min(steps, period) > 0, f"{steps} steps, H = {period}: none")
    size: Any = dict(steps=steps, period=period, local_batch=8, rate=0.01)
    size |= dict(outer_rate=outer_rate, momentum=momentum)
    for task in (digits, characters):
        with meter() as moved:
            for done in train(w, task, **size):
                trained = done.weights[0]
        #: One rank checks: that all have the same bits is checked below.
        if w.rank == 0:
            # AdamW divides by roots that may be tiny: roundings grow there.
            alone = partial(reference, w, task, size)
            w.check(task.name, trained, alone, slack=2**14)
        w.check_same("same", trained)
    x = w.randn(len(trained), seed=w.size)
    plain = Outer(x, rate=1, momentum=0)
    #: In place, as an optimizer works: the start must not move along.
    x.copy_(w.randn(len(x), seed=w.rank))
    plain.meet(x)
    w.check("averaged", x, partial(mean, w, len(x)), slack=4)
    held = [t.nbytes for t in vars(plain).values() if isinstance(t, Tensor)]
    given = {"elements": len(x), "itemsize": x.element_size()}
    counts = dict(calls=moved.count, payload=moved.payload)
    report(w, given=given, outer_state=sum(held), **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
