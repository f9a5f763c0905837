"""Hierarchical all-reduce by hand against gloo's flat one."""

from atlas.bench.all_reduce import PRODUCTION, WHAT, against_gloo, cases
from atlas.bench.pair import Bench, Pair
from exemplars.communication_pattern.collective import hierarchical as exemplar
from exemplars.runtime import World


def make(w: World, *, elements: int) -> Pair:
    """Both sum the same random numbers, in place; ours in pretended nodes."""
    row, column = exemplar.row_and_column(w.rank, w.size)
    return against_gloo(w, elements, lambda x: exemplar.all_reduce(x, row, column))


BENCH = Bench(
    technique="hierarchical",
    production=PRODUCTION,
    what=WHAT,
    note=(
        "The nodes are pretended: all ranks are on one host, where a hierarchy has "
        "nothing to save. It sends the ring's bytes in all, most of them inside a "
        "node, in fewer and larger messages posted from Python."
    ),
    make=make,
    cases=cases(),
    headline="16 MiB",
    tiny={"elements": 1003},
)
