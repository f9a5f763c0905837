"""Formulas of parameter-distribution/compact-state: bytes, rounds, memory, time."""

from atlas.formulas.ranges import Count, Positive, Ranks, formula

# Activation checkpointing


@formula
def checkpoint_peak(layers: Count, segments: Positive, activation_bytes: Count) -> int:
    """Most bytes of activations: every segment's input, and one segment's layers.

    Source: Chen et al. 2016 (sublinear memory), section 4.1.
    """
    return activation_bytes * (segments + -(-layers // segments))


@formula
def checkpoint_best(layers: Positive) -> float:
    """Segments that keep the fewest activations, if that is a whole number.

    Source: Chen et al. 2016 (sublinear memory), section 4.1.
    """
    return layers**0.5


@formula
def checkpoint_forwards(layers: Count) -> int:
    """Times that any layer runs forward: each of them twice.

    Source: Chen et al. 2016 (sublinear memory), section 4.1.
    """
    return 2 * layers


@formula
def checkpoint_makespan(layers: Count) -> int:
    """Seconds of a step if a layer takes 1 forward and 2 backward; 3 without it.

    Source: Chen et al. 2016 (sublinear memory), section 4.1: one extra forward.
    """
    return 4 * layers


@formula
def gradient_payload(elements: Count, itemsize: Positive) -> int:
    """Bytes of a gradient that is handed to all-reduce once.

    Source: Li et al. 2020, PyTorch Distributed.
    """
    return elements * itemsize


# Mixed precision


@formula
def mixed_precision_state(elements: Count) -> int:
    """Bytes that a rank keeps: 2 of weight and of gradient, 4 of master, 8 of moments.

    Source: Rajbhandari et al. 2020, section 3.1.
    """
    return 16 * elements


@formula
def mixed_precision_payload(elements: Count, steps: Count) -> int:
    """Bytes of 16-bit gradients that a rank hands over.

    Source: Micikevicius et al. 2018, section 3.
    """
    return 2 * elements * steps


@formula
def mixed_precision_lost() -> int:
    """Elements of a scaled gradient that underflow to zero.

    Source: Micikevicius et al. 2018, section 3.2.
    """
    return 0


# Selective recomputation: transformer layers; a product of an m x k with a k x n matrix
# takes 2mnk operations


@formula
def selective_kept(
    layers: Count,
    tokens: Count,
    local_batch: Count,
    width: Count,
    itemsize: Positive,
) -> int:
    """Bytes of activations when forward ends, without those inside the attention.

    Source: derived; Korthikanti et al. 2022, section 4.1, without its other dropouts,
    with the mean and deviation of two norms, which it neglects.
    """
    return layers * local_batch * tokens * (16 * width + 4) * itemsize


@formula
def selective_saved(
    layers: Count,
    tokens: Count,
    local_batch: Count,
    heads: Count,
    itemsize: Positive,
) -> int:
    """Bytes inside the attention: softmax, its mask, and what the mask leaves.

    Source: Korthikanti et al. 2022, section 4.1: 5 a s^2 b at 2 bytes.
    """
    return layers * local_batch * heads * tokens * tokens * (2 * itemsize + 1)


@formula
def selective_flops(
    layers: Count, tokens: Count, local_batch: Count, width: Count
) -> int:
    """Operations that are computed again: two products in every layer.

    Source: derived: scores and their product with the values, once forward.
    """
    return 4 * layers * local_batch * tokens * tokens * width


# Eight-bit optimizer: shards of whole blocks; the last blocks may be padding


@formula
def eight_bit_state(ranks: Ranks, elements: Count, scale_block: Positive) -> int:
    """Bytes of a rank's moments: a byte per element and 4 per block, twice.

    Source: Dettmers et al. 2021, section 2: block-wise quantization.
    """
    blocks = -(-elements // (scale_block * ranks))
    return 2 * blocks * (scale_block + 4)


@formula
def eight_bit_differ(elements: Count) -> int:
    """Weights that may come out differently, if shards cut through blocks.

    Source: derived: any element of a block whose largest element is elsewhere.
    """
    return elements


@formula
def eight_bit_cut(ranks: Ranks, elements: Count, scale_block: Positive) -> int:
    """Weights that must differ: one, if an even share is no whole number of blocks.

    Source: derived: of the two parts of a block, one lacks its largest element.
    """
    share = -(-elements // ranks)
    return 1 if ranks > 1 and share % scale_block > 0 else 0
