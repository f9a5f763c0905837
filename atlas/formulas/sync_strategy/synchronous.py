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


# Token-weighted mean: gradients in buckets, and one 64-bit count per step


@formula
def token_weighted_calls(elements: Count, bucket: Positive, steps: Count) -> int:
    """All-reduces of several steps: the buckets of the gradient, and one count.

    Source: derived from torchtitan, pull request 2206.
    """
    return bucketed_calls(elements, bucket, steps) + steps


@formula
def token_weighted_payload(elements: Count, itemsize: Positive, steps: Count) -> int:
    """Bytes that the steps hand to all-reduce: the gradient, and one integer.

    Source: derived from torchtitan, pull request 2206.
    """
    return bucketed_payload(elements, itemsize, steps) + 8 * steps


@formula
def mean_of_means_factor(
    ranks: Ranks, tokens: Count, microbatches: Positive, fewest: Positive
) -> float:
    """Weight of a token in the smallest micro-batch, over what it should be.

    Source: derived: the mean of the means of M micro-batches weighs a token among n by
    1/(M n), and the mean over N tokens by 1/N.
    """
    return tokens / (ranks * microbatches * fewest)


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


# Large-batch scaling: LARS and LAMB on shards that are cut across layers


@formula
def layerwise_calls(steps: Count) -> int:
    """Collectives: reduce-scatter, all-gather, and all norms in one all-reduce.

    Source: You et al. 2020, with the shards of Rajbhandari et al. 2020.
    """
    return 3 * steps


@formula
def layerwise_payload(steps: Count, layers: Count, itemsize: Positive) -> int:
    """Bytes of squared norms: of the weights and of the step, for every layer.

    Source: You et al. 2020.
    """
    return steps * 2 * layers * itemsize
