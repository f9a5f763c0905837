"""Formulas of communication-pattern/sparsification: bytes, rounds, memory, time."""

from atlas.formulas.communication_pattern.collective import (
    ring_all_reduce_bytes,
    ring_all_reduce_rounds,
    tree_all_reduce_bytes,
    tree_all_reduce_rounds,
)
from atlas.formulas.parts import chunk
from atlas.formulas.ranges import Count, Positive, Rank, Ranks, formula


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


# Global top-k: up and down a tree, k entries on each edge


@formula
def global_top_k_bytes(
    ranks: Ranks, rank: Rank, kept: Count, itemsize: Positive, steps: Count
) -> int:
    """Bytes that rank r sends: k values and places of 4 bytes, once on each edge.

    Source: Shi et al. 2019: tree-based merges, then a broadcast.
    """
    return steps * tree_all_reduce_bytes(ranks, rank, kept, itemsize + 4)


@formula
def global_top_k_nonzeros(kept: Count) -> int:
    """Most entries of an update that are not zero, however many ranks there are.

    Source: Shi et al. 2019: the k largest are selected again after every merge.
    """
    return kept


@formula
def global_top_k_rounds(ranks: Ranks, steps: Count) -> int:
    """Rounds of messages: lg p, rounded up, to the root, and as many back.

    Source: Shi et al. 2019.
    """
    return steps * tree_all_reduce_rounds(ranks)


# Hierarchical top-k: whole shards inside a node, k entries of a shard between nodes


@formula
def hierarchical_top_k_inside(
    ranks: Ranks,
    rank: Rank,
    elements: Count,
    itemsize: Positive,
    steps: Count,
    node_size: Positive,
) -> int:
    """Bytes that rank r sends inside its node: both halves of a ring all-reduce.

    Source: Shi et al. 2020: a reduce-scatter before, an all-gather after.
    """
    return steps * ring_all_reduce_bytes(
        node_size, rank % node_size, elements, itemsize
    )


@formula
def hierarchical_top_k_between(
    ranks: Ranks, kept: Count, itemsize: Positive, steps: Count, node_size: Positive
) -> int:
    """Bytes a rank sends to other nodes: to each, k values and places of 4 bytes.

    Source: Shi et al. 2020: an all-gather among the owners of a shard.
    """
    return (-(-ranks // node_size) - 1) * top_k_payload(kept, itemsize, steps)


@formula
def hierarchical_top_k_residual(
    ranks: Ranks, rank: Rank, elements: Count, itemsize: Positive, node_size: Positive
) -> int:
    """Bytes of what rank r has not sent yet: of one shard, not of the whole.

    Source: derived: entries are dropped only by the owner of their shard.
    """
    return itemsize * chunk(elements, node_size, rank % node_size + 1)


@formula
def hierarchical_top_k_rounds(ranks: Ranks, steps: Count, node_size: Positive) -> int:
    """Rounds of messages: two half rings inside, and two gathers between nodes.

    Source: derived: values and places are gathered one after the other.
    """
    nodes = -(-ranks // node_size)
    return steps * (ring_all_reduce_rounds(node_size) + 2 * (nodes - 1))


# Deep gradient compression: four stages of warm-up, then k entries


def _warm(elements: int, kept: int, steps: int, warmup: int, stage: int) -> int:
    return max(0, min(warmup, steps - stage * warmup)) * max(
        kept, elements // 4 ** (stage + 1)
    )


@formula
def deep_gradient_compression_entries(
    elements: Count, kept: Count, steps: Count, warmup: Count
) -> int:
    """Entries a rank sends: n/4, n/16, n/64, n/256, if that is more than k, then k.

    Source: Lin et al. 2018, section 3.3: sparsity grows from 75 % by factors of 4.
    """
    return (
        _warm(elements, kept, steps, warmup, 0)
        + _warm(elements, kept, steps, warmup, 1)
        + _warm(elements, kept, steps, warmup, 2)
        + _warm(elements, kept, steps, warmup, 3)
        + max(0, steps - 4 * warmup) * kept
    )


@formula
def deep_gradient_compression_payload(
    elements: Count, kept: Count, itemsize: Positive, steps: Count, warmup: Count
) -> int:
    """Bytes a rank hands over: the entries and their places, 4 bytes each.

    Source: Lin et al. 2018, section 3.
    """
    return (itemsize + 4) * deep_gradient_compression_entries(
        elements, kept, steps, warmup
    )


# Momentum components: as many cosines of every chunk


@formula
def momentum_components_payload(
    elements: Count,
    chunk_size: Positive,
    components: Count,
    itemsize: Positive,
    steps: Count,
) -> int:
    """Bytes a rank hands over: of each chunk, k cosines and their places of 4 bytes.

    Source: Peng et al. 2024; the last chunk is filled up.
    """
    return steps * -(-elements // chunk_size) * components * (itemsize + 4)
