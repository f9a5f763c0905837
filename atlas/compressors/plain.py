"""No compressor: one all-reduce of the whole gradient, for all others to be held to."""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import World
from exemplars.workload import Step, Task


def train(
    w: World, task: Task, *, steps: int, local_batch: int, rate: float
) -> Iterator[Step]:
    """SGD in which whole gradients travel."""
    model = task.model().to(w.device)
    parameters = list(model.parameters())
    weights = parameters_to_vector(parameters).detach()
    for step in range(steps):
        x, y = task.batch(step * w.size + w.rank, local_batch)
        loss = task.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
        total = parameters_to_vector(torch.autograd.grad(loss, parameters))
        dist.all_reduce(total)
        weights = weights - rate / w.size * total
        vector_to_parameters(weights, parameters)
        yield Step(loss.item(), parameters)
