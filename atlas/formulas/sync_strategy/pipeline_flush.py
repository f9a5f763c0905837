"""Formulas of sync-strategy/pipeline-flush: bytes, rounds, memory, time."""

from atlas.formulas.ranges import Amount, Count, Positive, Rank, Ranks, formula

# Pipelines: stage r is rank r


@formula
def one_f_one_b_in_flight(ranks: Ranks, rank: Rank, microbatches: Positive) -> int:
    """Most micro-batches whose activations stage r holds at once.

    Source: Narayanan et al. 2021, section 2.2.1.
    """
    return min(microbatches, ranks - rank)


@formula
def pipeline_bytes(
    ranks: Ranks, rank: Rank, microbatches: Positive, activation_bytes: Count
) -> int:
    """Bytes that stage r sends: activations onward, as many gradients back.

    Source: Huang et al. 2019 (GPipe), section 2.3: only the cut activations travel.
    """
    return (
        0
        if ranks == 1
        else microbatches * activation_bytes
        if rank == 0 or rank == ranks - 1
        else 2 * microbatches * activation_bytes
    )


@formula
def pipeline_makespan(
    ranks: Ranks, microbatches: Positive, forward: Amount, backward: Amount
) -> float:
    """Seconds in which all micro-batches pass p stages forward and backward.

    Source: Huang et al. 2019 (GPipe), section 2.3; Narayanan et al. 2021, 2.2.1.
    """
    return (microbatches + ranks - 1) * (forward + backward)


@formula
def pipeline_idle(ranks: Ranks, forward: Amount, backward: Amount) -> float:
    """Seconds that each stage is idle between two flushes, for any micro-batches.

    Source: Narayanan et al. 2021, section 2.2.1.
    """
    return (ranks - 1) * (forward + backward)


@formula
def pipeline_bubble(ranks: Ranks, microbatches: Positive) -> float:
    """Idle share of all the time (the ratio to the useful time is (p-1)/m).

    Source: Huang et al. 2019 (GPipe), section 2.3.
    """
    return (ranks - 1) / (microbatches + ranks - 1)


# GPipe: its time and its bytes are those of every pipeline with a flush


@formula
def gpipe_in_flight(microbatches: Positive) -> int:
    """Micro-batches whose activations every stage holds when backward begins.

    Source: Huang et al. 2019 (GPipe), section 2.3.
    """
    return microbatches
