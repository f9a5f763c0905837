"""Formulas of communication-pattern/neighbor: bytes, rounds, memory, time."""

from atlas.formulas.parts import chunk, floor_log2
from atlas.formulas.ranges import Count, Positive, Rank, Ranks, formula

# Halo exchange: images cut by rows, a square kernel


@formula
def halo_bytes(
    ranks: Ranks,
    rank: Rank,
    batch: Count,
    channels: Count,
    columns: Count,
    kernel: Positive,
    itemsize: Positive,
) -> int:
    """Bytes that rank r sends: half a kernel's rows to each neighbor it has.

    Source: Dryden et al. 2019, on halo exchange; Kahira et al. 2021.
    """
    neighbors = min(rank, 1) + min(ranks - 1 - rank, 1)
    return neighbors * (kernel // 2) * batch * channels * columns * itemsize


@formula
def halo_rounds(ranks: Ranks) -> int:
    """Rounds of messages: up and down, where there are ranks on both sides.

    Source: Dryden et al. 2019, on halo exchange.
    """
    return min(2, ranks - 1)


# Gossip: sweeps over the shifts 1, 2, 4, ... below p


@formula
def gossip_messages(ranks: Ranks, sweeps: Count) -> int:
    """Messages a rank sends: one in each of the ceil(lg p) steps of a sweep.

    Source: Daily et al. 2018, on rotating partners: shifts double, below p.
    """
    return sweeps * floor_log2(2 * ranks - 1)


@formula
def gossip_bytes(
    ranks: Ranks, elements: Count, itemsize: Positive, sweeps: Count
) -> int:
    """Bytes a rank sends: a whole tensor in each step.

    Source: Daily et al. 2018, on rotating partners.
    """
    return elements * itemsize * gossip_messages(ranks, sweeps)


@formula
def gossip_disagreement(ranks: Ranks, sweeps: Count) -> float:
    """Share of the distance from the mean that can be left after these sweeps.

    Source: derived: of 2^S shares, S = ceil(lg p), 2^S - p ranks hold two; less the
    mean, that circulant's norm is at most the smaller of the two groups over 2^S.
    """
    shares = 2 ** floor_log2(2 * ranks - 1)
    return (min(shares - ranks, 2 * ranks - shares) / shares) ** sweeps


# A pipeline's boundaries: activations forward, their gradients backward


@formula
def pipeline_boundaries(ranks: Ranks, rank: Rank) -> int:
    """Boundaries of stage r: one to the stage before it, one to the stage after it.

    Source: arithmetic: the first and the last stage have one less.
    """
    return min(rank, 1) + min(ranks - 1 - rank, 1)


@formula
def pipeline_boundary_messages(ranks: Ranks, rank: Rank, microbatches: Count) -> int:
    """Messages that stage r sends: one per micro-batch over each of its boundaries.

    Source: Narayanan et al. 2021, section 2.2.
    """
    return microbatches * pipeline_boundaries(ranks, rank)


@formula
def pipeline_boundary_message(
    ranks: Ranks,
    batch: Count,
    microbatches: Positive,
    width: Count,
    itemsize: Positive,
) -> int:
    """Bytes of the largest message: an activation, or a gradient, of a micro-batch.

    Source: Narayanan et al. 2021, section 2.2.
    """
    return min(ranks - 1, 1) * chunk(batch, microbatches, 0) * width * itemsize


@formula
def pipeline_boundary_bytes(
    ranks: Ranks, rank: Rank, batch: Count, width: Count, itemsize: Positive
) -> int:
    """Bytes that stage r sends: the whole batch over each of its boundaries.

    Source: Kahira et al. 2021, appendix A.1.3, equation 13.
    """
    return pipeline_boundaries(ranks, rank) * batch * width * itemsize
