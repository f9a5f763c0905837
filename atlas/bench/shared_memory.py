"""All-reduce through shared memory against gloo's, over loopback."""

import torch

from atlas.bench.all_reduce import PRODUCTION, against_gloo, cases
from atlas.bench.pair import Bench, Pair
from exemplars.communication_pattern.transport import (
    shared_memory_all_reduce as exemplar,
)
from exemplars.runtime import World


def make(w: World, *, elements: int) -> Pair:
    """Both sum the same random numbers, in place; ours has its table already."""
    like = torch.empty(elements, dtype=torch.double)
    rows = exemplar.shared_rows(exemplar.agreed_file(w.device), like)
    return against_gloo(
        w, elements, lambda x: exemplar.all_reduce(x, rows), torch.double
    )


BENCH = Bench(
    technique="shared-memory-all-reduce",
    production=PRODUCTION,
    what="One all-reduce of a float64 tensor of 16 MiB.",
    note=(
        "No byte goes through a socket: a rank writes once, sums its share of all, "
        "and reads once, with two barriers. gloo on one host still sends everything "
        "through the loopback interface."
    ),
    make=make,
    cases=cases(width=8),
    headline="16 MiB",
    tiny={"elements": 1003},
)
