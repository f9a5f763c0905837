"""Least delays of one exchange of a model, as Langer prints them: no latency.

T, R and U are the seconds to transmit, to reduce and to update the whole model. Every
formula is a lower bound: links carry nothing else, and no request waits for another
but where the expression says so.
"""

from atlas.formulas.parts import ceil_log2
from atlas.formulas.ranges import Amount, Ranks, formula


@formula
def langer_naive_seconds(
    workers: Ranks, transmit: Amount, reduce: Amount, update: Amount
) -> float:
    """Seconds when every worker uploads to one server and downloads from it, in turn.

    Source: Langer et al. 2020, section 3.4.1.
    """
    return 2 * workers * transmit + (workers - 1) * reduce + update


@formula
def langer_tree_seconds(
    workers: Ranks, transmit: Amount, reduce: Amount, update: Amount
) -> float:
    """Seconds when binomial trees reduce to one server and broadcast from it.

    Source: Langer et al. 2020, section 3.4.1; the logarithms are rounded up.
    """
    return 2 * ceil_log2(workers + 1) * transmit + ceil_log2(workers) * reduce + update


@formula
def langer_scatter_seconds(
    workers: Ranks, transmit: Amount, reduce: Amount, update: Amount
) -> float:
    """Seconds of a scatter-reduce to one server and of a broadcast from it.

    Source: Langer et al. 2020, section 3.4.1.
    """
    return (
        2 * transmit
        + 2 * (workers - 1) * transmit / workers
        + (workers - 1) * reduce / workers
        + update
    )


@formula
def langer_one_request_seconds(transmit: Amount, update: Amount) -> float:
    """Seconds of one asynchronous worker's exchange with a server that is idle.

    Source: Langer et al. 2020, section 3.4.1.
    """
    return 2 * transmit + update


@formula
def langer_requests_seconds(workers: Ranks, transmit: Amount, update: Amount) -> float:
    """Seconds of one asynchronous exchange with every worker, requests overlapping.

    Source: Langer et al. 2020, section 3.4.1, for two workers or more.
    """
    return workers * transmit + update


@formula
def langer_shared_server_seconds(
    workers: Ranks, transmit: Amount, reduce: Amount, update: Amount
) -> float:
    """Seconds when each worker serves and updates its share of the model.

    Source: Langer et al. 2020, section 3.4.1, k = n.
    """
    return (
        2 * (workers - 1) * transmit / workers
        + (workers - 1) * reduce / workers
        + update / workers
    )


@formula
def langer_doubling_seconds(
    workers: Ranks, transmit: Amount, reduce: Amount, update: Amount
) -> float:
    """Seconds of an all-reduce by recursive doubling, then a whole update everywhere.

    Source: Langer et al. 2020, section 3.4.1, footnote 3.
    """
    return ceil_log2(workers) * (transmit + reduce) + update


@formula
def langer_ring_seconds(
    workers: Ranks, transmit: Amount, reduce: Amount, update: Amount
) -> float:
    """Seconds of an all-reduce by a ring, then a whole update everywhere.

    Source: Langer et al. 2020, section 3.4.1, footnote 3.
    """
    return (
        2 * (workers - 1) * transmit / workers
        + (workers - 1) * reduce / workers
        + update
    )
