"""TernGrad: round every entry to -1, 0 or 1 at random, times one scale.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.quantization.ternary_gradients

All ranks first agree on a scale s, the largest entry that any of them has.
Then each entry keeps its sign or becomes 0, by a draw that makes the
expectation right:

    Q(g) = s * sign(g) * (1 with probability |g| / s, else 0)      E Q(g) = g

Three values fit into two bits, so four entries make a byte:

    + 0 - +   ->   1 + 4 * 0 + 16 * 2 + 64 * 1   =   0b01100001

No error is carried from step to step: errors cancel over ranks and steps. The
price is variance, the sum of |g| (s - |g|). Where one entry is much larger
than the rest, most of them are sent as 0, and a few as s.

Because the scale is shared, codes of different ranks mean the same numbers.
They are added as whole numbers before anything is scaled, and the sum over p
ranks has at most 2p + 1 values.

Source: Wen et al. 2017, section 3.
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


def pack(codes: Tensor) -> Tensor:
    """Four codes of -1, 0 or 1 to a byte; the last byte is filled with 0."""
    #: -1 becomes 2, in two bits; 3 is never used.
    pairs = pad(codes % 3, (0, -len(codes) % 4)).view(-1, 4)
    return (pairs << places(codes)).sum(1).byte()


def unpack(packed: Tensor, size: int) -> Tensor:
    """The first `size` codes."""
    pairs = packed[:, None].long() >> places(packed) & 3
    return (pairs.flatten()[:size] + 1) % 3 - 1


def places(like: Tensor) -> Tensor:
    """Where a byte's four codes begin, the lowest first."""
    return torch.arange(0, 8, 2, device=like.device)


class Ternary:
    """A compressor whose only state is its stream of random numbers."""

    def __init__(self, *, seed: int) -> None:
        #: Drawn on the host: the same numbers whatever the device.
        self.source = torch.Generator().manual_seed(seed)

    def compress(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """A code of two bits for each entry, and the scale of all ranks."""
        scale = gradient.abs().max()
        #: One number, but all wait for it: by scales of their own, ranks
        #: would send codes that cannot be added.
        dist.all_reduce(scale, dist.ReduceOp.MAX)
        draws = torch.rand(
            gradient.shape, generator=self.source, dtype=gradient.dtype
        )
        #: For a uniform u, u < |g| / s has the probability |g| / s: that
        #: alone makes it unbiased. As a product, since s may be 0.
        kept = draws.to(gradient.device) * scale < gradient.abs()
        return pack(gradient.sign().long() * kept), scale


def sum_of_all(packed: Tensor, scale: Tensor, size: int) -> Tensor:
    """What all ranks sent, added up and then scaled."""
    p = dist.get_world_size()
    every = packed.new_empty(p * len(packed))
    #: Gathered: a sum of codes does not fit into two bits.
    dist.all_gather_single(every, packed)
    with span("decode", cost=1):
        #: Whole numbers round nowhere, so the order of the ranks is free.
        codes = [unpack(sent, size) for sent in every.chunk(p)]
        return torch.stack(codes).sum(0) * scale


def train(
    w: World, task: Task, *, steps: int, local_batch: int, rate: float
) -> Iterator[Step]:
    """SGD in which two bits of each entry travel."""
    model = task.model().to(w.device)
    parameters = list(model.parameters())
    weights = parameters_to_vector(parameters).detach()
    #: Another seed for each rank: errors are independent, and cancel in the
    #: sum.
    ternary = Ternary(seed=w.rank)
    for step in range(steps):
        x, y = task.batch(step * w.size + w.rank, local_batch)
        with span("compute", label=step, cost=3):
            loss = task.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
            grads = torch.autograd.grad(loss, parameters)
        sent = ternary.compress(parameters_to_vector(grads))
        weights = weights - rate / w.size * sum_of_all(*sent, len(weights))
        vector_to_parameters(weights, parameters)
        yield Step(loss.item(), parameters)


def reference(
    w: World, task: Task, steps: int, local_batch: int, rate: float
) -> list[Tensor]:
    """One process that takes every rank's batches and repeats its draws."""
    model = task.model().to(w.device)
    parameters: list[Tensor] = list(model.parameters())
    weights = parameters_to_vector(parameters).detach()
    vector_to_parameters(weights, parameters)  # as views of it
    sgd = torch.optim.SGD([weights], lr=rate)
    sources = [torch.Generator().manual_seed(r) for r in range(w.size)]
    for step in range(steps):
        slopes = list[Tensor]()
        for r in range(w.size):
            x, y = task.batch(step * w.size + r, local_batch)
            loss = task.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
            grads = torch.autograd.grad(loss, parameters)
            slopes.append(parameters_to_vector(grads))
        largest = max(g.abs().max() for g in slopes)
        total = torch.zeros_like(weights)
        for g, source in zip(slopes, sources):
            u = torch.rand(len(g), generator=source, dtype=g.dtype)
            total += g.sign() * (u.to(w.device) * largest < g.abs())
        weights.grad = total * largest / w.size
        sgd.step()
    return parameters


def many_draws(v: Tensor, seed: int, draws: int = 200) -> dict[str, float]:
    """Of many draws of v: how far their mean is off, and how they spread."""
    ternary = Ternary(seed=seed)
    every = list[Tensor]()
    for _ in range(draws):
        packed, scale = ternary.compress(v)
        every.append(unpack(packed, len(v)) * scale)
    errors = torch.stack(every) - v
    spread = errors.square().sum(1).mean()  # of a draw about v itself
    expected = (v.abs() * (scale - v.abs())).sum()
    return {
        # The mean's own spread is a draws-th of a draw's, if E Q(v) = v.
        "bias": (draws * errors.mean(0).square().sum() / spread).sqrt().item(),
        "spread": (spread / expected).item(),
    }


def main(
    w: World, *, steps: int = 5, local_batch: int = 24, rate: float = 0.05
) -> None:
    for task in (digits, characters):
        run = train(w, task, steps=steps, local_batch=local_batch, rate=rate)
        with meter() as moved:
            *_, last = run
        # The same whole numbers; only the last product rounds differently.
        replay = partial(reference, w, task, steps, local_batch, rate)
        w.check(task.name, last.weights, replay, slack=8)
    w.check_same("same", last.weights)
    found = many_draws(w.randn(5003, seed=w.rank), w.rank)
    given = {"elements": sum(p.numel() for p in last.weights), "itemsize": 8}
    report(w, given=given, calls=moved.count, payload=moved.payload, **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
