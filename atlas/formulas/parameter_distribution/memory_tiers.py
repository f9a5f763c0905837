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


# Out-of-core data parallelism: square layers, a multiple of a block's. The inputs of
# the last blocks stay on the device, all others are swapped


@formula
def out_of_core_work(
    width: Count, local_batch: Count, itemsize: Positive, block_layers: Positive
) -> int:
    """Most bytes on the device for one block: weights, gradients, activations.

    Source: derived: backward is in the first layer of the block, with all gradients of
    weights, or in the last, with all activations.
    """
    weight = width * width * itemsize
    activation = local_batch * width * itemsize
    first = 2 * block_layers * weight + 5 * activation
    last = (block_layers + 1) * weight + (block_layers + 4) * activation
    return max(first, last)


@formula
def out_of_core_kept(
    layers: Count,
    width: Positive,
    local_batch: Positive,
    itemsize: Positive,
    block_layers: Positive,
    budget: Count,
) -> int:
    """Inputs of blocks that stay on the device: one, and what else the budget allows.

    Source: derived; Wahib et al. 2020 (KARMA): what fits is not swapped.
    """
    work = out_of_core_work(width, local_batch, itemsize, block_layers)
    room = (budget - work) // (local_batch * width * itemsize)
    return min(layers // block_layers, 1 + room)


@formula
def out_of_core_budget(budget: Count) -> int:
    """Most bytes that may be on the device at once.

    Source: the reader's choice.
    """
    return budget


@formula
def out_of_core_resident(
    layers: Count,
    width: Positive,
    local_batch: Positive,
    itemsize: Positive,
    block_layers: Positive,
    budget: Count,
) -> int:
    """Bytes on the device at once: those of one block, and the other inputs that stay.

    Source: derived.
    """
    others = (
        out_of_core_kept(layers, width, local_batch, itemsize, block_layers, budget) - 1
    )
    work = out_of_core_work(width, local_batch, itemsize, block_layers)
    return work + others * local_batch * width * itemsize


@formula
def out_of_core_swapped(
    layers: Count,
    width: Positive,
    local_batch: Positive,
    itemsize: Positive,
    block_layers: Positive,
    budget: Count,
) -> int:
    """Bytes of activations that one step swaps: inputs of blocks that do not stay.

    Source: derived; Wahib et al. 2020 (KARMA).
    """
    swapped = layers // block_layers - out_of_core_kept(
        layers, width, local_batch, itemsize, block_layers, budget
    )
    return swapped * local_batch * width * itemsize


@formula
def out_of_core_down(
    layers: Count,
    width: Positive,
    local_batch: Positive,
    itemsize: Positive,
    block_layers: Positive,
    budget: Count,
    steps: Count,
) -> int:
    """Bytes that go down: swapped inputs, and every gradient.

    Source: derived; Wahib et al. 2020 (KARMA): the host updates.
    """
    gradients = layers * width * width * itemsize
    return steps * (
        out_of_core_swapped(layers, width, local_batch, itemsize, block_layers, budget)
        + gradients
    )


@formula
def out_of_core_up(
    layers: Count,
    width: Positive,
    local_batch: Positive,
    itemsize: Positive,
    block_layers: Positive,
    budget: Count,
    steps: Count,
) -> int:
    """Bytes that come up: swapped inputs, and all weights, forward and backward.

    Source: derived; Wahib et al. 2020 (KARMA).
    """
    weights = layers * width * width * itemsize
    return steps * (
        out_of_core_swapped(layers, width, local_batch, itemsize, block_layers, budget)
        + 2 * weights
    )


@formula
def out_of_core_payload(
    layers: Count, width: Count, itemsize: Positive, steps: Count
) -> int:
    """Bytes of gradients that a host hands to all-reduce.

    Source: derived: every gradient once per step.
    """
    return steps * layers * width * width * itemsize


# Shard alternator parallelism: chains of equal models. A shard is a square matrix, and
# takes 1 second forward and 3 backward; all devices share one memory of the host


@formula
def alternator_chain(shards: Count, steps: Count) -> int:
    """Seconds of one model alone, on however many devices.

    Source: derived: shards wait for one another, forward 1 and backward 3.
    """
    return 4 * steps * shards


@formula
def alternator_makespan(
    ranks: Ranks, models: Count, shards: Count, steps: Count
) -> float:
    """Most seconds of all models together: work over p, and a chain's end alone.

    Source: derived: while a device is idle, each chain that is not done has its turn.
    """
    chain = alternator_chain(shards, steps)
    return (models * chain + (ranks - 1) * chain) / ranks


@formula
def alternator_least(
    ranks: Ranks, models: Positive, shards: Count, steps: Count
) -> float:
    """Fewest seconds of all models together, by any schedule.

    Source: derived: no less than one chain, nor than all work over p.
    """
    chain = alternator_chain(shards, steps)
    return max(chain, models * chain / ranks)


@formula
def alternator_resident(width: Count, batch: Count, itemsize: Positive) -> int:
    """Most bytes on a device at once: one shard, its gradient and update, activations.

    Source: derived: four tensors of the size of a shard, and five activations.
    """
    return (4 * width * width + 5 * batch * width) * itemsize


@formula
def alternator_shard(width: Count, itemsize: Positive) -> int:
    """Bytes of a shard, its gradient, and its new weights.

    Source: derived: all there at once, when a device updates.
    """
    return 3 * width * width * itemsize


@formula
def alternator_moved(
    models: Count,
    shards: Count,
    steps: Count,
    width: Count,
    batch: Count,
    itemsize: Positive,
) -> int:
    """Bytes between the host and all devices.

    Source: derived: in a step each shard comes up twice and goes down once, with two
    activations forward and three backward; the first input goes down before.
    """
    weight = width * width
    activation = batch * width
    step = shards * (3 * weight + 5 * activation) + activation
    return models * steps * step * itemsize
