"""QSGD: round each entry up or down at random, so that the mean is right.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.quantization.qsgd

Between 0 and the norm of a bucket of c entries lie k equal steps. An entry
that falls between two of them goes to the upper one with the probability
that makes the expectation right:

    a = k |v| / norm         l = floor(a) + (1 with probability a - floor(a))
    Q(v) = norm * sign(v) * l / k            E Q(v) = v

Unlike the error of rounding to the nearest, this error need not be carried
over: across many ranks and steps it cancels. The price is variance, at most

    E |Q(v) - v|^2  <=  min(c / k^2, sqrt(c) / k) |v|^2

so few levels need small buckets. Each entry is sent as one signed byte, and
each bucket as one norm. The draws are seeded by rank and step: anyone can
repeat them.

Source: Alistarh et al. 2017, section 3.1.
"""

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Step, Task, characters, digits


class QSGD:
    """A quantizer without state: nothing is carried from step to step."""

    def __init__(self, *, bucket: int, levels: int) -> None:
        #: A byte holds 127 levels and a sign; alone in its bucket, an entry
        #: is its own norm, and nothing is rounded.
        if bucket < 2 or not 0 < levels < 128:
            raise ValueError(f"bucket = {bucket}, levels = {levels}: no grid")
        self.bucket, self.levels = bucket, levels

    def quantize(self, v: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """A signed level for each entry, and the norm of each bucket."""
        #: Filled up with zeros: they have level 0 and change no norm.
        buckets = pad(v, (0, -len(v) % self.bucket)).view(-1, self.bucket)
        norms = buckets.norm(dim=1, keepdim=True)
        #: A bucket of zeros has norm 0; its levels are 0 all the same.
        tiny = torch.finfo(v.dtype).tiny
        exact = self.levels * buckets.abs() / norms.clamp_min(tiny)
        #: Drawn on the host: the same numbers whatever the device.
        source = torch.Generator().manual_seed(seed)
        chance = torch.rand(exact.shape, generator=source, dtype=v.dtype)
        #: floor(a + u) with u uniform in [0, 1) is the upper level with
        #: probability a - floor(a): that alone makes it unbiased.
        level = (exact + chance.to(v.device)).floor() * buckets.sign()
        return level.flatten()[: len(v)].to(torch.int8), norms.flatten()

    def restore(self, levels: Tensor, norms: Tensor) -> Tensor:
        """The entries that these levels stand for."""
        scale = norms.repeat_interleave(self.bucket)[: len(levels)]
        return levels * scale / self.levels

    def sum_of_all(self, levels: Tensor, norms: Tensor) -> Tensor:
        """What all ranks sent, restored and added up."""
        p = dist.get_world_size()
        every_level = levels.new_empty(p * len(levels))
        every_norm = norms.new_empty(p * len(norms))
        #: Gathered: a level of one rank is a share of that rank's norm, so
        #: levels cannot be added before they are restored.
        dist.all_gather_single(every_level, levels)
        dist.all_gather_single(every_norm, norms)
        #: Rank after rank, in the same order everywhere: the same bits.
        both = zip(every_level.chunk(p), every_norm.chunk(p))
        return torch.stack([self.restore(*sent) for sent in both]).sum(0)


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    local_batch: int,
    rate: float,
    bucket: int,
    levels: int,
) -> Iterator[Step]:
    """SGD in which a byte of each entry travels."""
    q = QSGD(bucket=bucket, levels=levels)
    model = task.model().to(w.device)
    parameters = list(model.parameters())
    weights = parameters_to_vector(parameters).detach()
    for step in range(steps):
        number = step * w.size + w.rank
        x, y = task.batch(number, local_batch)
        with span("compute", label=step, cost=3):
            loss = task.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
            grads = torch.autograd.grad(loss, parameters)
        with span("quantize", label=step, cost=1):
            #: Another seed for each rank and step: errors are independent,
            #: and cancel in the sum.
            sent = q.quantize(parameters_to_vector(grads), number)
        weights = weights - rate / w.size * q.sum_of_all(*sent)
        vector_to_parameters(weights, parameters)
        yield Step(loss.item(), parameters)


def reference(
    w: World, task: Task, steps: int, local_batch: int, rate: float, *grid: int
) -> list[Tensor]:
    """One process that takes every rank's batches and repeats its draws."""
    model = task.model().to(w.device)
    parameters: list[Tensor] = list(model.parameters())
    weights = parameters_to_vector(parameters).detach()
    vector_to_parameters(weights, parameters)  # as views of it
    sgd = torch.optim.SGD([weights], lr=rate)
    for step in range(steps):
        total = torch.zeros_like(weights)
        for number in range(step * w.size, (step + 1) * w.size):
            x, y = (t.to(w.device) for t in task.batch(number, local_batch))
            loss = task.loss(model, x, y) / y.numel()
            v = parameters_to_vector(torch.autograd.grad(loss, parameters))
            source = torch.Generator().manual_seed(number)
            draws = torch.rand(len(v), generator=source, dtype=v.dtype)
            unit = units(v, *grid)
            level = (v.abs() / unit + draws.to(w.device)).floor()
            total += v.sign() * level * unit
        weights.grad = total / w.size
        sgd.step()
    return parameters


def units(v: Tensor, bucket: int, levels: int) -> Tensor:
    """The step between levels at each entry, never 0; for the reference."""
    norms = [part.norm().expand(len(part)) for part in v.split(bucket)]
    return torch.cat(norms).clamp_min(1e-300) / levels


def many_draws(v: Tensor, *grid: int, draws: int = 200) -> dict[str, float]:
    """Of many draws of v: how far their mean is off, and how they spread."""
    bucket, levels = grid
    q = QSGD(bucket=bucket, levels=levels)
    every = [q.restore(*q.quantize(v, seed)) for seed in range(draws)]
    errors = torch.stack(every) - v
    spread = errors.square().sum(1).mean()  # of a draw about v itself
    #: Rounded up with probability f, an entry has the variance f(1-f) of
    #: its step: what the spread must be, to the accuracy of the draws.
    unit = units(v, *grid)
    f = (v.abs() / unit).frac()
    return {
        # The mean's own spread is a draws-th of a draw's, if E Q(v) = v.
        "bias": (draws * errors.mean(0).square().sum() / spread).sqrt().item(),
        "spread": (spread / (unit.square() * f * (1 - f)).sum()).item(),
        "variance": (spread / v.square().sum()).item(),
    }


def main(
    w: World,
    *,
    steps: int = 5,
    local_batch: int = 24,
    rate: float = 0.2,
    bucket: int = 128,
    levels: int = 16,
) -> None:
    grid = (bucket, levels)
    run = partial(train, steps=steps, local_batch=local_batch, rate=rate)
    for task in (digits, characters):
        with meter() as moved:
            *_, last = run(w, task, bucket=bucket, levels=levels)
        # Sums over ranks and steps, in another order.
        replay = partial(reference, w, task, steps, local_batch, rate, *grid)
        w.check(task.name, last.weights, replay, slack=8)
    w.check_same("same", last.weights)
    found = many_draws(w.randn(40 * bucket, seed=w.rank), *grid)
    given = {"elements": sum(p.numel() for p in last.weights), "itemsize": 8}
    report(w, given=given, calls=moved.count, payload=moved.payload, **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
