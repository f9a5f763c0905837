"""Where a group's ranks are, and what its links cost when others use them too.

Part of the arithmetic: see `atlas.planner.arithmetic`.
"""


def reach(stride: int, length: int) -> int:
    """Ranks that an axis adds to the span of a group.

    Source: arithmetic: its ranks are a stride apart.
    """
    return stride * (length - 1)


def inside_unit(unit: int, stride: int, length: int) -> int:
    """Ranks of an axis that lie in one unit, a node say, of so many ranks.

    Source: arithmetic: neighbors of an axis are a stride apart.
    """
    return max(1, min(length, unit // stride))


def shared_beta(
    beta: float, rails: int, inside: int, unit: int, below: float, message: bool
) -> float:
    """Seconds a byte for a group that leaves its units beside others of its kind.

    Source: derived: unit / inside groups leave a unit by its rails at once, each with
    an equal share; a ring uses all of its share, a single message one rail at most;
    nothing is faster than the links below (seconds a byte there, 0: not used).
    """
    share = rails * inside / unit
    return beta / min(1.0, share) if message else max(beta / share, below)
