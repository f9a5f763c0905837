"""Formulas of sync-strategy/elastic: deaths, bytes, time."""

from atlas.formulas.parts import chunk
from atlas.formulas.ranges import Amount, Count, Positive, Rank, Ranks, formula

# Quorum step: workers are killed in turn, the last rank's first, then rank 0's. Each
# misses some steps and is back before the next one dies


@formula
def quorum_killed(ranks: Ranks, rank: Rank, kills: Count) -> int:
    """Workers of this rank that are killed: every p-th of all kills.

    Source: derived: the k-th kill, from 0, is that of rank k-1 modulo p.
    """
    return (kills + ranks - 1 - (rank + 1) % ranks) // ranks


@formula
def quorum_payload(
    ranks: Ranks,
    rank: Rank,
    elements: Count,
    itemsize: Positive,
    steps: Count,
    kills: Count,
    away: Count,
) -> int:
    """Bytes of complete exchanges: the gradient, samples and loss of a step.

    Source: derived: one complete exchange per step that this rank did not miss.
    """
    missed = away * quorum_killed(ranks, rank, kills)
    return (steps - missed) * (elements + 2) * itemsize


@formula
def quorum_copied(elements: Count, itemsize: Positive, kills: Count) -> int:
    """Bytes of state that are broadcast: weights and momentum, for each return.

    Source: derived: every worker that was killed is replaced once.
    """
    return kills * 2 * elements * itemsize


# Elastic rescaling: p processes; the upper half is killed in the middle of a step, all
# others take that step again; later one comes back


@formula
def rescaling_killed(ranks: Ranks, rank: Rank) -> int:
    """Processes of this rank that are killed: one in the upper half, else none.

    Source: derived: the lower half, rounded up, lives on.
    """
    return 1 if rank >= (ranks + 1) // 2 else 0


@formula
def rescaling_gradients(
    ranks: Ranks,
    rank: Rank,
    steps: Count,
    logical: Count,
    fall: Count,
    grow: Count,
) -> int:
    """Gradients that this rank computes for the logical workers it hosts.

    Source: derived: an even share in every step, and in the step of the deaths twice.
    """
    half = (ranks + 1) // 2
    before = (fall + 1) * chunk(logical, ranks, rank)
    fewer = (grow - fall) * chunk(logical, half, rank) if rank < half else 0
    after = (steps - grow) * chunk(logical, half + 1, rank) if rank <= half else 0
    return before + fewer + after


@formula
def rescaling_makespan(
    ranks: Ranks, steps: Count, logical: Count, fall: Count, grow: Count
) -> int:
    """Seconds, if a gradient takes one: in every step the largest share of a process.

    Source: derived: logical workers on one process take turns.
    """
    half = (ranks + 1) // 2
    before = (fall + 1) * -(-logical // ranks)
    fewer = (grow - fall) * -(-logical // half)
    after = (steps - grow) * -(-logical // (half + 1))
    return before + fewer + after


# Adaptive rerouting: pipelines of s stages train together. The last stage of the last
# one dies, then, of two pipelines, the stage before it of the other; peers take over


@formula
def rerouting_killed(
    ranks: Ranks, rank: Rank, pipelines: Positive, kills: Count
) -> int:
    """Workers of this rank that are killed.

    Source: derived: the k-th death, from 0, is k pipelines and k stages from the end.
    """
    stages = max(1, ranks // pipelines)
    k = stages - 1 - rank % stages
    return 1 if k < kills and rank // stages == pipelines - 1 - k else 0


@formula
def rerouting_forwards(
    ranks: Ranks,
    rank: Rank,
    pipelines: Positive,
    microbatches: Positive,
    steps: Count,
    fall: Count,
    kills: Count,
) -> int:
    """Forwards of this rank: its own micro-batches, and its part of a dead peer's.

    Source: derived from Gandhi et al. 2024 (ReCycle), abstract: micro-batches go to
    data-parallel peers; dealt in turn, each peer has an even share.
    """
    stages = max(1, ranks // pipelines)
    k = stages - 1 - rank % stages
    before = min(fall + k, steps) if k < kills else steps
    place = rank // stages
    behind = place - 1 if place > pipelines - 1 - k else place
    return (
        microbatches * before
        if rerouting_killed(ranks, rank, pipelines, kills) == 1
        else microbatches * steps
        + (steps - before) * chunk(microbatches, max(1, pipelines - 1), behind)
    )


@formula
def rerouting_payload(
    ranks: Ranks,
    rank: Rank,
    pipelines: Positive,
    width: Count,
    itemsize: Positive,
    steps: Count,
    fall: Count,
    kills: Count,
) -> int:
    """Bytes handed to all-reduce: a stage's gradient and a loss, in each step lived.

    Source: derived: peers have the weights already, so nothing else is exchanged.
    """
    stages = max(1, ranks // pipelines)
    lived = (
        fall + stages - 1 - rank % stages
        if rerouting_killed(ranks, rank, pipelines, kills) == 1
        else steps
    )
    return lived * (width * width + width + 1) * itemsize


@formula
def rerouting_makespan(
    ranks: Ranks,
    pipelines: Positive,
    microbatches: Positive,
    steps: Count,
    fall: Count,
    forward: Amount,
    backward: Amount,
) -> float:
    """Seconds of all steps: after a death, those of the peer with most micro-batches.

    Source: by simulation, for up to 5 pipelines of up to 4 stages: the last stage of
    the last one dies, and of two pipelines also the stage before it of the other.
    """
    stages = max(1, ranks // pipelines)
    most = microbatches + -(-microbatches // max(1, pipelines - 1))
    slots = fall * (microbatches + stages - 1) + (steps - fall) * (most + stages - 1)
    return slots * (forward + backward)
