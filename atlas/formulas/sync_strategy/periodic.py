"""Formulas of sync-strategy/periodic: bytes, rounds, memory, time."""

from atlas.formulas.ranges import Count, Positive, formula

# Periodic averaging: a meeting after every period of steps, and one at the end


@formula
def periodic_rounds(steps: Count, period: Positive) -> int:
    """Meetings: one after every period, and one for the steps left over.

    Source: Stich 2019, with an average after the last step.
    """
    return -(-steps // period)


@formula
def periodic_payload(
    elements: Count, itemsize: Positive, steps: Count, period: Positive
) -> int:
    """Bytes handed to all-reduce: all parameters at every meeting.

    Source: Stich 2019.
    """
    return periodic_rounds(steps, period) * elements * itemsize


# DiLoCo: its rounds and payload are those of periodic averaging


@formula
def diloco_outer_bytes(elements: Count, itemsize: Positive) -> int:
    """Bytes of the outer optimizer: where the period began, and the momentum.

    Source: Douillard et al. 2023, algorithm 1.
    """
    return 2 * elements * itemsize
