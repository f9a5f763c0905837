"""Formulas of communication-pattern/sparsification: bytes, rounds, memory, time."""

from atlas.formulas.ranges import Count, Positive, Ranks, formula


@formula
def top_k_payload(kept: Count, itemsize: Positive, steps: Count) -> int:
    """Bytes a rank hands over: the kept values and their places, 4 bytes each.

    Source: Lin et al. 2018, section 3.
    """
    return steps * kept * (itemsize + 4)


@formula
def top_k_gathered(ranks: Ranks, kept: Count, itemsize: Positive, steps: Count) -> int:
    """Bytes a rank sends when the all-gathers are rings.

    Source: Thakur et al. 2005, section 4.1: p-1 rounds, one contribution in each.
    """
    return (ranks - 1) * top_k_payload(kept, itemsize, steps)


# Random-k: the same places on every rank, so the values are reduced


@formula
def random_k_payload(kept: Count, itemsize: Positive, steps: Count) -> int:
    """Bytes a rank hands to the all-reduce: the values, and no places.

    Source: Stich et al. 2018, definition 2.1, with places drawn from a shared seed.
    """
    return steps * kept * itemsize


@formula
def random_k_calls(steps: Count) -> int:
    """All-reduces: one per step, as for a dense gradient.

    Source: derived: equal places can be summed on the way, and need no gather.
    """
    return steps
