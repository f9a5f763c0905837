"""Formulas of sync-strategy/asynchronous: bytes, rounds, memory, time."""

from atlas.formulas.ranges import Count, Positive, Rank, Ranks, formula

# Downpour: rank 0 serves; a step of a worker takes 1 second, of rank 1 longer


@formula
def downpour_staleness(ranks: Ranks) -> int:
    """Versions between a gradient's read and its push: one of every other worker.

    Source: derived from Dean et al. 2012, section 4.1: equal workers push in turn.
    """
    return max(0, ranks - 2)


@formula
def downpour_straggler_staleness(ranks: Ranks, slowdown: Positive) -> int:
    """Age of a slow worker's gradient: meanwhile each other worker pushed several.

    Source: derived from Dean et al. 2012, section 4.1.
    """
    return slowdown * downpour_staleness(ranks)


@formula
def downpour_updates(
    ranks: Ranks, rank: Rank, duration: Count, slowdown: Positive
) -> int:
    """Updates: a worker makes one a second, rank 1 fewer, the server applies all.

    Source: derived from Dean et al. 2012, section 4.1: no worker waits.
    """
    return (
        duration // slowdown
        if rank == 1
        else duration
        if rank > 1
        else 0
        if ranks == 1
        else (ranks - 2) * duration + duration // slowdown
    )


@formula
def downpour_bytes(
    ranks: Ranks,
    rank: Rank,
    elements: Count,
    itemsize: Positive,
    duration: Count,
    slowdown: Positive,
) -> int:
    """Bytes sent: a gradient for every update, and the weights before it.

    Source: Dean et al. 2012, section 4.1, fetching and pushing at every step.
    """
    return downpour_updates(ranks, rank, duration, slowdown) * elements * itemsize


@formula
def downpour_makespan(ranks: Ranks, duration: Count, slowdown: Positive) -> int:
    """Seconds until the last update that fits into the duration: no worker waits.

    Source: derived from Dean et al. 2012, section 4.1.
    """
    return (
        duration if ranks > 2 else 0 if ranks == 1 else duration // slowdown * slowdown
    )


# Asynchronous elastic averaging: a meeting after every period of steps


@formula
def elastic_meetings(
    ranks: Ranks, rank: Rank, duration: Count, period: Positive, slowdown: Positive
) -> int:
    """Meetings: a worker's own, and at the center those of all workers.

    Source: Zhang, Choromanska and LeCun 2015: no worker waits.
    """
    return downpour_updates(ranks, rank, duration // period, slowdown)


@formula
def elastic_bytes(
    ranks: Ranks,
    rank: Rank,
    elements: Count,
    itemsize: Positive,
    duration: Count,
    period: Positive,
    slowdown: Positive,
) -> int:
    """Bytes sent: at each meeting the weights one way and the center back.

    Source: Zhang, Choromanska and LeCun 2015.
    """
    return (
        elastic_meetings(ranks, rank, duration, period, slowdown) * elements * itemsize
    )


@formula
def elastic_makespan(
    ranks: Ranks, duration: Count, period: Positive, slowdown: Positive
) -> int:
    """Seconds until the last meeting that fits into the duration: no worker waits.

    Source: derived from Zhang, Choromanska and LeCun 2015.
    """
    return period * downpour_makespan(ranks, duration // period, slowdown)


# Hogwild: all ranks work; a step takes 1 second, of rank 0 longer


@formula
def hogwild_staleness(ranks: Ranks, slowdown: Positive) -> int:
    """Greatest age of a gradient: meanwhile every other rank wrote several times.

    Source: derived from Recht et al. 2011, algorithm 1: nobody waits.
    """
    return slowdown * (ranks - 1)


@formula
def hogwild_bytes() -> int:
    """Bytes handed to the network: the name of the shared memory, once.

    Source: Recht et al. 2011, section 3: processors share one memory.
    """
    return 8


@formula
def hogwild_applied(ranks: Ranks, steps: Count, support: Count, overlap: Count) -> int:
    """Increments found where all load before any stores: one of those at an entry.

    Source: derived from Recht et al. 2011, algorithm 1, without atomic additions.
    """
    return steps * (ranks * (support - overlap) + overlap)
