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


def ring_alpha(alpha: float, crossing: float, ranks: int, units: int) -> float:
    """Seconds of a ring's round, on average: some of its hops cross between units.

    Source: NCCL, src/graph/tuning.cc: of an all-gather's p - 1 steps, one less than
    the nodes cost the network's latency, the others that of the node.
    """
    return alpha + crossing * max(1, units - 1) / max(1, ranks - 1)


def slower(units: int, decay: float) -> float:
    """How many times as long a byte takes among so many units as between two.

    Source: derived: a fabric that loses the same share with every doubling falls by a
    power of the units, the first at worst: one link for all of them.
    """
    return (units / 2) ** min(1.0, decay) if units > 2 else 1.0


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
