"""Formulas of parameter-distribution/inter-layer: bytes, rounds, memory, time."""

from atlas.formulas.ranges import Amount, Count, Positive, Ranks, formula

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
