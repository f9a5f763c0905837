"""Ring all-reduce by hand against gloo's own all-reduce."""

import torch
import torch.distributed as dist

from atlas.bench.pair import Bench, Case, Pair, Side
from exemplars.communication_pattern.collective.ring_all_reduce import ring_all_reduce
from exemplars.runtime import World


def make(w: World, *, elements: int) -> Pair:
    """Both sum the same random numbers, in place."""
    mine = w.randn(elements, dtype=torch.float32)
    a, b = mine.clone(), mine.clone()
    return Pair(
        ours=Side(lambda: ring_all_reduce(a), lambda: [a], lambda: a.copy_(mine)),
        theirs=Side(lambda: dist.all_reduce(b), lambda: [b], lambda: b.copy_(mine)),
        slack=2,
        compared=1,
    )


def case(label: str, size: int, calls: int) -> Case:
    """One size of tensor, in bytes of float32."""
    return Case(label, size, {"elements": size // 4}, calls)


BENCH = Bench(
    technique="ring-all-reduce",
    production="torch.distributed.all_reduce on gloo",
    what="One all-reduce of a float32 tensor of 16 MiB.",
    note=(
        "Same bytes and as many rounds. The exemplar posts and awaits each of its "
        "2(p-1) rounds from Python, one after the other; gloo runs them in one call. "
        "Small tensors are all rounds and hardly any bytes, so they pay most."
    ),
    make=make,
    cases=(
        case("4 KiB", 1 << 12, 20),
        case("64 KiB", 1 << 16, 20),
        case("1 MiB", 1 << 20, 5),
        case("16 MiB", 1 << 24, 1),
        case("64 MiB", 1 << 26, 1),
    ),
    headline="16 MiB",
    tiny={"elements": 1003},
)
