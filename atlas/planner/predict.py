"""The oracle: what a strategy costs on a cluster, before it is run.

explain(predict(model, Data(2) * Tensor(8), cluster, Train(batch=64)))
"""

from atlas.planner import computing, holding, layerwise, pipelining, replicas
from atlas.planner.cluster import Cluster
from atlas.planner.findings import find
from atlas.planner.mesh import Mesh, mesh
from atlas.planner.model import Model
from atlas.planner.prediction import Prediction
from atlas.planner.records import Bytes
from atlas.planner.rules import check
from atlas.planner.strategy import Axis, Strategy
from atlas.planner.traffic import Site, inside, sites_of
from atlas.planner.train import Train

__all__ = ["predict"]


def predict(
    model: Model, strategy: Strategy | Axis, cluster: Cluster, train: Train
) -> Prediction:
    """One step; raises OracleError, one line, outside the oracle's range."""
    strategy = Strategy.of(strategy)
    check(model, strategy, cluster)
    made = mesh(model, strategy, cluster, train)
    sites = sites_of(model, made, cluster)
    loads = [
        layerwise.load(site.work, made.cut, made.recipe, made.speed, made.wires)
        for site in sites
    ]
    slowest = max(range(len(sites)), key=lambda i: pipelining.busy(loads[i]))
    heavy, one = sites[slowest], loads[slowest]
    agree = replicas.agree(strategy, heavy)
    times = pipelining.times(
        one,
        agree.exchange,
        made.schedule,
        made.recipe,
        agree.optimizer,
        made.speed.step,
    )
    held = tuple(replicas.adjusted(strategy, site, _bytes(site)) for site in sites)
    collectives = (*inside(heavy), *agree.collectives)
    memory = max(held, key=sum)
    band, seconds = cluster.band, sum(times)
    model_flops = 3 * train.batch * model.flops
    return Prediction(
        model=model,
        strategy=strategy,
        cluster=cluster,
        train=train,
        micro_batch=made.cut.micro,
        micro_batches=made.schedule.micros,
        seconds=seconds,
        low=seconds * band.low,
        high=seconds * band.high,
        times=times,
        collectives=collectives,
        memory=memory,
        stages=held,
        capacity=cluster.room,
        flops=model_flops,
        executed=model_flops + _again(sites, made) * strategy.ranks / len(sites),
        fullest=max(_operations(site) for site in sites),
        findings=(
            *find(model, strategy, sites, train, times, memory, collectives),
            *agree.findings(times),
        ),
        binds=max(times._fields, key=lambda name: getattr(times, name)),
    )


def _bytes(site: Site) -> Bytes:
    m = site.mesh
    return holding.memory(
        site.work, m.cut, m.recipe, m.replicas, m.schedule, site.place
    )


def _operations(site: Site) -> float:
    """What the fullest rank of a stage computes in a step, forward and backward."""
    m = site.mesh
    once = computing.forward_flops(site.work, m.cut) + computing.score_flops(
        site.work, m.cut
    )
    again = computing.recomputed_flops(site.work, m.cut, m.recipe)
    return m.schedule.micros * (3 * once + again)


def _again(sites: list[Site], made: Mesh) -> float:
    """Operations that one rank of each stage does twice, or for seats left empty.

    Or that every rank of a cut does whole, which the model has but once.
    """
    cut = made.cut._replace(rows=0)  # of all ranks: not of the one with most rows
    each = 3 * computing.samples_of(cut) * (cut.capacity - 1) / cut.tensor
    others = 3 * computing.samples_of(cut) * (1 - 1 / max(cut.filter, cut.channel))
    return sum(
        made.schedule.micros
        * (
            computing.recomputed_flops(site.work, cut, made.recipe)
            + each * site.work.seat_flops
            + others * computing.whole_flops(site.work, cut)
        )
        for site in sites
    )
