"""A strategy on a cluster, in numbers: what the core's functions take."""

from dataclasses import dataclass

from atlas.planner.cluster import Cluster, Group
from atlas.planner.errors import OracleError, numbers
from atlas.planner.model import Model
from atlas.planner.records import (
    Cut,
    Links,
    Recipe,
    Replicas,
    Schedule,
    ScheduleKind,
    Speed,
    Wires,
)
from atlas.planner.strategy import (
    REPLICAS,
    Axis,
    Channel,
    Checkpoint,
    Context,
    Embedding,
    Expert,
    Filter,
    Pipeline,
    Spatial,
    Strategy,
    Tensor,
    Zero,
)
from atlas.planner.train import Train

__all__ = ["CUTS", "Mesh", "mesh", "recipe_on"]

CUTS: tuple[type[Axis], ...] = (Tensor, Filter, Channel, Spatial)
SAMPLES: tuple[type[Axis], ...] = (*REPLICAS, Expert, Embedding)
AGREE: tuple[type[Axis], ...] = (*SAMPLES, Context, Spatial)
ALONE: tuple[type[Axis], ...] = (*REPLICAS, Context, Spatial)
SCHEDULES: tuple[ScheduleKind, ...] = tuple(ScheduleKind)


@dataclass(frozen=True)
class Mesh:
    """A strategy in numbers, and where its groups are."""

    cut: Cut
    schedule: Schedule
    replicas: Replicas
    recipe: Recipe
    wires: Wires
    speed: Speed
    groups: dict[str, Group]  # by the fields of Wires


def mesh(model: Model, strategy: Strategy, cluster: Cluster, train: Train) -> Mesh:
    """The numbers; the batch must divide evenly."""
    micro, micros = _micro(strategy, train)
    tensor, context = strategy.find(Tensor), strategy.find(Context)
    pipeline, expert = strategy.find(Pipeline), strategy.find(Expert)
    cut = Cut(
        micro=micro,
        tensor=strategy.length(Tensor),
        sequence=tensor is not None and tensor.sequence_parallel,
        filter=strategy.length(Filter),
        channel=strategy.length(Channel),
        spatial=strategy.length(Spatial),
        rows=min((layer.height for layer in model.layers if layer.height), default=0),
        context=strategy.length(Context),
        ring=context is None or context.method == "ring",
        expert=strategy.length(Expert),
        capacity=expert.capacity if expert else 1.0,
        embedding=strategy.length(Embedding),
    )
    schedule = Schedule(
        stages=strategy.length(Pipeline),
        micros=micros,
        chunks=pipeline.chunks if pipeline else 1,
        kind=ScheduleKind(pipeline.schedule if pipeline else "1f1b"),
    )
    if schedule.kind == ScheduleKind.INTERLEAVED and micros % schedule.stages:
        raise OracleError(
            f"{pipeline} with {micros} micro-batches: expected a multiple of "
            f"{schedule.stages}"
        )
    zero = strategy.find(Zero)
    agree = strategy.length(*AGREE)
    replicas = Replicas(
        ranks=agree,
        alone=strategy.length(*ALONE),
        stage=zero.stage if zero else 0,
        shard=(zero.within or agree) if zero else 1,
    )
    again = strategy.find(Checkpoint)
    groups = _groups(strategy, cluster, zero)
    return Mesh(
        cut,
        schedule,
        replicas,
        recipe_on(cluster, train, again.what if again else None),
        Wires(**{name: _links(cluster, group) for name, group in groups.items()}),
        _speed(model, cluster, train),
        groups,
    )


def recipe_on(cluster: Cluster, train: Train, recompute: str | None) -> Recipe:
    """How training is done, and what hiding an exchange costs on this device."""
    contention = cluster.device.contention
    return train.recipe(recompute)._replace(contention=contention)


def _micro(strategy: Strategy, train: Train) -> tuple[int, int]:
    """Samples of a micro-batch, and micro-batches of a step."""
    parts = strategy.length(*SAMPLES)
    if train.batch % parts:
        legal = [n * parts for n in range(1, train.batch // parts + 2)]
        raise OracleError(
            f"batch {train.batch} for {parts} replicas: expected a multiple, "
            + numbers(train.batch, legal)
        )
    share = train.batch // parts
    default = 1 if strategy.length(Pipeline) > 1 else share
    micro = train.micro_batch or default
    if share % micro:
        legal = [n for n in range(1, share + 1) if share % n == 0]
        raise OracleError(
            f"micro_batch {micro} of a replica's {share} samples: expected a divisor, "
            + numbers(micro, legal)
        )
    return micro, share // micro


def _groups(
    strategy: Strategy, cluster: Cluster, zero: Zero | None
) -> dict[str, Group]:
    shard, copies = strategy.places(*AGREE), list[tuple[int, int]]()
    if zero and zero.within:
        stride = strategy.places(Zero)[0][0] if zero.ranks > 1 else 1
        shard = [(stride, zero.within)]
        copies = [(stride * zero.within, zero.ranks // zero.within)]
        copies += strategy.places(Expert, Embedding, Context, Spatial)
    places = {
        "cut": strategy.places(*CUTS),
        "context": strategy.places(Context),
        "expert": strategy.places(Expert, Embedding),
        "pipeline": strategy.places(Pipeline),
        "data": strategy.places(*AGREE),
        "shard": shard,
        "copies": copies,
        "alone": strategy.places(*ALONE),
    }
    return {name: cluster.group(pairs) for name, pairs in places.items()}


def _links(cluster: Cluster, group: Group) -> Links:
    return Links(*(cluster.link(group, op) for op in Links._fields))


def _speed(model: Model, cluster: Cluster, train: Train) -> Speed:
    """The device; where a sample of this model was timed, that sets its rate."""
    seconds = cluster.device.measured.get(model.name)
    if seconds is None:
        return cluster.device.speed(train.precision.arithmetic)
    device = cluster.device
    return Speed(
        peak=3 * model.flops / seconds,
        bandwidth=device.bandwidth * device.streamed,
        host=device.host,
        step=device.step,
        timed=True,
    )
