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


# n-softsync: an update of every workers // splits gradients; timed as Downpour


@formula
def softsync_per_update(ranks: Ranks, splits: Positive) -> int:
    """Gradients in an update: those of a round, split, rounded down; at least one.

    Source: Gupta, Zhang and Wang 2016: c = floor(lambda / n) for n-softsync.
    """
    return max(1, (ranks - 1) // splits)


@formula
def softsync_youngest(ranks: Ranks, splits: Positive) -> int:
    """Least age of a gradient at equal speeds: the mean age, rounded down.

    Source: derived: W-1 gradients come in between, and every c-th makes an update.
    """
    return downpour_staleness(ranks) // softsync_per_update(ranks, splits)


@formula
def softsync_oldest(ranks: Ranks, splits: Positive) -> int:
    """Greatest age of a gradient at equal speeds: the mean age, rounded up.

    Source: derived: W-1 gradients come in between, and every c-th makes an update.
    """
    return -(-downpour_staleness(ranks) // softsync_per_update(ranks, splits))


@formula
def softsync_mean_staleness(ranks: Ranks, splits: Positive) -> float:
    """Mean age of a gradient at equal speeds: the ages in an update add up to W-1.

    Source: derived, by Hermite's identity: of c floors, their sum is a floor.
    """
    return downpour_staleness(ranks) / softsync_per_update(ranks, splits)


@formula
def softsync_straggler(ranks: Ranks, splits: Positive, slowdown: Positive) -> int:
    """Age of a slow worker's gradient, at most: the others came several times.

    Source: derived: k(W-1) gradients come in between, and every c-th makes an update.
    """
    return -(
        -downpour_straggler_staleness(ranks, slowdown)
        // softsync_per_update(ranks, splits)
    )


@formula
def softsync_straggler_least(ranks: Ranks, splits: Positive, slowdown: Positive) -> int:
    """Age of a slow worker's gradient, at least.

    Source: derived: k(W-1) gradients come in between, and every c-th makes an update.
    """
    return downpour_straggler_staleness(ranks, slowdown) // softsync_per_update(
        ranks, splits
    )


# Staleness-aware rate: timed as Downpour; a gradient counts for 1 / max(1, age)


@formula
def staleness_aware_round(ranks: Ranks) -> float:
    """Full steps that a round of all equal workers moves the weights.

    Source: derived from Zhang et al. 2016: W gradients, each W-1 updates old.
    """
    return (ranks - 1) / max(1, ranks - 2)


@formula
def staleness_aware_share(ranks: Ranks, slowdown: Positive) -> float:
    """Weight of a slow worker's gradients beside another worker's: about 1 / k^2.

    Source: derived from Zhang et al. 2016: it makes 1 gradient, k(W-1) updates old;
    another makes k, one of them W-1 updates old and the others W-2, if that is not 0.
    """
    return max(1, ranks - 3) / (
        slowdown * (max(1, ranks - 3) + (slowdown - 1) * downpour_staleness(ranks))
    )


# Delay compensation: timed as Downpour; the server keeps what it sent to each worker


@formula
def delay_backup_bytes(ranks: Ranks, elements: Count, itemsize: Positive) -> int:
    """Bytes of old weights that the server keeps: a copy for every worker.

    Source: Zheng et al. 2017, algorithm 2: w_bak(m) for every worker m.
    """
    return (ranks - 1) * elements * itemsize


# Asynchronous gossip: all ranks work; a step takes 1 second, of rank 0 longer


@formula
def gossip_updates(
    ranks: Ranks, rank: Rank, duration: Count, slowdown: Positive
) -> int:
    """Updates of this rank: one a second, of a slow one fewer; nobody waits.

    Source: derived from Lian et al. 2018 (AD-PSGD).
    """
    return duration // slowdown if rank == 0 else duration


@formula
def gossip_total_bytes(
    ranks: Ranks,
    elements: Count,
    itemsize: Positive,
    duration: Count,
    slowdown: Positive,
) -> int:
    """Bytes that all ranks send: at each update a copy each way.

    Source: Lian et al. 2018 (AD-PSGD): both ends of an exchange average.
    """
    return 2 * ((ranks - 1) * duration + duration // slowdown) * elements * itemsize


@formula
def gossip_makespan(ranks: Ranks, duration: Count, slowdown: Positive) -> int:
    """Seconds until the last update that fits into the duration: nobody waits.

    Source: derived from Lian et al. 2018 (AD-PSGD).
    """
    return duration if ranks > 1 else duration // slowdown * slowdown
