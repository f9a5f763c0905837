"""Training in DDP with a communication hook, in one bucket that has settled."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from atlas.bench.pair import Side
from exemplars.runtime import World
from exemplars.workload import Step, Task

#: DDP orders its bucket anew after the first step: a hook starts after that.
SETTLED = 2
ONE_BUCKET = 1024  # MiB: the whole gradient at once, as ours


def hooked(
    w: World, task: Task, rate: float, state: object, hook: Callable[..., Any]
) -> Side:
    """Plain SGD on one batch; the first steps are taken back."""
    model = task.model().to(w.device)
    ddp = DistributedDataParallel(model, bucket_cap_mb=ONE_BUCKET)
    ddp.register_comm_hook(state, hook)
    sgd = torch.optim.SGD(model.parameters(), lr=rate)

    def step() -> float:
        x, y = task.batch(0, 0)
        sgd.zero_grad()
        loss = task.loss(ddp, x, y) / y.numel()
        loss.backward()
        sgd.step()
        return loss.item()

    for _ in range(SETTLED):
        step()
    model.load_state_dict(task.model().state_dict())
    return Side(step, lambda: list(model.parameters()))


def training(steps: Iterator[Step], task: Task) -> Side:
    """An exemplar's training, a step at a time, with the weights it last showed."""
    weights: list[Sequence[Tensor]] = [list(task.model().parameters())]

    def step() -> float:
        made = next(steps)
        weights[0] = made.weights
        return made.loss

    return Side(step, lambda: list(weights[0]))
