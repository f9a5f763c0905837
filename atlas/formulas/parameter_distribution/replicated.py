"""Formulas of parameter-distribution/replicated: bytes, rounds, memory, time."""

from atlas.formulas.ranges import Count, Positive, formula

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
