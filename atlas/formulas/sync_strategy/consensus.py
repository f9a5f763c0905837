"""Formulas of sync-strategy/consensus: bytes, rounds, memory, time."""

from atlas.formulas.ranges import Count, Positive, Ranks, formula

# Mixing on a ring: a rank takes the mean of its own elements and its neighbors'


@formula
def ring_mixing_bytes(
    ranks: Ranks, elements: Count, itemsize: Positive, steps: Count
) -> int:
    """Bytes a rank sends: its weights to each neighbor, however many ranks there are.

    Source: Lian et al. 2017: two neighbors, of two ranks one.
    """
    return min(2, ranks - 1) * steps * elements * itemsize


@formula
def ring_mixing_halved(ranks: Ranks) -> float:
    """Rounds of mixing, at most, until the ranks are half as far from their mean.

    Source: derived: the eigenvalue 1 - 4/3 sin(pi/p)^2 is at most 1 - 16/(3 p^2),
    and ln 2 * 3/16 is less than 1/7; the last round may be a part of one.
    """
    return ranks * ranks / 7 + 1


@formula
def ring_mixing_halved_least(ranks: Ranks) -> float:
    """Rounds of mixing, at least, until the slowest wave is half as high.

    Source: derived: the eigenvalue is at least 1 - 4 pi^2/(3 p^2), and
    ln 2 * 3/(4 pi^2) is more than 1/20.
    """
    return (ranks * ranks - 1) / 20
