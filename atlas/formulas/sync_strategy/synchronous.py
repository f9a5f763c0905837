"""Formulas of sync-strategy/synchronous: bytes, rounds, memory, time."""

from atlas.formulas.ranges import Count, Positive, formula

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
