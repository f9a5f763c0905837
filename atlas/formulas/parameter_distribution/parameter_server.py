"""Formulas of parameter-distribution/parameter-server: bytes, rounds, memory, time."""

from atlas.formulas.communication_pattern.collective import ring_all_reduce_total
from atlas.formulas.parts import chunk
from atlas.formulas.ranges import Count, Positive, Rank, Ranks, formula

# Sharded parameter server: a server on every rank, with one chunk each


@formula
def sharded_server_bytes(
    ranks: Ranks, rank: Rank, elements: Count, itemsize: Positive, steps: Count
) -> int:
    """Bytes that a rank sends, and receives too: others' chunks, and its own.

    Source: derived from Li et al. 2014: it pushes all chunks but its own,
    and answers the pulls of p-1 workers.
    """
    return steps * itemsize * (elements + (ranks - 2) * chunk(elements, ranks, rank))


@formula
def sharded_server_total(
    ranks: Ranks, elements: Count, itemsize: Positive, steps: Count
) -> int:
    """Bytes that all ranks together send: those of one ring all-reduce per step.

    Source: derived from Li et al. 2014; Jiang et al. 2020.
    """
    return steps * ring_all_reduce_total(ranks, elements, itemsize)
