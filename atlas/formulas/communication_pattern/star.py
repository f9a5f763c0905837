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


# In-network aggregation: rank 0 is the switch, the others are workers


@formula
def in_network_bytes(
    ranks: Ranks, rank: Rank, elements: Count, itemsize: Positive
) -> int:
    """Bytes a rank sends, and receives too: one vector for each peer.

    Source: derived: a worker has one peer, the switch p-1. A switch that multicasts
    sends each sum once, and the network makes the copies.
    """
    return elements * itemsize * (ranks - 1 if rank == 0 else 1)


@formula
def in_network_pool(
    ranks: Ranks, rank: Rank, packet: Positive, slots: Positive, itemsize: Positive
) -> int:
    """Bytes of the switch's slots; the number of elements is no part of it.

    Source: Sapio et al. 2021: a pool of slots, each for one packet.
    """
    return slots * packet * itemsize if rank == 0 else 0


@formula
def in_network_rounds(
    ranks: Ranks, elements: Count, packet: Positive, slots: Positive
) -> int:
    """Rounds when the switch serves one worker at a time.

    Source: derived: packets that fill the pool arrive alone, later ones while sums
    leave, and the last sums leave alone; each time p-1 workers have their turn.
    """
    packets = -(-elements // packet)
    return (ranks - 1) * (packets + min(slots, packets))
