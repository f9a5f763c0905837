"""Block momentum: the step from one average model to the next has momentum.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.periodic.block_momentum

All ranks start a block at the same weights c and train alone for H steps. The
mean of what they have become is not taken as it is. How far it is from c is
treated as one large step, and this step gets momentum:

    d  =  mean over all ranks of x_r - c
    v  <-  momentum v + block rate * d
    c  <-  c + v

With momentum 0 and block rate 1, c becomes the mean: plain model averaging.

Why momentum? The mean of p workers moves about as far as one worker, so p
times the samples make no more progress. But steps of momentum m that agree
add up to 1 / (1 - m) times one of them, and m = 1 - 1/p makes that p.

Nesterov's form starts the next block ahead of c, where momentum alone would
take it: at c + momentum * v. The points where blocks begin are then those of
SGD with Nesterov momentum on the gradient -d, which is DiLoCo's outer step.

Source: Chen and Huo 2016.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import Clock, World, meter, report, span, world
from exemplars.sync_strategy.periodic import local_sgd
from exemplars.workload import Step, Task, characters, digits


class Filter:
    """The average model and its momentum; the same bits on every rank."""

    def __init__(
        self, start: Tensor, momentum: float, rate: float, ahead: float = 0
    ) -> None:
        #: Two vectors as long as the model, beside the model itself.
        self.weights = start.clone()
        self.velocity = torch.zeros_like(start)
        self.momentum, self.rate = momentum, rate
        self.ahead = ahead

    def begun(self) -> Tensor:
        """Where the block began; every rank knows without being told."""
        return self.weights + self.ahead * self.velocity

    def meet(self, x: Tensor) -> None:
        """Filter the mean change; x becomes where the next block begins."""
        dist.all_reduce(x)
        x /= dist.get_world_size()
        #: From where the block began. Measured from the weights, Nesterov's
        #: form would count the step ahead a second time.
        change = x - self.begun()
        #: Momentum adds up: steps that agree become larger than any of them.
        self.velocity.mul_(self.momentum).add_(change, alpha=self.rate)
        self.weights += self.velocity
        x.copy_(self.begun())


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    period: int,
    local_batch: int,
    rate: float,
    momentum: float,
    block_rate: float = 1.0,
    clock: Clock = local_sgd.UNEVEN,
) -> Iterator[Step]:
    """Plain SGD alone, and a filtered meeting at the end of every block."""
    model = task.model().to(w.device)
    start = parameters_to_vector(model.parameters()).detach()
    block = Filter(start, momentum, block_rate)
    for step in range(steps):
        #: Within a block a rank learns by itself, as in local SGD.
        x, y = task.batch(step * w.size + w.rank, local_batch)
        with span("step", label=step, cost=clock(w.rank, step)):
            loss = task.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
            local_sgd.local_step(model, loss, rate)
        if local_sgd.ends_a_period(step, steps, period):
            mine = parameters_to_vector(model.parameters()).detach()
            block.meet(mine)
            vector_to_parameters(mine, model.parameters())
        #: The filtered weights are what one keeps; no single rank's are.
        yield Step(loss.item(), [block.weights])


def reference(w: World, task: Task, size: dict[str, Any]) -> Tensor:
    """All ranks on one process; the momentum is a sum over all past blocks."""
    models = [task.model().to(w.device) for _ in range(w.size)]
    center = parameters_to_vector(models[0].parameters()).detach()
    changes: list[Tensor] = []
    for first in range(0, size["steps"], size["period"]):
        last = min(first + size["period"], size["steps"])
        for r, model in enumerate(models):
            vector_to_parameters(center.clone(), model.parameters())
            sgd = torch.optim.SGD(model.parameters(), lr=size["rate"])
            for step in range(first, last):
                batch = task.batch(step * w.size + r, size["local_batch"])
                x, y = (t.to(w.device) for t in batch)
                sgd.zero_grad()
                (task.loss(model, x, y) / y.numel()).backward()
                sgd.step()
        every = [parameters_to_vector(m.parameters()) for m in models]
        changes.insert(0, torch.stack(every).mean(0).detach() - center)
        decay = [size["momentum"] ** age for age in range(len(changes))]
        for factor, change in zip(decay, changes):
            center = center + size["block_rate"] * factor * change
    return center


def torch_nesterov(place: Tensor, moves: Tensor) -> Tensor:
    """Where torch.optim.SGD ends, if a gradient is a change with a minus."""
    sgd = torch.optim.SGD([place], lr=0.7, momentum=0.9, nesterov=True)
    for move in moves:
        place.grad = -move
        sgd.step()
    return place


def meetings(x: Tensor, moves: Tensor, *settings: float) -> Filter:
    """As many blocks as moves, which stand for training."""
    block = Filter(x, *settings)
    for move in moves:
        x += move
        block.meet(x)
    return block


def by_itself(w: World, elements: int, blocks: int) -> None:
    """The filter without a model: what it is for other constants."""
    start = w.randn(elements, seed=1)
    moves = w.randn(blocks, w.size, elements, seed=0)
    plain, ahead = start.clone(), start.clone()
    meetings(plain, moves[:, w.rank], 0, 1)
    w.check("plain", plain, lambda: start + moves.mean(1).sum(0), 16 * blocks)
    meetings(ahead, moves[:, w.rank], 0.9, 0.7, 0.9)
    truth = partial(torch_nesterov, start.clone(), moves.mean(1))
    w.check("nesterov", ahead, truth, slack=16 * blocks)
    same, momentum = moves[0, 0].expand(blocks, -1), 1 - 1 / w.size
    last = meetings(start.clone(), same, momentum, 1).velocity
    law = w.size * (1 - momentum**blocks)
    w.check("gain", last, lambda: law * same[0], slack=16 * blocks)


def main(
    w: World, *, steps: int = 8, period: int = 3, block_rate: float = 0.9
) -> None:
    w.require(min(steps, period) > 0, f"{steps} steps, H = {period}: none")
    size: Any = dict(steps=steps, period=period, local_batch=8, rate=0.2)
    size |= dict(momentum=1 - 1 / w.size, block_rate=block_rate)
    for task in (digits, characters):
        with meter() as moved:
            *_, last = train(w, task, **size)
        trained = last.weights[0]
        #: One rank checks: that all have the same bits is checked below.
        if w.rank == 0:
            # float64; another order of additions, amplified by a few steps
            w.check(task.name, trained, partial(reference, w, task, size), 256)
        w.check_same("same", trained)
    by_itself(w, elements=20, blocks=5)
    block = Filter(trained, momentum=0, rate=1)
    held = [t.nbytes for t in vars(block).values() if isinstance(t, Tensor)]
    given = {"elements": len(trained), "itemsize": trained.element_size()}
    counts = dict(calls=moved.count, payload=moved.payload)
    report(w, given=given, state=sum(held), **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
