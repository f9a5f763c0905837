"""What a rank holds of the state, and how replicas agree on it.

Part of the arithmetic: see `atlas.planner.arithmetic`.
"""

from math import ceil

from atlas.planner.computing import divided
from atlas.planner.records import (
    Cut,
    Exchange,
    Link,
    Recipe,
    Replicas,
    Speed,
    Wires,
    Work,
)
from atlas.planner.rings import gather_seconds, reduce_seconds


def held(work: Work, cut: Cut) -> float:
    """Parameters on the fullest rank that all replicas share.

    Source: Shoeybi et al. 2019, section 3; Kahira et al. 2021, table III.
    """
    return divided(work.weights, work.unchannelled, work, cut) + work.shared


def held_alone(work: Work, cut: Cut) -> float:
    """Parameters of experts and tables on one rank.

    Source: Lepikhin et al. 2021 (GShard); Naumov et al. 2019 (DLRM).
    """
    return work.experts / (cut.expert * cut.tensor) + work.tables / cut.embedding


def padded(n: float, units: int, p: int) -> float:
    """Elements of so many equal units when each is padded to a multiple of p.

    Source: Rajbhandari et al. 2020, section 5.3; Zhao et al. 2023.
    """
    return units * p * ceil(n / (units * p)) if p > 1 and units > 0 else n


def buckets(n: float, recipe: Recipe) -> int:
    """Messages that n gradients go in.

    Source: Li et al. 2020, PyTorch Distributed.
    """
    return max(1, ceil(n * recipe.gradient / recipe.bucket)) if recipe.bucket > 0 else 1


def alone_shard(replicas: Replicas) -> int:
    """Ranks that share one copy of an expert's or a table's state.

    Source: Rajbhandari et al. 2020: only ranks that hold the same can share it.
    """
    return min(replicas.alone, replicas.shard)


def exchange(
    work: Work, cut: Cut, recipe: Recipe, replicas: Replicas, wires: Wires
) -> Exchange:
    """Seconds in which replicas agree on gradients and weights.

    Source: Rajbhandari et al. 2020, section 7: ZeRO-1 scatters gradients and gathers
    weights once a step; ZeRO-2 scatters in every micro-batch; ZeRO-3 gathers weights
    twice and scatters in every micro-batch. Those that hold the same expert or table
    do the same among themselves (Lepikhin et al. 2021).
    """
    stage = replicas.stage
    s = replicas.shard
    e = alone_shard(replicas)
    n = padded(held(work, cut), work.layers, s)
    alone = held_alone(work, cut)
    units = buckets(n, recipe) if stage < 2 else max(1, work.layers)
    few = 0 if alone == 0 else buckets(alone, recipe) if stage < 2 else work.layers
    gathered = gather_seconds(
        s, units, n * recipe.weight, wires.shard.all_gather
    ) + gather_seconds(e, few, alone * recipe.weight, wires.alone.all_gather)
    scattered = gather_seconds(
        s, units, n * recipe.gradient, wires.shard.reduce_scatter
    ) + gather_seconds(e, few, alone * recipe.gradient, wires.alone.reduce_scatter)
    copies = reduce_seconds(
        replicas.ranks // s, units, n / s * recipe.gradient, wires.copies.all_reduce
    )
    summed = reduce_seconds(
        replicas.ranks, units, n * recipe.gradient, wires.data.all_reduce
    ) + reduce_seconds(
        replicas.alone, few, alone * recipe.gradient, wires.alone.all_reduce
    )
    return Exchange(
        forward=gathered if stage == 3 else 0.0,
        backward=gathered + scattered
        if stage == 3
        else scattered
        if stage == 2
        else 0.0,
        reduce=summed if stage == 0 else copies + (scattered if stage == 1 else 0.0),
        gather=gathered if 1 <= stage <= 2 else 0.0,
        pieces=units,
    )


def exposed(seconds: float, window: float, pieces: int, overlap: bool) -> float:
    """Seconds of an exchange in equal pieces that a window of computing does not hide.

    Source: derived from Li et al. 2020: the last piece is ready when computing ends.
    """
    return (
        max(seconds / pieces, seconds - window * (pieces - 1) / pieces)
        if overlap
        else seconds
    )


def felt(seconds: float, window: float, pieces: int, recipe: Recipe) -> float:
    """Seconds that an exchange adds: what is not hidden, and what hiding costs.

    Source: Miao et al. 2022 (Galvatron), section 3: computing slows down while an
    exchange shares the device with it.
    """
    open_ = exposed(seconds, window, pieces, recipe.overlap)
    return open_ + recipe.contention * (seconds - open_)


def optimizer_seconds(
    work: Work, cut: Cut, recipe: Recipe, replicas: Replicas, speed: Speed
) -> float:
    """Seconds of the optimizer's step: it reads and writes all state once.

    Source: derived: the memory's bandwidth binds, not its arithmetic.
    """
    own = padded(held(work, cut), work.layers, replicas.shard)
    alone = held_alone(work, cut)
    mine = own / replicas.shard if replicas.stage > 0 else own
    others = alone / alone_shard(replicas) if replicas.stage > 0 else alone
    return (mine + others) * recipe.stepped / speed.bandwidth


def servers_needed(workers: int, n: float, beta: float, seconds: float) -> int:
    """Servers whose traffic takes no longer than a step's computing.

    Source: derived, as Zou et al. 2017 ask: s servers take w workers' n bytes, pushed
    and pulled, through links of 1/beta bytes a second: w n beta / s seconds.
    """
    return max(1, ceil(workers * n * beta / seconds))


def server_seconds(workers: int, servers: int, n: float, link: Link) -> float:
    """Seconds in which workers push and pull n bytes: the busier side's.

    Source: derived from Li et al. 2014: a worker moves n, a server its part of all.
    """
    return 2 * (link.launch + link.alpha) + max(1, workers / servers) * n * link.beta
