"""Elastic averaging: workers are tied to a centre by springs, not merged.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.periodic.elastic_averaging

Source: Zhang, Choromanska and LeCun 2015 (synchronous EASGD).

After every H steps of its own, worker i is pulled towards the centre c, and
the centre towards all workers, by the same force:

    x_i  <-  x_i - alpha (x_i - c)
    c    <-  c + sum over i of alpha (x_i - c)          with the old x_i

Workers stay different and go on exploring; the centre is what one keeps. What
a spring takes from one end it gives to the other, so c + sum x_i is kept.

The springs have a limit. The gap between the centre and the workers' mean is
multiplied by 1 - alpha (p+1) at every meeting: it closes only for

    alpha < 2 / (p+1)

and beyond that the centre swings ever wider. So alpha is beta / p with a beta
of about 0.9, whatever p is: here 1 - alpha (p+1) lies between -0.8 and 0.1.
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
BATCH, RATE, BETA = 8, 0.2, 0.9
MEETINGS = 6  # without gradients
seconds = jitter(spread=1.0)


def elastic(x: Tensor, centre: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """This rank's weights and everybody's centre, after one pull."""
    pull = alpha * (x - centre)
    pulls = pull.clone()
    dist.all_reduce(pulls)
    return x - pull, centre + pulls


def meets(step: int) -> bool:
    """After every H steps, and after the last one."""
    return (step + 1) % PERIOD == 0 or step == STEPS - 1


def train(
    w: World, task: Task, model: nn.Module, centre: Tensor
) -> Iterator[Step]:
    """Steps alone, then a pull; the centre is updated in place."""
    x = centre.clone()
    for step in range(STEPS):
        with span("step", label=step, cost=seconds(w.rank, step)):
            loss, gradient = slope(w, task, model, x, step, w.rank)
            x = x - RATE * gradient
        if meets(step):
            x, pulled = elastic(x, centre, BETA / w.size)
            centre.copy_(pulled)
        yield Step(samples=BATCH * w.size, loss=loss.item())


def slope(
    w: World, task: Task, model: nn.Module, x: Tensor, step: int, rank: int
) -> tuple[Tensor, Tensor]:
    """Loss and gradient at x, of the batch that a rank takes at a step."""
    vector_to_parameters(x, model.parameters())
    inputs, labels = task.batch(step * w.size + rank, BATCH)
    loss = task.loss(model, inputs.to(w.device), labels.to(w.device))
    loss = loss / labels.numel()
    grads = torch.autograd.grad(loss, [*model.parameters()])
    return loss, torch.cat([g.reshape(-1) for g in grads])


def reference(w: World, task: Task) -> Tensor:
    """The centre, with all workers on one process."""
    model = task.model().to(w.device)
    centre = parameters_to_vector(model.parameters()).detach()
    every = centre.repeat(w.size, 1)
    for step in range(STEPS):
        for r, x in enumerate(every):
            x -= RATE * slope(w, task, model, x.clone(), step, r)[1]
        if meets(step):
            pulls = BETA / w.size * (every - centre)
            every, centre = every - pulls, centre + pulls.sum(0)
    return centre


def springs(w: World) -> None:
    """Without gradients: the mass is kept, and the gap follows its law."""
    for law in (0.5, -0.9, -1.1):  # 1 - alpha (p+1); the last one diverges
        alpha = (1 - law) / (w.size + 1)
        x, centre = w.randn(20), w.randn(20, of_rank=w.size)
        mass, gap = state(w, x, centre)
        for _ in range(MEETINGS):
            x, centre = elastic(x, centre, alpha)
        kept, left = state(w, x, centre)
        w.check("mass", kept, partial(torch.clone, mass), slack=8 * MEETINGS)
        # A small gap keeps the roundings of the large numbers it is between.
        after = partial(torch.mul, gap, law**MEETINGS)
        w.check("gap", left, after, slack=64 * MEETINGS)


def state(w: World, x: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """The mass, and the gap between the workers' mean and the centre."""
    total = x.clone()
    dist.all_reduce(total)
    return total + centre, total / w.size - centre


def main(w: World) -> None:
    for task in (digits, characters):
        model = task.model().to(w.device)
        centre = parameters_to_vector(model.parameters()).detach()
        with meter() as moved:
            for _ in train(w, task, model, centre):
                pass
        #: One rank checks: that all have the same centre is checked below.
        if w.rank == 0:
            # float64; another order of additions, amplified by a few steps
            w.check(task.name, centre, partial(reference, w, task), slack=64)
    w.check_same("same", centre)
    springs(w)
    given = {"n": len(centre), "b": 8, "t": STEPS, "h": PERIOD}
    report(w, given=given, calls=moved.count, payload=moved.payload)


if __name__ == "__main__":
    with world() as w:
        main(w)
