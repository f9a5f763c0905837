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
