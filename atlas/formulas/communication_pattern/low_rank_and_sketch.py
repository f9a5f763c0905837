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


# Count sketch: a table of rows by columns, then the exact values of k entries


@formula
def sketch_payload(
    rows: Positive, columns: Positive, kept: Count, itemsize: Positive, steps: Count
) -> int:
    """Bytes handed to all-reduce: the table and the kept values, for any p.

    Source: Ivkin et al. 2019: a sketch, then a second round for the chosen entries.
    """
    return steps * itemsize * (rows * columns + kept)


@formula
def sketch_calls(steps: Count) -> int:
    """All-reduces: one for the table and one for the values, per step.

    Source: Ivkin et al. 2019.
    """
    return 2 * steps


@formula
def sketch_found(kept: Count) -> int:
    """Large entries that a sketch finds if the table is wide enough: all of them.

    Source: Charikar et al. 2002, with high probability; here of one seeded sum.
    """
    return kept
