"""Hierarchical all-reduce by hand against gloo's flat one."""

import torch

from atlas.bench.all_reduce import PRODUCTION, WHAT, against_gloo, cases
from atlas.bench.pair import Bench, Pair
from exemplars.communication_pattern.collective import hierarchical as exemplar
from exemplars.runtime import World


def make(w: World, *, elements: int) -> Pair:
    """Both sum the same random numbers, in place; ours in pretended nodes."""
    nodes = exemplar.nodes_of(w.size)
    table = torch.arange(w.size).view(nodes, -1)
    node, place = divmod(w.rank, w.size // nodes)
    row, column = table[node].tolist(), table[:, place].tolist()
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
