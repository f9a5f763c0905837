"""Ring all-reduce by hand against gloo's own all-reduce."""

from atlas.bench.all_reduce import PRODUCTION, WHAT, against_gloo, cases
from atlas.bench.pair import Bench, Pair
from exemplars.communication_pattern.collective.ring_all_reduce import ring_all_reduce
from exemplars.runtime import World


def make(w: World, *, elements: int) -> Pair:
    """Both sum the same random numbers, in place."""
    return against_gloo(w, elements, ring_all_reduce)


BENCH = Bench(
    technique="ring-all-reduce",
    production=PRODUCTION,
    what=WHAT,
    note=(
        "Same bytes and as many rounds. The exemplar posts and awaits each of its "
        "2(p-1) rounds from Python, one after the other; gloo runs them in one call. "
        "Small tensors are all rounds and hardly any bytes, so they pay most."
    ),
    make=make,
    cases=cases(),
    headline="16 MiB",
    tiny={"elements": 1003},
)
