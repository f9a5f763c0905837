"""Formulas of communication-pattern/sparsification: bytes, rounds, memory, time."""

from atlas.formulas.communication_pattern.collective import (
    tree_all_reduce_bytes,
    tree_all_reduce_rounds,
)
from atlas.formulas.ranges import Count, Positive, Rank, Ranks, formula


@formula
def top_k_payload(kept: Count, itemsize: Positive, steps: Count) -> int:
    """Bytes a rank hands over: the kept values and their places, 4 bytes each.

    Source: Lin et al. 2018, section 3.
    """
    return steps * kept * (itemsize + 4)


@formula
def top_k_gathered(ranks: Ranks, kept: Count, itemsize: Positive, steps: Count) -> int:
    """Bytes a rank sends when the all-gathers are rings.

    Source: Thakur et al. 2005, section 4.1: p-1 rounds, one contribution in each.
    """
    return (ranks - 1) * top_k_payload(kept, itemsize, steps)


# Random-k: the same places on every rank, so the values are reduced


@formula
def random_k_payload(kept: Count, itemsize: Positive, steps: Count) -> int:
    """Bytes a rank hands to the all-reduce: the values, and no places.

    Source: Stich et al. 2018, definition 2.1, with places drawn from a shared seed.
    """
    return steps * kept * itemsize


@formula
def random_k_calls(steps: Count) -> int:
    """All-reduces: one per step, as for a dense gradient.

    Source: derived: equal places can be summed on the way, and need no gather.
    """
    return steps


# Global top-k: up and down a tree, k entries on each edge


@formula
def global_top_k_bytes(
    ranks: Ranks, rank: Rank, kept: Count, itemsize: Positive, steps: Count
) -> int:
    """Bytes that rank r sends: k values and places of 4 bytes, once on each edge.

    Source: Shi et al. 2019: tree-based merges, then a broadcast.
    """
    return steps * tree_all_reduce_bytes(ranks, rank, kept, itemsize + 4)


@formula
def global_top_k_nonzeros(kept: Count) -> int:
    """Most entries of an update that are not zero, however many ranks there are.

    Source: Shi et al. 2019: the k largest are selected again after every merge.
    """
    return kept


@formula
def global_top_k_rounds(ranks: Ranks, steps: Count) -> int:
    """Rounds of messages: lg p, rounded up, to the root, and as many back.

    Source: Shi et al. 2019.
    """
    return steps * tree_all_reduce_rounds(ranks)
