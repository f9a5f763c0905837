"""Formulas of communication-pattern/exact-encoding: bytes, rounds, memory, time."""

from atlas.formulas.ranges import Count, Positive, Ranks, formula


@formula
def sufficient_factor_payload(
    local_batch: Count, features_out: Count, features_in: Count, itemsize: Positive
) -> int:
    """Bytes a rank hands to the all-gather: the two factors of each of its samples.

    Source: Xie et al. 2016.
    """
    return local_batch * (features_out + features_in) * itemsize


@formula
def sufficient_factor_wins(
    ranks: Ranks, local_batch: Count, features_out: Count, features_in: Count
) -> int:
    """1 if factors take fewer bytes than a ring all-reduce of the matrix, else 0.

    Source: derived: each rank sends p-1 times its factors, or 2(p-1)/p of the matrix.
    """
    factors = local_batch * ranks * (features_out + features_in)
    return 1 if ranks > 1 and factors < 2 * features_out * features_in else 0
