"""QSGD: round each entry up or down at random, so that the mean is right.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.quantisation.qsgd

Source: Alistarh et al. 2017, section 3.1.

Between 0 and the norm of a bucket of c entries lie k equal steps. An entry
that falls between two of them goes to the upper one with the probability
that makes the expectation right:

    a = k |v| / norm         l = floor(a) + (1 with probability a - floor(a))
    Q(v) = norm * sign(v) * l / k            E Q(v) = v

Unlike the error of rounding to the nearest, this one need not be remembered:
over many ranks and steps it cancels. The price is variance, at most

    E |Q(v) - v|^2  <=  min(c / k^2, sqrt(c) / k) |v|^2

so few steps want small buckets. Each entry is sent as one signed byte, and
each bucket as one norm. The draws are seeded by rank and step: anyone can
repeat them.
"""

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Step, Task, characters, digits

STEPS, BATCH, RATE = 5, 24, 0.2
BUCKET, LEVELS = 128, 16  # c and k
DRAWS = 200  # of one gradient, to see mean and variance


def quantise(v: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """A signed level for each entry, and the norm of each bucket."""
    buckets = pad(v, (0, -len(v) % BUCKET)).view(-1, BUCKET)
    norms = buckets.norm(dim=1, keepdim=True)
    exact = LEVELS * buckets.abs() / norms.clamp_min(1e-300)
    #: Drawn on the host: the same numbers whatever the device.
    source = torch.Generator().manual_seed(seed)
    chance = torch.rand(exact.shape, generator=source, dtype=v.dtype)
    level = (exact + chance.to(v.device)).floor() * buckets.sign()
    return level.flatten()[: len(v)].to(torch.int8), norms.flatten()


def restore(levels: Tensor, norms: Tensor) -> Tensor:
    """The entries that these levels stand for."""
    return levels * norms.repeat_interleave(BUCKET)[: len(levels)] / LEVELS


def sum_of_all(levels: Tensor, norms: Tensor) -> Tensor:
    """What all ranks sent, restored and added up."""
    p = dist.get_world_size()
    every_level = levels.new_empty(p * len(levels))
    every_norm = norms.new_empty(p * len(norms))
    dist.all_gather_single(every_level, levels)
    dist.all_gather_single(every_norm, norms)
    #: Rank after rank, in the same order everywhere: the same bits.
    both = zip(every_level.chunk(p), every_norm.chunk(p))
    return torch.stack([restore(*sent) for sent in both]).sum(0)


def gradient(
    task: Task, model: nn.Module, number: int
) -> tuple[Tensor, Tensor]:
    """Loss and gradient of one batch, as vectors."""
    parameters = list(model.parameters())
    x, y = (t.to(parameters[0].device) for t in task.batch(number, BATCH))
    loss = task.loss(model, x, y) / y.numel()
    grads = torch.autograd.grad(loss, parameters)
    return loss, torch.cat([g.view(-1) for g in grads])


def train(w: World, task: Task, model: nn.Module) -> Iterator[Step]:
    """SGD in which a byte of each entry travels."""
    weights = parameters_to_vector(model.parameters()).detach()
    for step in range(STEPS):
        number = step * w.size + w.rank
        with span("compute", label=step, cost=3):
            loss, g = gradient(task, model, number)
        with span("quantise", label=step, cost=1):
            sent = quantise(g, seed=number)
        weights = weights - RATE / w.size * sum_of_all(*sent)
        vector_to_parameters(weights, model.parameters())
        yield Step(samples=BATCH * w.size, loss=loss.item())


def reference(w: World, task: Task) -> list[Tensor]:
    """One process that takes every rank's batches and repeats its draws."""
    model = task.model().to(w.device)
    weights = parameters_to_vector(model.parameters()).detach()
    for step in range(STEPS):
        numbers = range(step * w.size, (step + 1) * w.size)
        every = [quantise(gradient(task, model, i)[1], i) for i in numbers]
        total = torch.stack([restore(*sent) for sent in every]).sum(0)
        weights = weights - RATE / w.size * total
        vector_to_parameters(weights, model.parameters())
    return list(model.parameters())


def many_draws(v: Tensor) -> tuple[float, float]:
    """How far the mean is off, in standard errors; and the variance."""
    draws = (restore(*quantise(v, seed)) - v for seed in range(DRAWS))
    errors = torch.stack(list(draws))
    spread = errors.square().sum(1).mean()  # of a draw about v itself
    off = errors.mean(0).square().sum()  # about spread / DRAWS if E Q(v) = v
    total = v.square().sum()
    return (DRAWS * off / spread).sqrt().item(), (spread / total).item()


def main(w: World) -> None:
    for task in (digits, characters):
        model = task.model().to(w.device)
        with meter() as moved:
            for _ in train(w, task, model):
                pass
        parameters = list(model.parameters())
        w.check(task.name, parameters, partial(reference, w, task), slack=1)
    w.check_same("same", parameters)
    v = gradient(task, task.model().to(w.device), w.rank)[1]
    bias, variance = many_draws(v)
    given = {"n": len(v), "b": 8, "t": STEPS, "c": BUCKET, "k": LEVELS}
    counts = {"calls": moved.count, "payload": moved.payload}
    report(w, given=given, bias=bias, variance=variance, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
