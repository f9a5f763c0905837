"""Formulas of sync-strategy/pipeline-stale: bytes, rounds, memory, time."""

from atlas.formulas.ranges import Rank, Ranks, formula

# Weight stashing: a pipeline of p stages that never empties


@formula
def stashing_staleness(ranks: Ranks, rank: Rank) -> int:
    """Updates of stage r between a batch's forward and its backward.

    Source: Narayanan et al. 2019 (PipeDream), section 3.3, stages counted from 0.
    """
    return ranks - 1 - rank


@formula
def stashing_versions(ranks: Ranks, rank: Rank) -> int:
    """Versions of its weights that stage r holds at once, the newest included.

    Source: Narayanan et al. 2019 (PipeDream), section 3.3, stages counted from 0.
    """
    return ranks - rank
