"""Formulas of sync-strategy/bounded-staleness: bytes, rounds, memory, time."""

from atlas.formulas.ranges import Count, Positive, Rank, Ranks, formula

# Stale synchronous parallel: rank 0 is the server, the others are workers


@formula
def ssp_gap(ranks: Ranks, steps: Count, staleness: Count, slowdown: Positive) -> int:
    """The most steps by which a read leads the slowest worker, rank 1 being slower.

    Source: derived from the rule of Ho et al. 2013: without it, a fast worker
    that begins step c leads by c less what the slow one has finished by then.
    """
    return (
        0
        if ranks < 3 or steps < 2
        else min(staleness, max(1, steps - 1 - (steps - 1) // slowdown))
    )


@formula
def ssp_updates(ranks: Ranks, rank: Rank, steps: Count) -> int:
    """Updates: a worker pushes one in every step, the server applies all of them.

    Source: Ho et al. 2013.
    """
    return (ranks - 1) * steps if rank == 0 else steps


@formula
def ssp_waits(
    ranks: Ranks, rank: Rank, steps: Count, staleness: Count, slowdown: Positive
) -> int:
    """Reads that must wait when rank 1 is slower than the other workers.

    Source: derived from the rule of Ho et al. 2013: a fast worker begins step c after
    c seconds and needs slowdown * (c - staleness); the server's value is the sum.
    """
    return (
        0
        if slowdown == 1 or rank == 1
        else max(0, steps - 1 - slowdown * staleness // (slowdown - 1))
        if rank > 1
        else max(0, ranks - 2)
        * max(0, steps - 1 - slowdown * staleness // (slowdown - 1))
    )


@formula
def ssp_bytes(
    ranks: Ranks, rank: Rank, elements: Count, itemsize: Positive, steps: Count
) -> int:
    """Bytes sent: in every step a worker pushes a gradient and reads the weights.

    Source: Ho et al. 2013, without its cache: the server answers every read.
    """
    return ssp_updates(ranks, rank, steps) * elements * itemsize
