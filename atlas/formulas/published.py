"""Formulas that others have published and that ours are held against."""

from atlas.formulas.ranges import Count, Positive, Ranks, formula

# ParaDL's own memory: values and gradients of every tensor, nothing reused


@formula
def paradl_memory(
    samples: Count,
    inputs: Count,
    outputs: Count,
    elements: Count,
    itemsize: Positive,
) -> int:
    """Bytes of activations and weights, each with its gradient, nothing reused.

    Source: Kahira et al. 2021, table III, data parallelism; deliberately an excess.
    """
    return 2 * itemsize * (samples * (inputs + outputs) + elements)


# DeepSpeed's estimators


@formula
def deepspeed_zero_2(ranks: Ranks, elements: Count) -> float:
    """Bytes of a device: weights and gradients in 16 bits, a share of 16 bytes each.

    Source: DeepSpeed's documentation, memory requirements, ZeRO-2 without offload.
    """
    return 4 * elements + 16 * elements / ranks


@formula
def deepspeed_zero_2_offload(elements: Count) -> int:
    """Bytes of a device when all but 16-bit weights are on the host.

    Source: DeepSpeed's documentation, memory requirements, ZeRO-2 with offload.
    """
    return 2 * elements


@formula
def deepspeed_zero_3(ranks: Ranks, elements: Count, largest_layer: Count) -> float:
    """Bytes of a device: a share of 18 bytes each, and the largest layer whole.

    Source: DeepSpeed's documentation, memory requirements, ZeRO-3 without offload.
    """
    return 4 * largest_layer + 18 * elements / ranks


@formula
def deepspeed_zero_3_offload(
    ranks: Ranks, elements: Count, largest_layer: Count
) -> float:
    """Bytes of a device when the optimizer is on the host.

    Source: DeepSpeed's documentation, memory requirements, ZeRO-3 with offload.
    """
    return 4 * largest_layer + 2 * elements / ranks


@formula
def deepspeed_zero_3_all_offload(largest_layer: Count) -> int:
    """Bytes of a device when the weights are on the host too.

    Source: DeepSpeed's documentation, memory requirements, ZeRO-3 with offload of all.
    """
    return 4 * largest_layer


# Published operation counts of a GPT


@formula
def transformer_flops(
    batch: Count,
    tokens: Positive,
    width: Positive,
    layers: Positive,
    vocabulary: Count,
) -> float:
    """Operations of a step of a GPT, forward and backward.

    Source: Narayanan et al. 2021, appendix; Korthikanti et al. 2022, appendix A.
    """
    return (
        72
        * batch
        * tokens
        * layers
        * width
        * width
        * (1 + tokens / (6 * width) + vocabulary / (12 * layers * width))
    )


@formula
def transformer_flops_selective(
    batch: Count,
    tokens: Positive,
    width: Positive,
    layers: Positive,
    vocabulary: Count,
) -> float:
    """Operations of a step with selective recomputation, as published.

    Source: Korthikanti et al. 2022, appendix A, which counts the scores 6 times; the
    work that is done has them 4 times, and so has the core.
    """
    return (
        72
        * batch
        * tokens
        * layers
        * width
        * width
        * (1 + tokens / (3 * width) + vocabulary / (12 * layers * width))
    )


@formula
def transformer_flops_full(
    batch: Count,
    tokens: Positive,
    width: Positive,
    layers: Positive,
    vocabulary: Count,
) -> float:
    """Operations of a step when every layer is computed again, but not the head.

    Source: Narayanan et al. 2021, appendix.
    """
    return (
        96
        * batch
        * tokens
        * layers
        * width
        * width
        * (1 + tokens / (6 * width) + vocabulary / (16 * layers * width))
    )
