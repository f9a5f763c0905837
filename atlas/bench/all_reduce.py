"""What the benches of all-reduces share: the same numbers, summed in place, twice."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from atlas.bench.pair import Case, Pair, Side
from exemplars.runtime import World

PRODUCTION = "torch.distributed.all_reduce on gloo"
WHAT = "One all-reduce of a float32 tensor of 16 MiB."


def against_gloo(
    w: World,
    elements: int,
    ours: Callable[[Tensor], object],
    dtype: torch.dtype = torch.float32,
) -> Pair:
    """Both sum the same random numbers, in place."""
    mine = w.randn(elements, seed=w.rank, dtype=dtype)
    a, b = mine.clone(), mine.clone()
    return Pair(
        ours=Side(lambda: ours(a), lambda: [a], lambda: a.copy_(mine)),
        theirs=Side(lambda: dist.all_reduce(b), lambda: [b], lambda: b.copy_(mine)),
        slack=2,
        compared=1,
    )


def cases(width: int = 4) -> tuple[Case, ...]:
    """From 4 KiB to 64 MiB, of elements of so many bytes."""
    sizes = [("4 KiB", 12, 20), ("64 KiB", 16, 20), ("1 MiB", 20, 5)]
    sizes += [("16 MiB", 24, 1), ("64 MiB", 26, 1)]
    return tuple(
        Case(label, 1 << power, {"elements": (1 << power) // width}, calls)
        for label, power, calls in sizes
    )
