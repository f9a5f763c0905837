"""DiLoCo: AdamW alone for H steps, Nesterov momentum on what all have moved.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.periodic.diloco

Source: Douillard et al. 2023, algorithm 1.

All ranks start a period at the same weights c and take H steps of AdamW on
batches of their own. How far they have moved on average is taken for a
gradient, the outer one, and an outer optimizer steps with it:

    d  =  mean over all ranks of (c - x_r)
    v  <-  0.9 v + d
    c  <-  c - 0.7 (d + 0.9 v)          (Nesterov: the step looks ahead)

Then everybody goes on from c. With rate 1 and no momentum c becomes the mean
of the weights: plain averaging. Momentum carries a direction that all ranks
agree on through several periods, so H may be hundreds, and ranks may be
continents apart. Only d travels; AdamW's moments stay where they were made.
It costs two more copies of the weights: where the period began, and v.
"""

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import SGD, AdamW, Optimizer

from exemplars.runtime import World, jitter, meter, report, span, world
from exemplars.workload import Step, Task, characters, digits

STEPS, PERIOD = 8, 3  # the last period is a short one
BATCH, INNER_RATE = 8, 0.01
OUTER_RATE, MOMENTUM = 0.7, 0.9
seconds = jitter(spread=1.0)


class Outer:
    """Where the period began, and the outer momentum; the same everywhere."""

    def __init__(self, start: Tensor, rate: float, momentum: float) -> None:
        self.start, self.velocity = start, torch.zeros_like(start)
        self.rate, self.momentum = rate, momentum

    def meet(self, x: Tensor) -> Tensor:
        """From each rank's weights to the ones that all go on from."""
        change = self.start - x
        dist.all_reduce(change)
        change /= dist.get_world_size()
        self.velocity = self.momentum * self.velocity + change
        ahead = change + self.momentum * self.velocity
        self.start = self.start - self.rate * ahead
        return self.start


def meets(step: int) -> bool:
    """After every H steps, and after the last one."""
    return (step + 1) % PERIOD == 0 or step == STEPS - 1


def train(
    w: World, task: Task, model: nn.Module, outer: Outer
) -> Iterator[Step]:
    """AdamW alone, and a meeting at the end of every period."""
    inner = AdamW(model.parameters(), lr=INNER_RATE)
    for step in range(STEPS):
        with span("AdamW", label=step, cost=seconds(w.rank, step)):
            loss = inner_step(w, task, model, inner, step, w.rank)
        if meets(step):
            x = parameters_to_vector(model.parameters()).detach()
            #: A copy: AdamW works in place, and must not move the start.
            together = outer.meet(x).clone()
            vector_to_parameters(together, model.parameters())
        yield Step(samples=BATCH * w.size, loss=loss)


def inner_step(
    w: World,
    task: Task,
    model: nn.Module,
    inner: Optimizer,
    step: int,
    rank: int,
) -> float:
    """One step on the batch that a rank takes at this step."""
    x, y = task.batch(step * w.size + rank, BATCH)
    loss = task.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
    inner.zero_grad()
    loss.backward()
    inner.step()
    return loss.item()


def reference(w: World, task: Task) -> Tensor:
    """All ranks on one process, and torch's own Nesterov as the outer step."""
    models = [task.model().to(w.device) for _ in range(w.size)]
    inner = [AdamW(m.parameters(), lr=INNER_RATE) for m in models]
    centre = parameters_to_vector(models[0].parameters()).detach()
    outer = SGD([centre], OUTER_RATE, MOMENTUM, nesterov=True)
    for step in range(STEPS):
        for r, (model, adam) in enumerate(zip(models, inner)):
            inner_step(w, task, model, adam, step, r)
        if meets(step):
            every = [parameters_to_vector(m.parameters()) for m in models]
            centre.grad = centre - torch.stack(every).mean(0).detach()
            outer.step()
            for model in models:
                vector_to_parameters(centre.clone(), model.parameters())
    return centre


def mean(w: World) -> Tensor:
    """Of what all ranks bring to the meeting that is plain averaging."""
    return torch.stack([w.randn(20, of_rank=r) for r in range(w.size)]).mean(0)


def main(w: World) -> None:
    for task in (digits, characters):
        model = task.model().to(w.device)
        start = parameters_to_vector(model.parameters()).detach()
        outer = Outer(start, OUTER_RATE, MOMENTUM)
        with meter() as moved:
            for _ in train(w, task, model, outer):
                pass
        trained = parameters_to_vector(model.parameters()).detach()
        #: One rank checks: that all have the same bits is checked below.
        if w.rank == 0:
            # AdamW divides by roots that may be tiny: roundings grow there.
            replay = partial(reference, w, task)
            w.check(task.name, trained, replay, slack=2**14)
    w.check_same("same", trained)
    plain = Outer(w.randn(20, of_rank=w.size), rate=1, momentum=0)
    w.check("averaged", plain.meet(w.randn(20)), lambda: mean(w), slack=4)
    state = outer.start.nbytes + outer.velocity.nbytes
    given = {"n": len(trained), "b": 8, "t": STEPS, "h": PERIOD}
    counts = dict(calls=moved.count, payload=moved.payload)
    report(w, given=given, outer_state=state, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
