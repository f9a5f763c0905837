"""Formulas of parameter-distribution/sharded: bytes, rounds, memory, time."""

from atlas.formulas.parts import chunk
from atlas.formulas.ranges import Count, Positive, Rank, Ranks, formula


@formula
def zero_3_shard(ranks: Ranks, elements: Count) -> int:
    """Elements of each rank's shard of a vector that is padded until p divides it.

    Source: Rajbhandari et al. 2020, section 5.3; Zhao et al. 2023.
    """
    return -(-elements // ranks)


# ZeRO stage 1: the model is one vector


@formula
def zero_1_state_bytes(ranks: Ranks, elements: Count, itemsize: Positive) -> int:
    """Bytes that a rank keeps: all weights, all gradients, two moments of its shard.

    Source: Rajbhandari et al. 2020, section 5.1, all four in one precision.
    """
    return itemsize * (elements + (ranks + 2) * zero_3_shard(ranks, elements))


@formula
def zero_1_volume(
    ranks: Ranks, elements: Count, itemsize: Positive, steps: Count
) -> int:
    """Bytes that a rank sends when the collectives are rings.

    Source: Rajbhandari et al. 2020, section 7.2.1: 2 psi, of which (p-1)/p travels.
    """
    return 2 * steps * (ranks - 1) * zero_3_shard(ranks, elements) * itemsize


@formula
def zero_1_calls(steps: Count) -> int:
    """Collectives of a rank: per step, one reduce-scatter and one all-gather.

    Source: Xu et al. 2020.
    """
    return 2 * steps


# ZeRO stages 2 and 3: the model is cut into equal units, each padded on its own


@formula
def sharded_gradient_bytes(
    ranks: Ranks, unit_elements: Count, units: Count, itemsize: Positive
) -> int:
    """Most bytes of gradients alive at once: all shards, and one unit's whole.

    Source: derived from Rajbhandari et al. 2020, section 5.2.
    """
    return itemsize * (unit_elements + units * zero_3_shard(ranks, unit_elements))


@formula
def zero_2_state_bytes(
    ranks: Ranks, unit_elements: Count, units: Count, itemsize: Positive
) -> int:
    """Bytes that a rank keeps: all weights, and shards of gradient and two moments.

    Source: Rajbhandari et al. 2020, section 5.2, all four in one precision.
    """
    return itemsize * units * (ranks + 3) * zero_3_shard(ranks, unit_elements)


@formula
def zero_2_calls(units: Count, microbatches: Count, steps: Count) -> int:
    """Collectives of a rank: per unit, a scatter per micro-batch and one gather.

    Source: derived from Rajbhandari et al. 2020, section 5.2: a rank that has dropped
    the whole gradient cannot accumulate locally.
    """
    return steps * (microbatches + 1) * units


@formula
def zero_2_volume(
    ranks: Ranks,
    unit_elements: Count,
    units: Count,
    itemsize: Positive,
    microbatches: Count,
    steps: Count,
) -> int:
    """Bytes that a rank sends when the collectives are rings.

    Source: Rajbhandari et al. 2020, section 7.2.1: 2 psi, with one micro-batch.
    """
    return (
        zero_2_calls(units, microbatches, steps)
        * (ranks - 1)
        * zero_3_shard(ranks, unit_elements)
        * itemsize
    )


@formula
def zero_3_state_bytes(
    ranks: Ranks, unit_elements: Count, units: Count, itemsize: Positive
) -> int:
    """Bytes that a rank keeps: shards of weights, gradients and two moments.

    Source: Rajbhandari et al. 2020, section 5.3, all four in one precision.
    """
    return 4 * itemsize * units * zero_3_shard(ranks, unit_elements)


@formula
def zero_3_gathered_bytes(
    ranks: Ranks, unit_elements: Count, itemsize: Positive
) -> int:
    """Bytes of one whole unit, its padding included.

    Source: Zhao et al. 2023.
    """
    return ranks * zero_3_shard(ranks, unit_elements) * itemsize


@formula
def zero_3_calls(units: Count, steps: Count) -> int:
    """Collectives of a rank: a unit is gathered twice and its gradient scattered.

    Source: Rajbhandari et al. 2020, section 7.2.2.
    """
    return 3 * units * steps


@formula
def zero_3_volume(
    ranks: Ranks, unit_elements: Count, units: Count, itemsize: Positive, steps: Count
) -> int:
    """Bytes that a rank sends when the collectives are rings.

    Source: Rajbhandari et al. 2020, section 7.2.2: 3 psi, of which (p-1)/p travels.
    """
    return (
        zero_3_calls(units, steps)
        * (ranks - 1)
        * zero_3_shard(ranks, unit_elements)
        * itemsize
    )


# Hybrid sharding: shards inside a node, replicas between nodes


@formula
def hybrid_sharded_state(
    node_size: Positive, unit_elements: Count, units: Count, itemsize: Positive
) -> int:
    """Bytes that a rank keeps: shards of weights, gradients and two moments.

    Source: Zhang et al. 2022 (MiCS): state is shared by the ranks of one group.
    """
    return zero_3_state_bytes(node_size, unit_elements, units, itemsize)


@formula
def hybrid_sharded_inside(
    node_size: Positive,
    unit_elements: Count,
    units: Count,
    itemsize: Positive,
    microbatches: Count,
) -> int:
    """Bytes that a rank sends inside its node when the collectives are rings.

    Source: derived from Zhang et al. 2022 (MiCS): ZeRO-3 in a group, for every
    micro-batch two gathers and one reduce-scatter.
    """
    return zero_3_volume(node_size, unit_elements, units, itemsize, microbatches)


@formula
def hybrid_sharded_between(
    ranks: Ranks,
    node_size: Positive,
    unit_elements: Count,
    units: Count,
    itemsize: Positive,
) -> int:
    """Bytes that a rank sends to other nodes when the all-reduce is a ring.

    Source: derived from Zhang et al. 2022 (MiCS): once per step, gradients of
    one shard are added up over the groups.
    """
    shard = zero_3_shard(node_size, unit_elements)
    return (
        2 * (ranks // node_size - 1) * (units * shard * itemsize * node_size // ranks)
    )


# Norm clipping over shards


@formula
def norm_clipping_calls(mesh_axes: Count, steps: Count) -> int:
    """All-reduces of a rank: one for each axis of the mesh, in every step.

    Source: Megatron-LM, pull request 5916; torchtitan, pull request 649.
    """
    return mesh_axes * steps


@formula
def norm_clipping_payload(mesh_axes: Count, steps: Count, itemsize: Positive) -> int:
    """Bytes that a rank hands to all-reduce: each time a single number.

    Source: Megatron-LM, pull request 5916; torchtitan, pull request 649.
    """
    return mesh_axes * steps * itemsize


# Owner-computes Muon: rows of all matrices on every rank, some matrices whole


@formula
def muon_flops(
    ranks: Ranks,
    rank: Rank,
    matrices: Count,
    rows: Count,
    columns: Count,
    steps: Count,
) -> int:
    """Operations of a rank's products: five steps of Newton-Schulz on its matrices.

    Source: Liu et al. 2025; torch.optim.Muon. For matrices with no more rows than
    columns: X times its transpose, that squared, and the polynomial times X.
    """
    one = 5 * (4 * rows**2 * columns + 2 * rows**3)
    return steps * chunk(matrices, ranks, rank) * one


@formula
def muon_sent(
    ranks: Ranks,
    rank: Rank,
    matrices: Count,
    rows: Count,
    columns: Count,
    itemsize: Positive,
    steps: Count,
) -> int:
    """Bytes that a rank hands to all-to-all: its rows, and updates of its matrices.

    Source: derived from VeOmni, pull request 973: paired all-to-alls; what stays with
    the rank is counted, too.
    """
    return (
        steps
        * columns
        * itemsize
        * (matrices * chunk(rows, ranks, rank) + chunk(matrices, ranks, rank) * rows)
    )


@formula
def muon_calls(steps: Count) -> int:
    """All-to-alls: one to the owners and one back, in every step.

    Source: VeOmni, pull request 973.
    """
    return 2 * steps


@formula
def muon_state(
    ranks: Ranks,
    rank: Rank,
    matrices: Count,
    rows: Count,
    columns: Count,
    itemsize: Positive,
) -> int:
    """Bytes of momentum that a rank keeps: one number for each of its weights.

    Source: Liu et al. 2025, section 2.3.
    """
    return matrices * chunk(rows, ranks, rank) * columns * itemsize


@formula
def muon_gathers_fewest(
    ranks: Ranks, matrices: Count, rows: Count, columns: Count, steps: Count
) -> int:
    """Numbers sent if each Newton-Schulz step gathers the whole matrix twice.

    Source: derived; torch 2.13, whose products of DTensors gather what they need.
    """
    share = -(-rows // ranks)
    return 10 * steps * matrices * (ranks - 1) * share * columns


@formula
def muon_gathers_most(
    ranks: Ranks, matrices: Count, rows: Count, columns: Count, steps: Count
) -> int:
    """Numbers sent if each step gathers three such matrices, and one norm is summed.

    Source: derived; the third is a Gram matrix, which has no more columns.
    """
    share = -(-rows // ranks)
    return steps * matrices * (ranks - 1) * (15 * share * columns + 2)
