"""Local SGD: H steps alone, then average the weights; 1/H of the traffic.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.periodic.local_sgd

Every rank steps on batches of its own, and after every H steps all ranks
replace their weights by the mean of all weights:

    H steps      w_r  <-  w_r - rate * gradient of batch r at w_r
    then         w_r  <-  mean over all ranks of w_r

With H = 1 all ranks step from the same weights, and the mean of the stepped
weights is the step by the mean gradient: synchronous SGD. (True of any rule
that is linear in the gradient, momentum too; not of Adam, which divides.)

With H > 1 a rank's second gradient is taken at weights that only this rank
has, and the two differ. It is another algorithm, not a faster way to the same
result; what it buys is T/H meetings instead of T.

Source: Stich 2019; Moritz et al. 2016 (SparkNet).
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import Clock, World, jitter, meter, report, span, world
from exemplars.workload import Step, Task, characters, digits

UNEVEN = jitter(spread=1.0)  # a step takes 1 to 2 virtual seconds


def local_step(model: nn.Module, loss: Tensor, rate: float) -> None:
    """Plain SGD; no other rank takes part."""
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(loss, parameters)
    with torch.no_grad():
        for p, g in zip(parameters, gradients):
            p.sub_(g, alpha=rate)


def average(model: nn.Module) -> None:
    """All ranks leave with the mean of all weights, and the same bits."""
    #: One vector, one all-reduce: a message per tensor would cost its
    #: latency every time.
    mean = parameters_to_vector(model.parameters()).detach()
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    vector_to_parameters(mean, model.parameters())


def ends_a_period(step: int, steps: int, period: int) -> bool:
    """After every H steps, and after the last one."""
    #: The last period may be a short one. Without a meeting at its end every
    #: rank would keep another model.
    return (step + 1) % period == 0 or step == steps - 1


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    period: int,
    local_batch: int,
    rate: float,
    clock: Clock = UNEVEN,
) -> Iterator[Step]:
    """Steps alone, and a meeting at the end of every period."""
    model = task.model().to(w.device)
    for step in range(steps):
        #: No two ranks and no two steps share a batch, so that p ranks learn
        #: from p times as many samples.
        x, y = task.batch(step * w.size + w.rank, local_batch)
        with span("step", label=step, cost=clock(w.rank, step)):
            loss = task.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
            #: From the second step of a period on, every rank computes its
            #: gradient at weights that no other rank has.
            local_step(model, loss, rate)
        #: Only here does a rank wait, so a step that is slow on one rank and
        #: fast on another evens out over a period.
        if ends_a_period(step, steps, period):
            average(model)
        kept = list(model.parameters())
        yield Step(loss.item(), kept)


def reference(
    w: World,
    task: Task,
    steps: int,
    period: int,
    local_batch: int,
    rate: float,
) -> list[Tensor]:
    """All replicas on one process, met by arithmetic instead of messages."""
    replicas = [task.model().to(w.device) for _ in range(w.size)]
    for first in range(0, steps, period):
        for r, model in enumerate(replicas):
            sgd = torch.optim.SGD(model.parameters(), lr=rate)
            for step in range(first, min(first + period, steps)):
                x, y = task.batch(step * w.size + r, local_batch)
                x, y = x.to(w.device), y.to(w.device)
                sgd.zero_grad()
                (task.loss(model, x, y) / y.numel()).backward()
                sgd.step()
        every = [parameters_to_vector(m.parameters()) for m in replicas]
        mean = torch.stack(every).mean(0).detach()
        for model in replicas:
            vector_to_parameters(mean.clone(), model.parameters())
    return list(replicas[0].parameters())


def one_process(
    w: World, task: Task, steps: int, local_batch: int, rate: float
) -> list[Tensor]:
    """Synchronous SGD: every step on the batches of all ranks together."""
    model = task.model().to(w.device)
    sgd = torch.optim.SGD(model.parameters(), lr=rate)
    for step in range(steps):
        each = range(step * w.size, (step + 1) * w.size)
        batches = [task.batch(i, local_batch) for i in each]
        x, y = (torch.cat(parts).to(w.device) for parts in zip(*batches))
        sgd.zero_grad()
        (task.loss(model, x, y) / y.numel()).backward()
        sgd.step()
    return list(model.parameters())


def main(
    w: World,
    *,
    steps: int = 7,
    period: int = 3,
    local_batch: int = 8,
    rate: float = 0.2,
) -> None:
    w.require(min(steps, period) > 0, f"{steps} steps, H = {period}: none")
    sizes: Any = dict(steps=steps, local_batch=local_batch, rate=rate)
    trained: list[Tensor] = []
    for done in train(w, digits, period=1, **sizes):
        trained = list(done.weights)
    #: One rank checks: that all have the same bits is checked below.
    if w.rank == 0:
        # float64; another order of additions, amplified by a few steps
        serial = partial(one_process, w, digits, **sizes)
        w.check("synchronous", trained, serial, slack=64)
    for task in (digits, characters):
        with meter() as moved:
            for done in train(w, task, period=period, **sizes):
                trained = list(done.weights)
        if w.rank == 0:
            replay = partial(reference, w, task, period=period, **sizes)
            w.check(task.name, trained, replay, slack=64)
        w.check_same("same", trained)
    elements = sum(p.numel() for p in trained)
    given = {"elements": elements, "itemsize": trained[0].element_size()}
    report(w, given=given, calls=moved.count, payload=moved.payload)


if __name__ == "__main__":
    with world() as w:
        main(w)
