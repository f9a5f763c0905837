"""Seconds of collectives as rings: so many calls, n bytes in all.

Part of the arithmetic: see `atlas.planner.arithmetic`.
"""

from atlas.planner.records import Link


def gather_seconds(p: int, calls: float, n: float, link: Link) -> float:
    """Seconds of all-gathers or reduce-scatters of n bytes, whole, in all.

    Source: Thakur et al. 2005, section 4.1; launch: what a call costs of itself.
    """
    return (
        0.0
        if p == 1
        else calls * (link.launch + (p - 1) * link.alpha) + (p - 1) / p * n * link.beta
    )


def reduce_seconds(p: int, calls: float, n: float, link: Link) -> float:
    """Seconds of all-reduces of n bytes in all.

    Source: Thakur et al. 2005, section 4; Kahira et al. 2021, table III.
    """
    return (
        0.0
        if p == 1
        else calls * (link.launch + 2 * (p - 1) * link.alpha)
        + 2 * (p - 1) / p * n * link.beta
    )


def send_seconds(calls: float, n: float, link: Link) -> float:
    """Seconds of messages of n bytes in all, one after the other.

    Source: Thakur et al. 2005.
    """
    return calls * (link.launch + link.alpha) + n * link.beta
