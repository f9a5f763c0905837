"""Time by latency and bandwidth: alpha seconds per message, beta per byte."""

from atlas.formulas.parts import ceil_log2
from atlas.formulas.ranges import Amount, Ranks, formula


@formula
def p2p_seconds(message_bytes: Amount, alpha: Amount, beta: Amount) -> float:
    """Seconds of one message.

    Source: Thakur et al. 2005.
    """
    return alpha + message_bytes * beta


@formula
def all_gather_seconds(
    ranks: Ranks, message_bytes: Amount, alpha: Amount, beta: Amount
) -> float:
    """Seconds of a ring all-gather with a result of this size.

    Source: Thakur et al. 2005, section 4.1.
    """
    return (ranks - 1) * alpha + (ranks - 1) / ranks * message_bytes * beta


@formula
def all_reduce_seconds(
    ranks: Ranks, message_bytes: Amount, alpha: Amount, beta: Amount
) -> float:
    """Seconds of a ring all-reduce, the additions left out.

    Source: Thakur et al. 2005, section 4; Kahira et al. 2021, table III.
    """
    return 2 * (ranks - 1) * alpha + 2 * (ranks - 1) / ranks * message_bytes * beta


@formula
def binomial_broadcast_seconds(
    ranks: Ranks, message_bytes: Amount, alpha: Amount, beta: Amount
) -> float:
    """Seconds of a broadcast by a binomial tree.

    Source: Thakur et al. 2005.
    """
    return ceil_log2(ranks) * (alpha + message_bytes * beta)


@formula
def scatter_all_gather_broadcast_seconds(
    ranks: Ranks, message_bytes: Amount, alpha: Amount, beta: Amount
) -> float:
    """Seconds of a broadcast by a binomial scatter and a ring all-gather.

    Source: Thakur et al. 2005.
    """
    return (ceil_log2(ranks) + ranks - 1) * alpha + 2 * (
        ranks - 1
    ) / ranks * message_bytes * beta
