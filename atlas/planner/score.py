"""Scores the candidates of one mesh: what they share is computed once."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from atlas.planner import agreement, holding, layerwise, pipelining
from atlas.planner.cluster import Cluster
from atlas.planner.mesh import SCHEDULES, mesh, recipe_on
from atlas.planner.model import Model
from atlas.planner.records import Cut, Exchange, Load, Recipe, Schedule, ScheduleKind
from atlas.planner.rules import divisors
from atlas.planner.stages import units
from atlas.planner.strategy import Axis, Data, Embedding, Expert, Strategy, Zero
from atlas.planner.traffic import sites_of
from atlas.planner.train import RECOMPUTE, Train

__all__ = ["Score", "Scorer", "Stage", "chosen"]

Stage = Literal[0, 1, 2, 3]  # of ZeRO; 0: plain data parallelism

TOO_LARGE = "does not fit in device memory"
#: DeepSpeed's pipeline engine refuses it too (deepspeed/runtime/pipe/engine.py).
SHARDED = "ZeRO-2 or 3 with a pipeline: communicates in every micro-batch"
UNEVEN = "interleaved: micro-batches are not a multiple of the stages"


class Score(NamedTuple):
    """Of one candidate: its choice is ZeRO's stage, within, schedule and chunks."""

    seconds: float
    bytes: float
    choice: tuple[Stage, int, int, int]
    reason: str  # why it is dropped; empty: it is not


class _Variant(NamedTuple):
    """A way of agreeing: what it costs and what it leaves on the outermost stages."""

    stage: Stage
    within: int
    agree: tuple[Exchange, ...]
    optimizer: tuple[float, ...]
    held: tuple[float, ...]  # bytes of state, with one version of the parameters
    parameters: tuple[float, ...]


class Scorer:
    """The candidates of one mesh, whose replicas are a Data axis."""

    def __init__(
        self,
        model: Model,
        strategy: Strategy,
        cluster: Cluster,
        train: Train,
        stages: Sequence[Stage],
        kinds: list[int],
        sharded_pipelines: bool = False,
    ) -> None:
        one = dataclasses.replace(train, micro_batch=1)
        self.share = train.batch // strategy.length(Data, Expert, Embedding)
        self.mesh = made = mesh(model, strategy, cluster, one)
        found = sites_of(model, made, cluster)
        self.ends = found[:: len(found) - 1 or 1] if model.uniform else found
        self.recipes = [recipe_on(cluster, train, r) for r in RECOMPUTE]
        legal = [s for s in stages if s < 2 or sharded_pipelines or len(found) == 1]
        self.dropped = len(stages) - len(legal)
        self.variants = [
            self._variant(model, strategy, cluster, one, stage, within)
            for stage, within in _choices(
                legal, strategy, cluster, made.replicas.ranks > 1
            )
        ]
        self.schedules = _schedules(model, made.schedule.stages, kinds)

    def _variant(
        self,
        model: Model,
        strategy: Strategy,
        cluster: Cluster,
        train: Train,
        stage: Stage,
        within: int,
    ) -> _Variant:
        axes = tuple(chosen(axis, stage, within) for axis in strategy.axes)
        m = mesh(model, Strategy(axes), cluster, train)
        shape = (m.cut, m.recipe, m.replicas)
        works = [site.work for site in self.ends]
        held = [holding.state_bytes(work, *shape, 1) for work in works]
        return _Variant(
            stage,
            within,
            tuple(agreement.exchange(work, *shape, m.wires) for work in works),
            tuple(agreement.optimizer_seconds(work, *shape, m.speed) for work in works),
            tuple(map(sum, held)),
            tuple(state.parameters for state in held),
        )

    def score(self, micro: int, again: int, room: float) -> Iterator[Score]:
        """All candidates with this micro-batch and recomputation."""
        recipe, micros = self.recipes[again], self.share // micro
        cut = self.mesh.cut._replace(micro=micro)
        places = [
            (
                site.place,
                holding.activation_bytes(site.work, cut, recipe),
                holding.unit_bytes(site.work, cut, recipe),
            )
            for site in self.ends
        ]
        one: Load | None = None
        slowest = 0
        for kind, chunks in self.schedules:
            order = SCHEDULES[kind]
            schedule = Schedule(self.mesh.schedule.stages, micros, chunks, order)
            if order == ScheduleKind.INTERLEAVED and micros % schedule.stages:
                for v in self.variants:
                    choice = (v.stage, v.within, kind, chunks)
                    yield Score(0.0, float("inf"), choice, UNEVEN)
                continue
            moving = [
                pipelining.in_flight(schedule, place) * kept + unit
                for place, kept, unit in places
            ]
            for _ in range(self.dropped):
                yield Score(0.0, float("inf"), (0, 0, kind, chunks), SHARDED)
            extra = [pipelining.stash(schedule, place) - 1 for place, _, _ in places]
            for v in self.variants:
                choice = (v.stage, v.within, kind, chunks)
                held = max(map(_total, v.held, moving, extra, v.parameters))
                if held > room:
                    yield Score(0.0, held, choice, TOO_LARGE)
                    continue
                if one is None:
                    slowest, one = self._slowest(cut, recipe)
                times = pipelining.times(
                    one,
                    v.agree[slowest],
                    schedule,
                    recipe,
                    v.optimizer[slowest],
                    self.mesh.speed.step,
                )
                yield Score(sum(times), held, choice, "")

    def _slowest(self, cut: Cut, recipe: Recipe) -> tuple[int, Load]:
        """Of the outermost stages the one that takes longest, and how long."""
        m = self.mesh
        loads = [
            layerwise.load(site.work, cut, recipe, m.speed, m.wires)
            for site in self.ends
        ]
        slowest = max(range(len(loads)), key=lambda i: pipelining.busy(loads[i]))
        return slowest, loads[slowest]


def _total(state: float, moving: float, extra: int, parameters: float) -> float:
    return state + moving + extra * parameters


def chosen(axis: Axis, stage: Stage, within: int) -> Axis:
    """A Data axis as ZeRO of this stage; other axes as they are."""
    if not isinstance(axis, Data) or stage == 0:
        return axis
    return Zero(stage, axis.ranks, within or None)


def _choices(
    stages: Sequence[Stage], strategy: Strategy, cluster: Cluster, shared: bool
) -> Iterator[tuple[Stage, int]]:
    """ZeRO's stages; of the third also with one copy of the state in every node."""
    for stage in stages:
        if stage == 0 or shared:
            yield stage, 0
    places = strategy.places(Data)
    if 3 in stages and places:
        stride, d = places[0]
        node = cluster.levels[0].size // stride
        if 1 < node < d and d % node == 0:
            yield 3, node


def _schedules(model: Model, p: int, kinds: list[int]) -> list[tuple[int, int]]:
    """Kinds of schedule, by place, and chunks of a rank: equal ones alone."""
    if p == 1:
        return [(SCHEDULES.index(ScheduleKind.ONE_F_ONE_B), 1)]
    free = -(-units(model) // p)  # where they do not divide, some ranks have one less
    chunks = [v for v in divisors(free) if v > 1]
    interleaved = SCHEDULES.index(ScheduleKind.INTERLEAVED)
    return [(k, v) for k in kinds for v in (chunks if k == interleaved else [1])]
