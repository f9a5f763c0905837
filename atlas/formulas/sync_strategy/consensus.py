"""Formulas of sync-strategy/consensus: bytes, rounds, memory, time."""

from atlas.formulas.communication_pattern.collective import bruck_all_to_all_hops
from atlas.formulas.parts import ceil_log2
from atlas.formulas.ranges import Count, Positive, Rank, Ranks, formula

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


# Push-sum: rank r sends to rank r+1 and to rank r // 2, if that is another


@formula
def push_sum_bytes(
    ranks: Ranks, rank: Rank, elements: Count, itemsize: Positive, steps: Count
) -> int:
    """Bytes sent: in every step x and its weight, to each out-neighbor.

    Source: Assran et al. 2019, algorithm 1.
    """
    return (1 if rank == 0 else 2) * steps * (elements + 1) * itemsize


# Rotating partners: a sweep of exchanges along every dimension of a hypercube


@formula
def rotating_messages(ranks: Ranks, sweeps: Count) -> int:
    """Messages that a rank sends at most: one in every step of every sweep.

    Source: Daily et al. 2018 (GossipGraD); fewer where it meets an empty place.
    """
    return sweeps * ceil_log2(ranks)


@formula
def rotating_total_bytes(
    ranks: Ranks, elements: Count, itemsize: Positive, sweeps: Count
) -> int:
    """Bytes that all ranks send: one tensor each way along every edge in a sweep.

    Source: derived: among the first p places of a hypercube there are as many edges
    as there are ones in the binary numbers below p.
    """
    return 2 * sweeps * bruck_all_to_all_hops(ranks) * elements * itemsize
