"""All-to-all by hand, in pairs, against gloo's."""

import torch
import torch.distributed as dist

from atlas.bench.all_reduce import cases
from atlas.bench.pair import Bench, Pair, Side
from exemplars.communication_pattern.collective.all_to_all import all_to_all
from exemplars.runtime import World


def make(w: World, *, elements: int) -> Pair:
    """Both exchange the same random blocks, all of one size."""
    size = elements // w.size * w.size
    mine = w.randn(size, seed=w.rank, dtype=torch.float32)
    a, b = torch.empty_like(mine), torch.empty_like(mine)
    blocks, into = list(mine.chunk(w.size)), list(a.chunk(w.size))
    return Pair(
        ours=Side(lambda: all_to_all(blocks, into), lambda: [a]),
        theirs=Side(lambda: dist.all_to_all_single(b, mine), lambda: [b]),
        slack=0,
        compared=1,
    )


BENCH = Bench(
    technique="all-to-all",
    production="torch.distributed.all_to_all_single on gloo",
    what="One exchange of float32 blocks, 16 MiB a rank.",
    note=(
        "Same bytes. The exemplar exchanges with one rank after the other, each "
        "round posted from Python; gloo posts all of them at once."
    ),
    make=make,
    cases=cases(),
    headline="16 MiB",
    tiny={"elements": 1003},
)
