"""Formulas of communication-pattern/exact-encoding: bytes, rounds, memory, time."""

from atlas.formulas.ranges import Count, Positive, Rank, Ranks, formula


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


# Sparse gradients: rank r touches s + r rows of a table


@formula
def sparse_gradient_bytes(
    ranks: Ranks, rank: Rank, touched: Count, width: Count, itemsize: Positive
) -> int:
    """Bytes that rank r sends: each touched row and its place, 4 bytes, to all others.

    Source: Renggli et al. 2019 (SparCML): index-value pairs, here one index per row.
    """
    return (ranks - 1) * (touched + rank) * (width * itemsize + 4)


@formula
def sparse_gradient_wins(
    ranks: Ranks,
    rank: Rank,
    touched: Count,
    table_rows: Count,
    width: Count,
    itemsize: Positive,
) -> int:
    """1 if pairs take fewer bytes than a ring all-reduce of the table, else 0.

    Source: derived: to each of p-1 others s + r rows, or 2(p-1)/p of the table.
    """
    pairs = ranks * (touched + rank) * (width * itemsize + 4)
    return 1 if ranks > 1 and pairs < 2 * table_rows * width * itemsize else 0


# Activations and errors: rank 0 serves, the others have K samples each


@formula
def activation_error_bytes(
    ranks: Ranks,
    rank: Rank,
    steps: Count,
    local_batch: Count,
    features_out: Count,
    features_in: Count,
    itemsize: Positive,
) -> int:
    """Bytes a rank sends: a worker its factors, the server the weights to each worker.

    Source: Chilimbi et al. 2014: k(M+N) instead of MN, on the way to the server.
    """
    weights = (ranks - 1) * features_out * features_in
    factors = local_batch * (features_out + features_in)
    return steps * itemsize * (weights if rank == 0 else factors)


@formula
def dense_push_bytes(
    features_out: Count, features_in: Count, itemsize: Positive
) -> int:
    """Bytes of a gradient: one entry for each weight.

    Source: arithmetic.
    """
    return features_out * features_in * itemsize


@formula
def activation_error_crossover(features_out: Positive, features_in: Positive) -> int:
    """Most samples for which K(M+D) is below MD.

    Source: Chilimbi et al. 2014: the traffic falls from MN to k(M+N).
    """
    return (features_out * features_in - 1) // (features_out + features_in)
