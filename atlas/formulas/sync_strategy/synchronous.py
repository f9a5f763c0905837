"""Formulas of sync-strategy/synchronous: bytes, rounds, memory, time."""

from atlas.formulas.parts import chunk
from atlas.formulas.ranges import Count, Positive, Rank, Ranks, formula

# Synchronous SGD, gradients in buckets


@formula
def bucketed_calls(elements: Count, bucket: Positive, steps: Count) -> int:
    """All-reduces of several steps, when each gradient is cut into buckets.

    Source: Li et al. 2020, PyTorch Distributed.
    """
    return steps * -(-elements // bucket)


@formula
def bucketed_payload(elements: Count, itemsize: Positive, steps: Count) -> int:
    """Bytes that the steps hand to all-reduce, however the buckets are cut.

    Source: Li et al. 2020, PyTorch Distributed.
    """
    return steps * elements * itemsize


# Gradient accumulation: the calls and bytes of an update are those of its buckets


@formula
def accumulated_activations(
    ranks: Ranks,
    rank: Rank,
    batch: Count,
    microbatches: Positive,
    outputs: Count,
    itemsize: Positive,
) -> int:
    """Most bytes of activations: those of one micro-batch, and one number of the loss.

    Source: derived from Li et al. 2020, section 3.2.4: a micro-batch's backward ends
    before the next forward. Cross-entropy keeps the total weight of its labels too.
    """
    samples = chunk(chunk(batch, ranks, rank), microbatches, 0)
    return (samples * outputs + 1) * itemsize


# Backup workers: rank 0 serves. A step takes a worker 1 second; but every k steps
# another worker, each in turn, stalls for k seconds


@formula
def backup_staleness() -> int:
    """Updates between reading the weights and using the gradient: none.

    Source: Chen et al. 2016, algorithm 4: a gradient of an earlier step is dropped.
    """
    return 0


@formula
def backup_dropped(steps: Count, backups: Count, slowdown: Positive) -> int:
    """Gradients that come too late: b per step, less one where a worker is still away.

    Source: derived from Chen et al. 2016, algorithm 4.
    """
    stalls = -(-steps // slowdown)
    return 0 if backups == 0 else (backups - 1) * steps + stalls


@formula
def backup_gradients(
    ranks: Ranks, rank: Rank, steps: Count, backups: Count, slowdown: Positive
) -> int:
    """Gradients: a worker computes one per step that it starts, the server takes all.

    Source: derived from Chen et al. 2016, algorithms 3 and 4: who stalls for k steps
    misses k-1 of them, or what is left of the training.
    """
    workers = max(1, ranks - 1)
    stalls = -(-steps // slowdown)
    mine = (stalls + workers - rank) // workers
    left = slowdown * stalls - steps if (stalls - rank) % workers == 0 else 0
    return (
        (ranks - 1) * steps - (steps - stalls if ranks > 1 and backups > 0 else 0)
        if rank == 0
        else steps
        if backups == 0
        else steps - (slowdown - 1) * mine + left
    )


@formula
def backup_bytes(
    ranks: Ranks,
    rank: Rank,
    elements: Count,
    itemsize: Positive,
    steps: Count,
    backups: Count,
    slowdown: Positive,
) -> int:
    """Bytes sent: for every gradient, used or not, the weights there and itself back.

    Source: Chen et al. 2016, algorithms 3 and 4.
    """
    gradients = backup_gradients(ranks, rank, steps, backups, slowdown)
    return gradients * elements * itemsize


@formula
def backup_makespan(steps: Count, backups: Count, slowdown: Positive) -> int:
    """Seconds until the last gradient has come; without backups all wait for it.

    Source: derived from Chen et al. 2016, algorithm 4.
    """
    stalls = -(-steps // slowdown)
    return steps + (slowdown - 1) * stalls if backups == 0 else slowdown * stalls
