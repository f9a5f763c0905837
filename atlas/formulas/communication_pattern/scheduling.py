"""Formulas of communication-pattern/scheduling: bytes, rounds, memory, time."""

from atlas.formulas.communication_pattern.collective import ring_all_reduce_rounds
from atlas.formulas.parameter_distribution.sharded import zero_3_gathered_bytes
from atlas.formulas.ranges import Amount, Count, Positive, Ranks, formula

# Tensor fusion: equal tensors that share a buffer


@formula
def fusion_calls(units: Count, elements: Count, bucket: Positive) -> int:
    """All-reduces when as many whole tensors as fit share a buffer, at least one.

    Source: Sergeev and Del Balso 2018, on tensor fusion.
    """
    return -(-units // max(1, bucket // max(1, elements)))


@formula
def fusion_saved(units: Count, elements: Count, bucket: Positive) -> int:
    """All-reduces that fusion saves, and with each its latency.

    Source: derived: one call per tensor, less those that remain.
    """
    return units - fusion_calls(units, elements, bucket)


@formula
def fusion_payload(units: Count, elements: Count, itemsize: Positive) -> int:
    """Bytes handed to all-reduce, fused or not.

    Source: Sergeev and Del Balso 2018, on tensor fusion.
    """
    return units * elements * itemsize


@formula
def fusion_saved_seconds(
    ranks: Ranks, units: Count, elements: Count, bucket: Positive, alpha: Amount
) -> float:
    """Seconds that fusion saves when each round of a ring all-reduce costs alpha.

    Source: derived: 2(p-1) rounds for every call that is not made.
    """
    saved = fusion_saved(units, elements, bucket)
    return ring_all_reduce_rounds(ranks) * saved * alpha


# Wait-free backpropagation: equal layers, one square matrix each


@formula
def wait_free_calls(layers: Count, steps: Count) -> int:
    """All-reduces: one for each layer in each step; each is waited for once.

    Source: Zhang et al. 2017.
    """
    return steps * layers


@formula
def wait_free_early(layers: Count, steps: Count) -> int:
    """All-reduces that begin before the last gradient of their step is computed.

    Source: derived from Zhang et al. 2017: all but the first layer's, which is last.
    """
    return steps * max(0, layers - 1)


@formula
def wait_free_payload(
    layers: Count, width: Count, itemsize: Positive, steps: Count
) -> int:
    """Bytes handed to all-reduce: every layer's matrix in each step.

    Source: Zhang et al. 2017.
    """
    return steps * layers * width**2 * itemsize


# Priority scheduling: equal layers, cut into slices that take one second each


@formula
def priority_arrived(layers: Positive, pieces: Positive, backward: Count) -> int:
    """Slices that have arrived when the first layer's gradient is complete.

    Source: derived from Jayarajan et al. 2019: each later layer sends what fits into
    the next layer's backward, then the first layer overtakes the rest.
    """
    return (layers - 1) * min(backward, pieces) + pieces


@formula
def priority_start(
    ranks: Ranks, layers: Positive, pieces: Positive, forward: Amount, backward: Count
) -> float:
    """Seconds until the second forward starts: one step, and the first layer's slices.

    Source: derived from Jayarajan et al. 2019.
    """
    return layers * (forward + backward) + (pieces if ranks > 1 else 0)


@formula
def first_come_start(
    ranks: Ranks, layers: Positive, pieces: Positive, forward: Amount, backward: Count
) -> float:
    """The same where slices leave in the order in which they became ready.

    Source: derived: the first layer's slices wait for all that backward did not hide.
    """
    return priority_start(ranks, layers, pieces, forward, backward) + (
        (layers - 1) * max(0, pieces - backward) if ranks > 1 else 0
    )


@formula
def priority_exposed(
    ranks: Ranks,
    layers: Positive,
    pieces: Positive,
    forward: Amount,
    backward: Count,
    steps: Positive,
) -> float:
    """Seconds of communication that neither backward nor the next forward hides.

    Source: derived: slices that backward had no room for have a layer's forward more.
    """
    each = pieces + (layers - 1) * max(0, pieces - backward - forward)
    return (steps - 1) * each if ranks > 1 else 0


# Decomposed overlap: a gather before a product, then a product before a scatter


@formula
def overlap_bytes(
    ranks: Ranks, local_batch: Count, width: Count, itemsize: Positive
) -> int:
    """Bytes that a rank sends in either half: the tokens of one rank to p - 1 others.

    Source: derived: an all-gather, or a reduce-scatter, by ring.
    """
    return (ranks - 1) * local_batch * width * itemsize


@formula
def overlap_early(ranks: Ranks) -> int:
    """Partial products that begin while a message is on its way, in both halves.

    Source: derived from Wang et al. 2023: all but one of p products in each half.
    """
    return 2 * (ranks - 1)


@formula
def overlap_exposed(ranks: Ranks, product: Amount) -> float:
    """Seconds that a rank waits in both halves when a message takes one second.

    Source: derived from Wang et al. 2023: what a product does not hide of a message.
    """
    return 2 * (ranks - 1) * max(0, 1 - product)


# Prefetched gather: equal layers in shards; a gather or a scatter takes one second


@formula
def prefetch_exposed(
    ranks: Ranks, layers: Positive, backward: Positive, steps: Count
) -> float:
    """Seconds that a rank waits if a forward hides one gather, with two rooms.

    Source: derived from Zhao et al. 2023: the first gather, the last scatter, and what
    backward does not hide of a scatter and the gather behind it.
    """
    each = 2 + max(0, layers - 2) * max(0, 2 - backward)
    return steps * each if ranks > 1 else 0


@formula
def one_room_exposed(ranks: Ranks, layers: Positive, steps: Count) -> float:
    """The same with one room: every gather and every scatter is waited for.

    Source: derived: L gathers forward, L - 1 and as many scatters backward, one more.
    """
    return steps * (3 * layers - 1) if ranks > 1 else 0


@formula
def prefetch_gathered_bytes(ranks: Ranks, width: Count, itemsize: Positive) -> int:
    """Bytes of two gathered layers, their padding included.

    Source: derived from Zhao et al. 2023: the layer in use, and the next.
    """
    return 2 * zero_3_gathered_bytes(ranks, width**2, itemsize)


@formula
def prefetch_volume(
    ranks: Ranks, layers: Positive, width: Count, itemsize: Positive, steps: Count
) -> int:
    """Bytes that a rank sends when the collectives are rings.

    Source: derived: ZeRO-3's three passes, but the last layer is gathered once.
    """
    shard = zero_3_gathered_bytes(ranks, width**2, itemsize) // ranks
    return steps * (3 * layers - 1) * (ranks - 1) * shard
