"""Formulas of communication-pattern/low-rank-and-sketch: bytes, calls, memory."""

from atlas.formulas.ranges import Count, Positive, formula


@formula
def powersgd_payload(
    factor_rank: Positive,
    matrix_sides: Count,
    vector_elements: Count,
    itemsize: Positive,
    steps: Count,
) -> int:
    """Bytes handed to all-reduce: two factors of each matrix, and all vectors whole.

    Source: Vogels et al. 2019, algorithm 1; vectors go uncompressed.
    """
    return steps * itemsize * (factor_rank * matrix_sides + vector_elements)


@formula
def powersgd_calls(matrices: Count, steps: Count) -> int:
    """All-reduces: two for each matrix and one for all vectors together, per step.

    Source: Vogels et al. 2019, algorithm 1.
    """
    return steps * (2 * matrices + 1)
