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


# Vertical sync: one version at all stages


@formula
def vertical_sync_staleness(ranks: Ranks) -> int:
    """Updates of any stage between the version a batch uses and its own update.

    Source: Narayanan et al. 2019 (PipeDream), section 3.3: w(t-n+1) at n stages.
    """
    return ranks - 1


@formula
def vertical_sync_versions(ranks: Ranks) -> int:
    """Versions of its weights that any stage holds at once, the newest included.

    Source: derived from Narayanan et al. 2019 (PipeDream), section 3.3: a version is
    used until its last batch returns, p-1 updates after it was made.
    """
    return ranks


# Double-buffered weights: one version per batch of micro-batches


@formula
def double_buffered_staleness() -> int:
    """Updates between the version that a batch uses and the batch's own update.

    Source: Narayanan et al. 2021 (PipeDream-2BW), section 3.1.
    """
    return 1


@formula
def double_buffered_versions() -> int:
    """Versions of its weights that any stage holds at once, the newest included.

    Source: Narayanan et al. 2021 (PipeDream-2BW), section 3.1.
    """
    return 2


# Weight prediction: one buffer of weights, which the forward moves ahead


@formula
def prediction_distance(ranks: Ranks, rank: Rank) -> int:
    """Updates that stage r makes between a batch's forward and its backward.

    Source: derived; the order of work is that of weight stashing.
    """
    return ranks - 1 - rank
