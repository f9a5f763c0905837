"""Halving and doubling by hand against gloo's own all-reduce, which is a ring."""

from atlas.bench.all_reduce import PRODUCTION, WHAT, against_gloo, cases
from atlas.bench.pair import Bench, Pair
from exemplars.communication_pattern.collective import halving_doubling as exemplar
from exemplars.runtime import World


def make(w: World, *, elements: int) -> Pair:
    """Both sum the same random numbers, in place."""
    return against_gloo(w, elements, exemplar.all_reduce)


BENCH = Bench(
    technique="halving-doubling",
    production=PRODUCTION,
    what=WHAT,
    note=(
        "Same bytes where p is a power of two, in 2 lg p rounds instead of 2(p-1): "
        "on 4 ranks 4 instead of 6. The rounds are posted from Python, and the first "
        "and the last move half the tensor at once, so that sums and messages "
        "overlap less than in a ring of small chunks."
    ),
    make=make,
    cases=cases(),
    headline="16 MiB",
    tiny={"elements": 1003},
)
