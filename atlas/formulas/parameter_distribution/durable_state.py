"""Formulas of parameter-distribution/durable-state: bytes, lost work, time."""

from atlas.formulas.parts import chunk
from atlas.formulas.ranges import Count, Positive, Rank, Ranks, formula

# Asynchronous snapshot: one every k steps, written during the k steps after it; all
# workers die in the last step before the second is whole


@formula
def snapshot_lost(interval: Positive) -> int:
    """Complete steps that are taken again: those since the last whole snapshot.

    Source: derived: the second snapshot was taken k steps after the first, and needs k
    steps to be written, of which the last is not completed.
    """
    return 2 * interval - 1


@formula
def snapshot_written(
    ranks: Ranks, rank: Rank, elements: Count, itemsize: Positive
) -> int:
    """Bytes of a rank's file: its part of weights and momentum, version and digest.

    Source: derived: 8 bytes of version, 32 of SHA-256, and a chunk of the state.
    """
    return 40 + chunk(2 * elements, ranks, rank) * itemsize


@formula
def snapshot_makespan(steps: Count, interval: Positive) -> int:
    """Seconds if a step takes 3 and a copy takes 1, and writing is hidden.

    Source: derived; Mohan et al. 2021 (CheckFreq): training waits for the snapshot.
    """
    return 3 * (steps + snapshot_lost(interval)) + steps // interval + 1


@formula
def snapshot_killed() -> int:
    """Workers of this rank that are killed.

    Source: derived: the whole job is killed once.
    """
    return 1


@formula
def snapshot_torn() -> int:
    """Unfinished states of a file that are taken for the whole of it.

    Source: derived: the digest fits no other content than the whole.
    """
    return 0


# Resharded checkpoint: equal layers, each a square matrix and a bias, and momenta, all
# cut by rows. The random state is the same on every rank


@formula
def reshard_written(
    ranks: Ranks,
    rank: Rank,
    layers: Count,
    width: Count,
    itemsize: Positive,
    random_bytes: Count,
) -> int:
    """Bytes that one of p replicas writes: its share of the rows, and of the rest.

    Source: derived: weights and momenta, and the state of one random generator.
    """
    rows = chunk(width, ranks, rank)
    common = chunk(random_bytes, ranks, rank)
    return 2 * layers * rows * (width + 1) * itemsize + common


@formula
def reshard_read(
    ranks: Ranks,
    rank: Rank,
    layers: Count,
    width: Count,
    itemsize: Positive,
    random_bytes: Count,
) -> int:
    """Bytes that a rank reads if all ranks share each layer: its rows, and no more.

    Source: derived: the rows of every matrix and bias, cut into p chunks.
    """
    rows = chunk(width, ranks, rank)
    return 2 * layers * rows * (width + 1) * itemsize + random_bytes


# Peer-memory checkpoint: weights and momentum, padded until p divides them. In the run,
# copies are made at the start, three times later, and after two crashes, in which first
# the first k - 1 of all ranks die, then the first k - 1 of the last k


@formula
def peer_sent(
    ranks: Ranks, elements: Count, itemsize: Positive, copies: Positive
) -> int:
    """Bytes that all ranks send to keep and to bring back copies.

    Source: derived: k - 1 copies of every shard, six times; 2(k - 1) shards of dead.
    """
    shard = 2 * -(-elements // ranks) * itemsize
    return (6 * ranks + 2) * (copies - 1) * shard


@formula
def peer_killed(ranks: Ranks, rank: Rank, copies: Positive) -> int:
    """Workers of this rank that are killed, in two crashes.

    Source: derived: the first k - 1 ranks die, and later the first k - 1 of the last k.
    """
    first = 1 if rank < copies - 1 else 0
    later = 1 if ranks - copies <= rank else 0
    return first + (later if rank < ranks - 1 else 0)


@formula
def peer_safe() -> int:
    """Sets of k - 1 ranks whose death loses a shard.

    Source: Wang et al. 2023 (GEMINI): k copies on k machines.
    """
    return 0


@formula
def peer_fatal(ranks: Ranks, copies: Positive) -> int:
    """Sets of k ranks whose death loses a shard: whole groups, or neighbors on a ring.

    Source: derived; Wang et al. 2023 (GEMINI): groups, and a ring of the last ones.
    """
    groups = ranks // copies
    rest = ranks % copies
    return groups if rest == 0 else groups - 1 + copies + rest
