"""Formulas of parameter-distribution/memory-tiers: bytes, rounds, memory, time."""

from atlas.formulas.parameter_distribution.sharded import zero_3_shard
from atlas.formulas.parts import chunk
from atlas.formulas.ranges import Count, Positive, Rank, Ranks, formula

# Offloaded optimizer: the model is one vector, padded until p divides it


@formula
def offload_bytes(
    ranks: Ranks, elements: Count, itemsize: Positive, steps: Count
) -> int:
    """Bytes that a rank moves down, and up too: its shard, once per step.

    Source: Ren et al. 2021 (ZeRO-Offload), all in one precision.
    """
    return steps * zero_3_shard(ranks, elements) * itemsize


@formula
def offload_fast_bytes(ranks: Ranks, elements: Count, itemsize: Positive) -> int:
    """Bytes that a rank keeps in fast memory: padded weights, and gradients.

    Source: Ren et al. 2021 (ZeRO-Offload), section 3.
    """
    return itemsize * (elements + ranks * zero_3_shard(ranks, elements))


@formula
def offload_slow_bytes(ranks: Ranks, elements: Count, itemsize: Positive) -> int:
    """Bytes that a rank keeps in slow memory: master weights and moments of its shard.

    Source: Ren et al. 2021 (ZeRO-Offload), section 3.
    """
    return 3 * itemsize * zero_3_shard(ranks, elements)


# Model spilling


@formula
def spill_peak(largest_layer: Count, itemsize: Positive) -> int:
    """Most bytes of weights in fast memory at once: the largest layer's.

    Source: derived; one layer is resident, as in Pudipeddi et al. 2020.
    """
    return largest_layer * itemsize


@formula
def spill_budget(largest_layer: Count, itemsize: Positive) -> int:
    """Most bytes in fast memory at once: the largest layer's weights and gradient.

    Source: derived; one layer is resident, as in Pudipeddi et al. 2020.
    """
    return 2 * spill_peak(largest_layer, itemsize)


@formula
def spill_up(elements: Count, last_layer: Count, itemsize: Positive) -> int:
    """Bytes of weights that come up: all forward, all but the last layer backward.

    Source: derived; the last layer forward is the first one backward.
    """
    return (2 * elements - last_layer) * itemsize


@formula
def spill_down(elements: Count, itemsize: Positive) -> int:
    """Bytes of gradients, summed and moved down once; weights are only dropped.

    Source: derived; one layer is resident, as in Pudipeddi et al. 2020.
    """
    return elements * itemsize


# Activation swapping: equal layers, a matrix and a tanh each, on a rank's share of rows


@formula
def swap_bytes(
    ranks: Ranks,
    rank: Rank,
    layers: Count,
    width: Count,
    batch: Count,
    itemsize: Positive,
) -> int:
    """Bytes of activations that leave the device: the input, and every layer's output.

    Source: derived; Rhu et al. 2016 (vDNN), which moves the inputs of layers.
    """
    return (layers + 1) * chunk(batch, ranks, rank) * width * itemsize


@formula
def swap_back(
    ranks: Ranks,
    rank: Rank,
    layers: Count,
    width: Count,
    batch: Count,
    itemsize: Positive,
    ahead: Count,
) -> int:
    """Most bytes of activations that are back at once: the one in use, and the next.

    Source: derived; Rhu et al. 2016 (vDNN) brings up one layer ahead.
    """
    return (min(ahead, layers) + 1) * chunk(batch, ranks, rank) * width * itemsize


# Offload to NVMe: master weight and two moments of a shard, padded, in a file


@formula
def nvme_read(ranks: Ranks, elements: Count, itemsize: Positive, steps: Count) -> int:
    """Bytes that a rank reads: three numbers per parameter of its shard, each step.

    Source: Rajbhandari et al. 2021 (ZeRO-Infinity), section 5; in one precision.
    """
    return 3 * steps * zero_3_shard(ranks, elements) * itemsize


@formula
def nvme_written(
    ranks: Ranks, elements: Count, itemsize: Positive, steps: Count
) -> int:
    """Bytes that a rank writes: as many as it reads, and the state it begins with.

    Source: Rajbhandari et al. 2021 (ZeRO-Infinity), section 5; in one precision.
    """
    return 3 * (steps + 1) * zero_3_shard(ranks, elements) * itemsize


@formula
def nvme_budget(budget: Count) -> int:
    """Most bytes of state that may be in memory at once.

    Source: the reader's choice.
    """
    return budget


@formula
def nvme_piece(ranks: Ranks, elements: Count, itemsize: Positive, budget: Count) -> int:
    """Bytes of state in memory at once: of as many parameters as fit.

    Source: derived; a piece is never cut, and never larger than the shard.
    """
    fitting = budget // (3 * itemsize)
    return 3 * itemsize * min(fitting, zero_3_shard(ranks, elements))
