"""Post-local SGD: synchronous steps at first, local ones from some step on.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.periodic.post_local_sgd

Workers that train alone drift apart, the more so the faster their weights
move, and they move fastest at first. So the first t' steps are synchronous,
and messages are saved from then on:

    first t' steps     average the gradients, then step
    the other T - t'   step alone, and average the weights after every H steps

That makes t' + (T - t') / H meetings. Both phases send one vector as long as
the model: the gradients before a step, or the weights after it. With H = 1 it
makes no difference which of the two: SGD with momentum is linear in the
gradients, so the mean of the steps is the step by the mean.

Momentum never travels. When the first phase ends it is equal on all ranks, as
the weights are; then each rank's own gradients lead it elsewhere, and a
meeting of the weights leaves it there.

Source: Lin, Stich, Patel and Jaggi 2020.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD

from exemplars.runtime import Clock, World, meter, report, span, world
from exemplars.sync_strategy.periodic import local_sgd
from exemplars.sync_strategy.periodic.local_sgd import UNEVEN, ends_a_period
from exemplars.workload import Step, Task, characters, digits


def average(tensors: list[Tensor]) -> None:
    """Replace them by their means over all ranks, in place."""
    #: Gradients or weights: one vector of the same length, one all-reduce.
    flat = torch.cat([t.reshape(-1) for t in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for t, mean in zip(tensors, flat.split([t.numel() for t in tensors])):
        t.copy_(mean.view_as(t))


def gradients(model: nn.Module) -> list[Tensor]:
    """Of all parameters that have one."""
    return [p.grad for p in model.parameters() if p.grad is not None]


def what_travels(step: int, *, steps: int, together: int, period: int) -> str:
    """What is averaged in this step, if anything."""
    if step < together:
        return "gradients"
    #: Periods are counted from the switch, where all ranks are still equal.
    #: H steps alone come before the first meeting of weights.
    alone, left = step - together, steps - together
    return "weights" if ends_a_period(alone, left, period) else "nothing"


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    together: int,
    period: int,
    local_batch: int,
    rate: float,
    momentum: float = 0.9,
    clock: Clock = UNEVEN,
) -> Iterator[Step]:
    """Synchronous up to the switch, periodic from there on."""
    model = task.model().to(w.device)
    weights = [p.detach() for p in model.parameters()]
    #: One optimizer for both phases: what it remembers of the first phase
    #: is the same on all ranks, and it takes that along.
    sgd = SGD(model.parameters(), lr=rate, momentum=momentum)
    schedule = dict(steps=steps, together=together, period=period)
    for step in range(steps):
        x, y = task.batch(step * w.size + w.rank, local_batch)
        with span("gradient", label=step, cost=clock(w.rank, step)):
            loss = task.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
            sgd.zero_grad()
            loss.backward()
        travels = what_travels(step, **schedule)
        if travels == "gradients":
            #: Before the step: it is then the same on all ranks.
            average(gradients(model))
        sgd.step()
        if travels == "weights":
            #: After the step, and the weights alone; momentum stays.
            average(weights)
        yield Step(loss.item(), weights)


def reference(w: World, task: Task, size: dict[str, Any]) -> list[Tensor]:
    """All replicas on one process, step by step."""
    models = [task.model().to(w.device) for _ in range(w.size)]
    options = dict(lr=size["rate"], momentum=size["momentum"])
    sgds = [SGD(model.parameters(), **options) for model in models]
    steps, together = size["steps"], size["together"]
    meetings = {
        steps,
        *range(together + size["period"], steps, size["period"]),
    }
    for step in range(steps):
        for r, model in enumerate(models):
            x, y = task.batch(step * w.size + r, size["local_batch"])
            model.zero_grad()
            loss = task.loss(model, x.to(w.device), y.to(w.device))
            (loss / y.numel()).backward()
        for twins in zip(*(m.parameters() for m in models)):
            if step < together:
                mean = torch.stack([p.grad for p in twins]).mean(0)
                for p in twins:
                    p.grad = mean.clone()
        for sgd in sgds:
            sgd.step()
        for twins in zip(*(m.parameters() for m in models)):
            if step >= together and step + 1 in meetings:
                mean = torch.stack(twins).mean(0).detach()
                for p in twins:
                    p.data.copy_(mean)
    return list(models[0].parameters())


def one_process(w: World, task: Task, size: dict[str, Any]) -> list[Tensor]:
    """Synchronous SGD: every step on the batches of all ranks together."""
    model = task.model().to(w.device)
    sgd = SGD(model.parameters(), lr=size["rate"], momentum=size["momentum"])
    for step in range(size["steps"]):
        each = range(step * w.size, (step + 1) * w.size)
        batches = [task.batch(i, size["local_batch"]) for i in each]
        x, y = (torch.cat(parts).to(w.device) for parts in zip(*batches))
        sgd.zero_grad()
        (task.loss(model, x, y) / y.numel()).backward()
        sgd.step()
    return list(model.parameters())


def main(
    w: World, *, steps: int = 9, together: int = 2, period: int = 3
) -> None:
    w.require(min(steps, period) > 0, f"{steps} steps, H = {period}: none")
    w.require(together <= steps, f"switch after {together} of {steps} steps")
    own: Any = dict(steps=steps, local_batch=8, rate=0.1)
    size = own | dict(together=together, period=period, momentum=0.9)
    for task in (digits, characters):
        with meter() as moved:
            for done in train(w, task, **size):
                trained = list(done.weights)
        #: One rank checks: that all have the same bits is checked below.
        if w.rank == 0:
            # float64; another order of additions, amplified by a few steps
            w.check(task.name, trained, partial(reference, w, task, size), 256)
        w.check_same("same", trained)
    serial = partial(one_process, w, digits, size)
    for border in (dict(period=1), dict(together=steps)):
        *_, done = train(w, digits, **(size | border))
        w.check("synchronous", list(done.weights), serial, slack=256)
    *_, done = train(w, digits, **(size | dict(together=0, momentum=0.0)))
    periodic = partial(local_sgd.reference, w, digits, period=period, **own)
    w.check("local", list(done.weights), periodic, slack=256)
    elements = sum(p.numel() for p in trained)
    given = {"elements": elements, "itemsize": trained[0].element_size()}
    report(w, given=given, calls=moved.count, payload=moved.payload)


if __name__ == "__main__":
    with world() as w:
        main(w)
