"""Formulas of parameter-distribution/replicated: bytes, rounds, memory, time."""

from atlas.formulas.parts import chunk
from atlas.formulas.ranges import Count, Positive, Rank, Ranks, formula

# Data parallelism by hand


@formula
def ddp_early(
    elements: Count, last_elements: Count, bucket: Positive, steps: Count
) -> int:
    """All-reduces that start before the last gradient is complete.

    Source: Li et al. 2020, PyTorch Distributed.
    """
    return steps * (max(0, elements - last_elements) // bucket)


@formula
def ddp_state_bytes(elements: Count, frozen_elements: Count, itemsize: Positive) -> int:
    """Bytes that every rank keeps: weights with gradients, and frozen ones without.

    Source: Rajbhandari et al. 2020, section 3.1, with no optimizer state.
    """
    return itemsize * (2 * elements + frozen_elements)


# Exactly-once data: who reads what, while ranks leave and return


@formula
def position_calls() -> int:
    """Broadcasts until the last epoch is over: one, for the ranks that return.

    Source: Mohan et al. 2021 (CheckFreq): the position in the data is state.
    """
    return 1


@formula
def position_bytes(itemsize: Positive) -> int:
    """Bytes of the position in the data: the epoch, and the samples taken.

    Source: derived; it names neither a rank nor their number.
    """
    return 2 * itemsize


@formula
def sampler_padding(ranks: Ranks, samples: Count) -> int:
    """Samples that torch's DistributedSampler hands out twice in an epoch.

    Source: torch.utils.data.DistributedSampler: extra indices until p divides them.
    """
    return -samples % ranks


@formula
def samples_repeated(ranks: Ranks, samples: Count, batch: Positive, fall: Count) -> int:
    """Samples that come again if half of the ranks go on from a position of all.

    Source: derived from torch.utils.data.DistributedSampler: a rank's position k
    means p k samples; what is filled up comes on top.
    """
    half = (ranks + 1) // 2
    return (ranks - half) * (fall * batch // ranks) + -samples % half


@formula
def samples_missed(ranks: Ranks, samples: Count, batch: Positive, fall: Count) -> int:
    """Samples that never come if all ranks go on from a position of half of them.

    Source: derived from torch.utils.data.DistributedSampler, as for a change to fewer.
    """
    half = (ranks + 1) // 2
    each = fall * batch // half
    return min(samples, ranks * each) - half * each


# Synchronized batch norm


@formula
def sync_norm_calls(norms: Count) -> int:
    """All-reduces of a forward pass: the mean, and then the variance around it.

    Source: Peng et al. 2018, whose variance follows the mean.
    """
    return 2 * norms


@formula
def sync_norm_payload(norms: Count, norm_channels: Count, itemsize: Positive) -> int:
    """Bytes that a rank hands to them: two numbers per channel, and a count.

    Source: Peng et al. 2018; the count is for shares that are uneven.
    """
    return (2 * norm_channels + norms) * itemsize


@formula
def sync_norm_backward_payload(norm_channels: Count, itemsize: Positive) -> int:
    """Bytes that a rank hands to the all-reduces of a backward pass.

    Source: derived: the gradient of a normalized sample needs two means over the
    batch, of dy and of dy times x_hat.
    """
    return 2 * norm_channels * itemsize


@formula
def sync_norm_activations(
    ranks: Ranks,
    rank: Rank,
    batch: Count,
    inputs: Count,
    norms: Count,
    norm_channels: Count,
    itemsize: Positive,
) -> int:
    """Bytes that a rank keeps for backward: its samples, normalized, and their scale.

    Source: derived: x_hat, one number per channel, and the count.
    """
    return (chunk(batch, ranks, rank) * inputs + norm_channels + norms) * itemsize
