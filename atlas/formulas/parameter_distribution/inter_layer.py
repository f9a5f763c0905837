"""Formulas of parameter-distribution/inter-layer: bytes, rounds, memory, time."""

from atlas.formulas.ranges import Amount, Count, Positive, Rank, Ranks, formula

# Layer partition: one layer per rank, one batch after the other


@formula
def layer_partition_makespan(
    ranks: Ranks, steps: Count, forward: Amount, backward: Amount
) -> float:
    """Seconds of all steps: the ranks compute one after the other.

    Source: Huang et al. 2019 (GPipe), section 2.3.
    """
    return steps * ranks * (forward + backward)


@formula
def layer_partition_idle(
    ranks: Ranks, steps: Count, forward: Amount, backward: Amount
) -> float:
    """Seconds that each rank waits: whenever any other rank computes.

    Source: Huang et al. 2019 (GPipe), section 2.3.
    """
    return steps * (ranks - 1) * (forward + backward)


@formula
def layer_partition_state(width: Count, itemsize: Positive) -> int:
    """Bytes of one layer's matrix and bias: all the weights that a rank holds.

    Source: Dean et al. 2012, section 3: each machine holds its own layers.
    """
    return itemsize * (width * width + width)


# A matrix that the first and the last stage share


@formula
def tied_embedding_bytes(
    ranks: Ranks,
    rank: Rank,
    steps: Count,
    vocabulary: Count,
    width: Positive,
    itemsize: Positive,
) -> int:
    """Bytes a rank sends for the tie: both ends a gradient per step, the first E once.

    Source: derived from Narayanan et al. 2021; Megatron Core, finalize_model_grads.py.
    """
    last = steps if rank == ranks - 1 else 0
    times = steps + 1 if rank == 0 else last
    return 0 if ranks == 1 else times * vocabulary * width * itemsize


@formula
def folded_embedding_bytes() -> int:
    """Bytes sent for the tie where both ends are on one rank: none.

    Source: Qi et al. 2024 (V schedules): first and last layer on one rank.
    """
    return 0


@formula
def tied_embedding_held(
    ranks: Ranks, rank: Rank, vocabulary: Count, width: Positive, itemsize: Positive
) -> int:
    """Bytes of the embedding on a rank: whole at both ends, nothing between them.

    Source: derived from Narayanan et al. 2021: the first and the last stage.
    """
    return vocabulary * width * itemsize if rank == 0 or rank == ranks - 1 else 0


@formula
def folded_embedding_held(
    ranks: Ranks, rank: Rank, vocabulary: Count, width: Positive, itemsize: Positive
) -> int:
    """Bytes of the embedding on a rank, where rank 0 has both ends.

    Source: Qi et al. 2024 (V schedules): first and last layer on one rank.
    """
    return vocabulary * width * itemsize if rank == 0 else 0
