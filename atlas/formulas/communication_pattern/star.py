"""Formulas of communication-pattern/star: bytes, rounds, memory, time."""

from atlas.formulas.ranges import Count, Positive, Rank, Ranks, formula

# Push and pull: rank 0 is the server, the others are workers


@formula
def push_pull_bytes(
    ranks: Ranks, rank: Rank, elements: Count, itemsize: Positive, steps: Count
) -> int:
    """Bytes a rank sends, and receives too: in each step a tensor for each peer.

    Source: Li et al. 2014: a worker has one peer, the server p-1.
    """
    peers = ranks - 1 if rank == 0 else min(1, ranks - 1)
    return steps * elements * itemsize * peers


@formula
def push_pull_rounds(ranks: Ranks, steps: Count) -> int:
    """Rounds when the server sends one message and receives one at a time.

    Source: derived: p-1 pushes and p-1 pulls queue; a worker that has pulled early
    pushes again while the others still wait, so each further step costs only p.
    """
    return 0 if ranks == 1 or steps == 0 else steps * ranks + ranks - 2
