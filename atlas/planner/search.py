"""The planner: every legal strategy, those that fit, the fastest, and five to measure.

Candidates are scored with the core's functions alone, on numbers that many of them
share; whole predictions are made for the shortlist only. A shortlist, because a
single first place can be badly wrong: measure the five.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from atlas.planner.cluster import Cluster
from atlas.planner.errors import OracleError, numbers
from atlas.planner.mesh import SCHEDULES
from atlas.planner.meshes import meshes
from atlas.planner.model import Model
from atlas.planner.predict import predict
from atlas.planner.prediction import Prediction
from atlas.planner.records import Recompute, ScheduleKind
from atlas.planner.rules import check, divisors
from atlas.planner.score import Scorer, Stage, chosen
from atlas.planner.strategy import (
    AXES,
    Axis,
    Data,
    Embedding,
    Expert,
    Pipeline,
    ScheduleName,
    Strategy,
    Zero,
)
from atlas.planner.train import RECOMPUTE, SEARCHED, Train
from atlas.planner.units import size

__all__ = ["Candidate", "Plan", "plan"]

SHORTLIST = 5
RANKED = 100


@dataclass(frozen=True)
class Candidate:
    """A strategy with its score."""

    strategy: Strategy
    train: Train
    seconds: float
    bytes: float


@dataclass(frozen=True)
class Plan:
    """What the search found."""

    model: Model
    cluster: Cluster
    gpus: int
    train: Train
    candidates: int  # considered
    pruned: Mapping[str, int]  # reason -> how many
    ranked: tuple[Candidate, ...]  # those that fit, fastest first; the first hundred
    front: tuple[Candidate, ...]  # none is both faster and smaller
    shortlist: tuple[Prediction, ...]  # the best of five meshes of different lengths

    @property
    def fitting(self) -> int:
        """Candidates that are legal and fit."""
        return self.candidates - sum(self.pruned.values())


class Choice(NamedTuple):
    """What one candidate chooses on its mesh."""

    mesh: int
    micro: int
    recompute: int  # its place in RECOMPUTE
    stage: Stage
    within: int
    kind: int  # of the pipeline's schedule: its place in SCHEDULES
    chunks: int


Scored = tuple[float, float, Choice]


def plan(
    model: Model,
    cluster: Cluster,
    gpus: int,
    train: Train,
    *,
    recompute: Sequence[Recompute] = SEARCHED,
    stages: Sequence[Stage] = (0, 1, 2, 3),
    schedules: Sequence[ScheduleName] = ("1f1b", "interleaved", "zero-bubble"),
    sharded_pipelines: bool = False,
    among: Callable[[Iterable[Strategy]], Iterable[Strategy]] = iter,
) -> Plan:
    """Search all meshes of so many devices; raises OracleError if nothing fits.

    `train.micro_batch` is kept where it is given; `stages` are those of ZeRO, of which
    2 and 3 go with a pipeline only if `sharded_pipelines`; of all meshes, those are
    searched that `among` lets through.
    """
    if not 1 <= gpus <= cluster.size:
        raise OracleError(
            f"{gpus} devices on {cluster.name}: expected 1 to {cluster.size}"
        )
    search = _Search(model, cluster, gpus, train)
    again = [RECOMPUTE.index(Recompute(r)) for r in recompute]
    if model.kind != "transformer" or train.flash:  # no scores to compute again
        again = [r for r in again if RECOMPUTE[r] != Recompute.SELECTIVE] or [
            RECOMPUTE.index(Recompute.NONE)
        ]
    kinds = [SCHEDULES.index(ScheduleKind(name)) for name in schedules]
    found = meshes(model, gpus, cluster.levels[0].size)
    search.run(among(found), again, stages, kinds, sharded_pipelines)
    if not search.found:
        raise OracleError(search.refusal())
    return search.plan()


class _Search:
    """One search: what was considered, what was dropped, what was found."""

    def __init__(self, model: Model, cluster: Cluster, gpus: int, train: Train) -> None:
        self.model, self.cluster, self.gpus, self.train = model, cluster, gpus, train
        self.meshes: list[Strategy] = []
        self.found: list[Scored] = []
        self.candidates = 0
        self.pruned: Counter[str] = Counter()
        self.smallest = float("inf")

    def run(
        self,
        every: Iterable[Strategy],
        again: list[int],
        stages: Sequence[Stage],
        kinds: list[int],
        sharded_pipelines: bool,
    ) -> None:
        for strategy in every:
            self.meshes.append(strategy)
            try:
                check(self.model, strategy, self.cluster)
            except OracleError as error:
                self.drop(str(error).partition(": expected")[0])
                continue
            replicas = strategy.length(Data, Expert, Embedding)
            if self.train.batch % replicas:
                self.drop(f"batch {self.train.batch} is not divisible by the replicas")
                continue
            micros = self._micros(self.train.batch // replicas)
            if not micros:
                self.drop(
                    f"micro_batch {self.train.micro_batch} does not divide a share"
                )
            scorer = Scorer(
                self.model,
                strategy,
                self.cluster,
                self.train,
                stages,
                kinds,
                sharded_pipelines,
            )
            for micro, r in product(micros, again):
                self._take(micro, r, scorer)

    def _take(self, micro: int, again: int, scorer: Scorer) -> None:
        """The candidates with this micro-batch; those that do not fit are counted."""
        index, room = len(self.meshes) - 1, self.cluster.room
        for entry in scorer.score(micro, again, room):
            self.candidates += 1
            if entry.reason:
                self.pruned[entry.reason] += 1
                self.smallest = min(self.smallest, entry.bytes)
            else:
                choice = Choice(index, micro, again, *entry.choice)
                self.found.append((entry.seconds, entry.bytes, choice))

    def drop(self, reason: str, n: int = 1) -> None:
        self.candidates += n
        self.pruned[reason] += n

    def _micros(self, share: int) -> list[int]:
        """Micro-batches to try: powers of two, and the whole share."""
        fixed = self.train.micro_batch
        legal = divisors(share)
        if fixed is not None:
            return [n for n in legal if n == fixed]
        return [n for n in legal if n & (n - 1) == 0 or n == share]

    def plan(self) -> Plan:
        self.found.sort()
        best: dict[tuple[int, ...], Choice] = {}
        for _, _, choice in self.found:
            best.setdefault(_lengths(self.meshes[choice.mesh]), choice)
            if len(best) == SHORTLIST:
                break
        made = [self._made(choice) for choice in best.values()]
        return Plan(
            self.model,
            self.cluster,
            self.gpus,
            self.train,
            self.candidates,
            dict(self.pruned.most_common()),
            tuple(self._candidate(*entry) for entry in self.found[:RANKED]),
            tuple(self._candidate(*entry) for entry in _front(self.found)),
            tuple(predict(self.model, s, self.cluster, t) for s, t in made),
        )

    def _candidate(self, seconds: float, held: float, choice: Choice) -> Candidate:
        return Candidate(*self._made(choice), seconds, held)

    def _made(self, c: Choice) -> tuple[Strategy, Train]:
        """The strategy and the training that a choice stands for."""
        train = dataclasses.replace(
            self.train, micro_batch=c.micro, recompute=RECOMPUTE[c.recompute]
        )
        axes = [_chosen(axis, c) for axis in self.meshes[c.mesh].axes]
        kept = [axis for axis in axes if axis.ranks > 1 or isinstance(axis, Zero)]
        return Strategy(tuple(kept)), train

    def refusal(self) -> str:
        """Why nothing is left, and what would be."""
        what = f"{self.model.name} on {self.gpus} devices of {self.cluster.name}"
        if self.smallest < float("inf"):
            room = size(self.cluster.room)
            return (
                f"{what}: the smallest of {self.candidates} candidates needs "
                f"{size(self.smallest)} of {room}: expected more devices"
            )
        reason, _ = self.pruned.most_common(1)[0]
        near = numbers(self.gpus, divisors(self.train.batch))
        return f"{what}: {reason}: expected {near} devices, which divide the batch"


def _lengths(strategy: Strategy) -> tuple[int, ...]:
    """What makes two meshes different enough to measure both."""
    return tuple(strategy.length(kind) for kind in AXES.values())


def _chosen(axis: Axis, c: Choice) -> Axis:
    if isinstance(axis, Pipeline):
        return Pipeline(axis.ranks, SCHEDULES[c.kind].value, c.chunks)
    return chosen(axis, c.stage, c.within)


def _front(found: list[Scored]) -> Iterator[Scored]:
    """Of candidates in order of time, those smaller than all before them."""
    least = float("inf")
    for entry in found:
        if entry[1] < least:
            least = entry[1]
            yield entry
