"""Elastic averaging: workers are tied to a center by springs, not merged.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.periodic.elastic_averaging

After every H local steps, worker i is pulled toward the center c, and the
center toward all workers, by the same force:

    x_i  <-  x_i - alpha (x_i - c)
    c    <-  c + sum over i of alpha (x_i - c)          with the old x_i

Workers stay different and keep exploring; the center is what one keeps. What
a spring takes from one end it gives to the other, so c + sum x_i is kept.

The springs have a limit. The gap between the center and the workers' mean is
multiplied by 1 - alpha (p+1) at every meeting: it closes only for

    alpha < 2 / (p+1)

and beyond that the center swings ever wider. So alpha is beta / p with a beta
of about 0.9, whatever p is: here 1 - alpha (p+1) lies between -0.8 and 0.1.

Source: Zhang, Choromanska and LeCun 2015 (synchronous EASGD).
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import Clock, World, meter, report, span, world
from exemplars.sync_strategy.periodic.local_sgd import (
    UNEVEN,
    ends_a_period,
    local_step,
)  # fmt: skip
from exemplars.workload import Step, Task, characters, digits


def meet(x: Tensor, center: Tensor, alpha: float) -> None:
    """Pull this rank's weights and every rank's center together, in place."""
    #: Both ends feel the force of the old positions. Moving one of them
    #: first would weaken the other's pull, and the sum would not be kept.
    pull = alpha * (x - center)
    x -= pull
    #: Every rank keeps a center of its own. All add the same sum to the same
    #: numbers, so the centers stay equal to the last bit.
    dist.all_reduce(pull)
    center += pull


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    period: int,
    beta: float,
    local_batch: int,
    rate: float,
    clock: Clock = UNEVEN,
) -> Iterator[Step]:
    """Local steps, then a pull; the center is what one would keep."""
    model = task.model().to(w.device)
    x = parameters_to_vector(model.parameters()).detach()
    center = x.clone()
    #: From here on the model computes with the memory of x: what a step or a
    #: meeting does to the one, it does to the other.
    vector_to_parameters(x, model.parameters())
    for step in range(steps):
        rows, labels = task.batch(step * w.size + w.rank, local_batch)
        rows, labels = rows.to(w.device), labels.to(w.device)
        with span("step", label=step, cost=clock(w.rank, step)):
            loss = task.loss(model, rows, labels) / labels.numel()
            local_step(model, loss, rate)
        if ends_a_period(step, steps, period):
            #: p workers pull at once, so each may pull only 1/p as hard.
            meet(x, center, beta / w.size)
        yield Step(loss.item(), [center])


def reference(w: World, task: Task, size: dict[str, Any]) -> list[Tensor]:
    """The center and all workers, stepped on one process."""
    models = [task.model().to(w.device) for _ in range(w.size)]
    center = parameters_to_vector(models[0].parameters()).detach()
    for first in range(0, size["steps"], size["period"]):
        last = min(first + size["period"], size["steps"])
        for r, model in enumerate(models):
            sgd = torch.optim.SGD(model.parameters(), lr=size["rate"])
            for step in range(first, last):
                x, y = task.batch(step * w.size + r, size["local_batch"])
                x, y = x.to(w.device), y.to(w.device)
                sgd.zero_grad()
                (task.loss(model, x, y) / y.numel()).backward()
                sgd.step()
        every = [parameters_to_vector(m.parameters()) for m in models]
        pulls = size["beta"] / w.size * (torch.stack(every) - center).detach()
        for model, x, pull in zip(models, every, pulls):
            vector_to_parameters(x.detach() - pull, model.parameters())
        center = center + pulls.sum(0)
    every = [parameters_to_vector(m.parameters()) for m in models]
    return [center, *(x.detach() for x in every)]


def springs(w: World, factor: float, meetings: int) -> None:
    """Without gradients: the sum is kept, and the gap follows its law."""
    alpha = (1 - factor) / (w.size + 1)
    every = torch.stack([w.randn(20, seed=r) for r in range(w.size + 1)])
    x, center = every[w.rank].clone(), every[w.size].clone()
    for _ in range(meetings):
        meet(x, center, alpha)
    total = x.clone()
    dist.all_reduce(total)
    w.check("mass", total + center, lambda: every.sum(0), slack=8 * meetings)
    # A small gap keeps the roundings of the large numbers it is between.
    law = factor**meetings * (every[: w.size].mean(0) - every[w.size])
    gap = total / w.size - center
    w.check("gap", gap, lambda: law, slack=64 * meetings)


def of_one(task: Task, model: nn.Module) -> Task:
    """The task with this very model, so that a caller sees what it becomes."""
    return replace(task, model=lambda: model)


def main(
    w: World, *, steps: int = 7, period: int = 3, beta: float = 0.9
) -> None:
    w.require(min(steps, period) > 0, f"{steps} steps, H = {period}: none")
    size: Any = dict(steps=steps, period=period, beta=beta)
    size |= dict(local_batch=8, rate=0.2)
    for task in (digits, characters):
        model = task.model().to(w.device)
        with meter() as moved:
            for done in train(w, of_one(task, model), **size):
                center = done.weights[0]
        mine = parameters_to_vector(model.parameters()).detach()
        #: The workers too: the center alone would not show a step that one
        #: of them takes after the last meeting.
        workers = [torch.empty_like(mine) for _ in range(w.size)]
        dist.all_gather(workers, mine)
        #: One rank checks: that all have the same center is checked below.
        if w.rank == 0:
            # float64; another order of additions, amplified by a few steps
            alone = partial(reference, w, task, size)
            w.check(task.name, [center, *workers], alone, slack=64)
        w.check_same("same", center)
    for factor in (0.5, -0.9, -1.1):  # 1 - alpha (p+1); the last diverges
        springs(w, factor, meetings=6)
    given = {"elements": len(center), "itemsize": center.element_size()}
    report(w, given=given, calls=moved.count, payload=moved.payload)


if __name__ == "__main__":
    with world() as w:
        main(w)
