"""Local SGD: H steps alone, then average the weights; 1/H of the traffic.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.periodic.local_sgd

Source: Stich 2019; Moritz et al. 2016 (SparkNet).

Every rank steps on batches of its own, and after every H steps all ranks
replace their weights by the mean of all weights:

    H steps      w_r  <-  w_r - rate * gradient of batch r at w_r
    then         w_r  <-  mean over all ranks of w_r

With H = 1 all ranks step from the same weights, and the mean of the stepped
weights is the step by the mean gradient: synchronous SGD. (True of any rule
that is linear in the gradient, momentum too; not of Adam, which divides.)

With H > 1 a rank's second gradient is taken at weights that only this rank
has, and the two part. It is another algorithm, not a faster way to the same
result; what it buys is T/H meetings instead of T.
"""

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import World, jitter, meter, report, span, world
from exemplars.workload import Step, Task, characters, digits

STEPS, PERIOD = 7, 3  # the last period is a short one
BATCH, RATE = 8, 0.2
seconds = jitter(spread=1.0)  # a step takes 1 to 2 virtual seconds


def local_step(model: nn.Module, loss: Tensor) -> None:
    """Plain SGD; nobody else takes part."""
    gradients = torch.autograd.grad(loss, [*model.parameters()])
    with torch.no_grad():
        for p, g in zip(model.parameters(), gradients):
            p.sub_(g, alpha=RATE)


def average(model: nn.Module) -> None:
    """All ranks leave with the mean of all weights, and the same bits."""
    mean = parameters_to_vector(model.parameters()).detach()
    dist.all_reduce(mean)
    mean /= dist.get_world_size()
    vector_to_parameters(mean, model.parameters())


def ends_a_period(step: int, period: int) -> bool:
    """After every H steps, and after the last one."""
    return (step + 1) % period == 0 or step == STEPS - 1


def train(
    w: World, task: Task, model: nn.Module, period: int
) -> Iterator[Step]:
    """Steps alone, and a meeting at the end of every period."""
    for step in range(STEPS):
        with span("step", label=step, cost=seconds(w.rank, step)):
            loss = loss_of(w, task, model, step, w.rank)
            local_step(model, loss)
        if ends_a_period(step, period):
            average(model)
        yield Step(samples=BATCH * w.size, loss=loss.item())


def loss_of(
    w: World, task: Task, model: nn.Module, step: int, rank: int
) -> Tensor:
    """Mean loss of the batch that a rank takes at a step."""
    x, y = task.batch(step * w.size + rank, BATCH)
    return task.loss(model, x.to(w.device), y.to(w.device)) / y.numel()


def one_process(w: World, task: Task) -> list[Tensor]:
    """Synchronous SGD: every step on the batches of all ranks together."""
    model = task.model().to(w.device)
    for step in range(STEPS):
        losses = [loss_of(w, task, model, step, r) for r in range(w.size)]
        local_step(model, torch.stack(losses).mean())
    return [*model.parameters()]


def reference(w: World, task: Task) -> list[Tensor]:
    """All replicas on one process, met by arithmetic instead of messages."""
    replicas = [task.model().to(w.device) for _ in range(w.size)]
    for step in range(STEPS):
        for r, model in enumerate(replicas):
            local_step(model, loss_of(w, task, model, step, r))
        if ends_a_period(step, PERIOD):
            every = [parameters_to_vector(m.parameters()) for m in replicas]
            mean = torch.stack(every).mean(0).detach()
            for model in replicas:
                vector_to_parameters(mean.clone(), model.parameters())
    return [*replicas[0].parameters()]


def main(w: World) -> None:
    model = digits.model().to(w.device)
    for _ in train(w, digits, model, period=1):
        pass
    trained = [*model.parameters()]
    #: One rank checks: that all have the same bits is checked below.
    if w.rank == 0:
        # float64; another order of additions, amplified by a few steps
        serial = partial(one_process, w, digits)
        w.check("synchronous", trained, serial, slack=64)
    for task in (digits, characters):
        model = task.model().to(w.device)
        with meter() as moved:
            for _ in train(w, task, model, PERIOD):
                pass
        trained = [*model.parameters()]
        if w.rank == 0:
            w.check(task.name, trained, partial(reference, w, task), slack=64)
    w.check_same("same", trained)
    n = sum(p.numel() for p in trained)
    given = {"n": n, "b": 8, "t": STEPS, "h": PERIOD}
    report(w, given=given, calls=moved.count, payload=moved.payload)


if __name__ == "__main__":
    with world() as w:
        main(w)
