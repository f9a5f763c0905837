"""Elastic rescaling: the same bits on 4 processes, then 2, then 3.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.elastic.elastic_rescaling

What depends on the number of processes? Who computes which samples, which
random numbers they draw, and in which order gradients are added. So none of
it is given to a process. A fixed number of logical workers have it, and a
process hosts some of them, one after the other:

    logical     0 1 2 3 4 5 6 7
    4 ranks     0 0 1 1 2 2 3 3
    2 ranks     0 0 0 0 1 1 1 1      ranks 2 and 3 were killed
    3 ranks     0 0 0 1 1 1 2 2      rank 2 has a new worker

A logical worker has its share of the batch and its own random numbers. Their
gradients are added in a tree over the logical workers, whoever hosts them. A
step is then the same function of the step before on any number of processes,
not nearly, but to the last bit. When processes are killed in the middle of a
step, the others host their logical workers and take the step again.

The rank itself supervises its process (exemplars/elastic.py).

Source: Li et al. 2023 (EasyScale: logical workers with states of their own).
"""

import os
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.communication_pattern.collective.invariant_reduction import (
    all_reduce,
)
from exemplars.elastic import Crew
from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Step, Task, digits


class Host:
    """A process that computes for logical workers, and may die."""

    def __init__(
        self, w: World, task: Task, batch: int, logical: int, dies: int
    ) -> None:
        self.w, self.task, self.batch = w, task, batch
        self.logical, self.dies = logical, dies
        self.model = task.model().to(w.device)
        self.weights = parameters_to_vector(self.model.parameters()).detach()

    def compute(self, step: int) -> None:
        """The gradients of those it hosts now, each on its own."""
        #: Neighbors in runs: a sum within a run needs no message.
        runs = torch.arange(self.logical).tensor_split(dist.get_world_size())
        mine = [self.gradient(step, i) for i in runs[dist.get_rank()].tolist()]
        self.mine = torch.stack(mine)

    def gradient(self, step: int, worker: int) -> Tensor:
        """Of one logical worker's share, with the loss behind it."""
        vector_to_parameters(self.weights, self.model.parameters())
        whole = self.task.batch(step, self.batch)
        x, y = (t.tensor_split(self.logical)[worker] for t in whole)
        #: By step and logical worker: there is no generator whose state could
        #: die with a process.
        source = torch.Generator().manual_seed(step * self.logical + worker)
        kept = torch.rand(x.shape, generator=source) < 0.9
        x, y = (x * kept).to(self.w.device), y.to(self.w.device)
        loss = self.task.loss(self.model, x, y) / self.batch
        with span("gradient", label=worker, cost=1):
            slope = torch.autograd.grad(loss, list(self.model.parameters()))
        return torch.cat([parameters_to_vector(slope), loss.detach()[None]])

    def exchange(self, step: int) -> bool:
        """Add up the gradients of all logical workers, in a fixed order."""
        if step == self.dies:
            #: Whoever waits for this process has an error, and leaves; then
            #: whoever waits for that one.
            os.kill(os.getpid(), signal.SIGKILL)
        #: Not what each process has summed up: one leaf per logical worker.
        self.total = all_reduce(self.mine, self.logical)
        return True

    def update(self, rate: float) -> float:
        """Plain SGD; the same bits on every host."""
        self.weights -= rate * self.total[:-1]
        return self.total[-1].item()

    def copy(self) -> None:
        """Have the weights of the first host, which never dies."""
        dist.broadcast(self.weights, 0)


def regroup(crew: Crew, step: int) -> None:
    """Divide the logical workers among the processes that live."""
    living = [r for r, alive in crew.agree(crew.alive).items() if alive]
    old = crew.members
    if living != old:
        crew.form(living)
    if 0 < len(old) < len(living):
        crew.ask("copy")
    #: Again after a death: what the dead had computed died with them.
    crew.ask("compute", step)


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    batch: int,
    rate: float,
    logical: int,
    fall: int,
    grow: int,
) -> Iterator[Step]:
    """The supervisor, which knows of a death only by what it hears."""
    half = (w.size + 1) // 2
    dies = fall if w.rank >= half else steps
    with Crew(w, Host, w, task, batch, logical, dies) as crew:
        for step in range(steps):
            if step == grow and w.rank == half:
                crew.start()
            regroup(crew, step)
            while not crew.unanimous(crew.ask("exchange", step)):
                regroup(crew, step)
            loss, weights = crew.ask("update", rate), crew.ask("weights")
            yield Step(loss, [weights]) if crew.alive else Step(float("nan"))


def reference(
    w: World, task: Task, steps: int, batch: int, rate: float, logical: int
) -> list[Tensor]:
    """One process, on which the logical workers take turns."""
    model = task.model().to(w.device)
    weights = parameters_to_vector(model.parameters()).detach()
    for step in range(steps):
        vector_to_parameters(weights, model.parameters())
        shares = [t.tensor_split(logical) for t in task.batch(step, batch)]
        sums = []
        for worker, (x, y) in enumerate(zip(*shares)):
            source = torch.Generator().manual_seed(step * logical + worker)
            kept = torch.rand(x.shape, generator=source) < 0.9
            x, y = (x * kept).to(w.device), y.to(w.device)
            loss = task.loss(model, x, y) / batch
            slope = torch.autograd.grad(loss, list(model.parameters()))
            sums.append(torch.cat([*map(torch.ravel, slope), loss.view(1)]))
        while len(sums) > 1:
            odd = sums[len(sums) // 2 * 2 :]
            sums = [a + b for a, b in zip(sums[0::2], sums[1::2])] + odd
        weights = weights - rate * sums[0][:-1]
    return [sums[0][-1].detach(), weights]


def main(
    w: World, *, logical: int = 8, steps: int = 6, fall: int = 2, grow: int = 4
) -> None:
    w.require(1 < w.size <= logical, f"{w.size} ranks: use 2 to {logical}")
    order = f"{fall}, {grow}, {steps}: fall, then grow, then go on"
    w.require(0 <= fall < grow < steps, order)
    sizes: Any = dict(steps=steps, batch=50, rate=0.1, logical=logical)
    with meter() as moved:
        for done in train(w, digits, fall=fall, grow=grow, **sizes):
            loss, weights = done.loss, done.weights
    if weights:
        #: Slack 0, on any number of ranks, with any number of deaths.
        alone = partial(reference, w, digits, **sizes)
        last = weights[0].new_tensor(loss)
        w.check("parameters", [last, *weights], alone, slack=0)
    killed = sum(e.kind == "killed" for e in moved.events)
    gradients = sum(e.name == "gradient" for e in moved.events)
    report(w, killed=killed, gradients=gradients)


if __name__ == "__main__":
    with world() as w:
        main(w)
