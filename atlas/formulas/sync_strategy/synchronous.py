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
