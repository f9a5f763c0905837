"""Who may race: the exemplars' own `train`, and the arguments that a course gives it.

    for step in train(w, task(course), **arguments(entry, course, w.rank)): ...

Every exemplar that trains has the same interface, so an entry is data: where its
`train` is, what it is given beyond the course, and whose weights one would keep.
"""

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal, cast

import torch

from atlas.race.courses import RANKS, WIDTH, Course
from exemplars.workload import Train

PERIOD = 8  # steps between two meetings
STALENESS = 2  # steps that a worker may lead the slowest by
BUFFER = 4  # pairs of activations and labels that a layer keeps
PACE = 0.01  # rate of a predictor of gradients
WHOLE = {"gradient": 1.0, "update": 0.0}  # forward and backward are one span
THIRDS = {"F": 1 / 3, "B": 2 / 3}  # backward takes twice as long


@dataclass(frozen=True)
class Entry:
    """A strategy in a race: whose weights are kept, and how."""

    technique: str
    module: str  # of its exemplar, within the axis
    kept: Literal["first", "mean", "joined"]
    variant: str = ""
    clocked: bool = False  # whether the clock decides what is computed
    period: int | None = None  # steps that a rank takes alone
    gradients: int = 1  # of workers, in one update
    aged: bool = True  # whether a step tells the age of its gradient
    microbatches: int = 1  # parts of a batch, each of which takes its part of the time
    takes: int = RANKS  # shares of a batch in a step, where a server takes none
    own: bool = False  # whether ranks tell of their own steps alone, each in its time
    #: By the name of a span, its part of a step; for those whose `train` has no clock.
    spans: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As it is written on the command line."""
        return f"{self.technique}:{self.variant}" if self.variant else self.technique

    @property
    def train(self) -> Train:
        """The exemplar's own."""
        return cast(Train, _of(self).train)


def arguments(entry: Entry, course: Course, rank: int) -> dict[str, Any]:
    """What `train` asks for, of what the course and the entry have."""
    seconds = course.seconds(rank, 0)
    offered: dict[str, Any] = {
        "steps": _steps(entry, course),
        "duration": duration(
            course, entry.period or 1, entry.gradients, first=0 if entry.own else 1
        ),
        "batch": course.batch,
        "local_batch": course.share,
        "rate": course.rate,
        "period": entry.period,
        "clock": course.seconds,
        "forward": seconds / 3 / entry.microbatches,
        "backward": 2 * seconds / 3 / entry.microbatches,
        "microbatches": entry.microbatches,
        "together": _steps(entry, course) // 2,
        "warmup": _steps(entry, course) // 10,
        **entry.settings,
    }
    asked = inspect.signature(entry.train).parameters
    if "buffer" in asked:
        offered["buffer"] = _of(entry).Replay(BUFFER)
    if "predictor" in asked:
        nothing = torch.zeros(*2 * [WIDTH[course.task]], dtype=torch.double)
        offered["predictor"] = _of(entry).Predictor(nothing, PACE)
    return {name: value for name, value in offered.items() if name in asked}


def _of(entry: Entry) -> Any:
    """The exemplar, for what each run needs one of: a buffer, a predictor."""
    return importlib.import_module(f"exemplars.sync_strategy.{entry.module}")


def samples_of(entry: Entry, course: Course) -> int:
    """What one step has learned from: the whole batch, or what a worker pushed."""
    pushed = course.share * (entry.period or 1) * entry.gradients
    return pushed if entry.clocked else course.batch


def seconds_of(entry: Entry, course: Course, rank: int, span: str) -> float | None:
    """What a span takes, if the race says so and not the exemplar."""
    part = entry.spans.get(span)
    return None if part is None else part * course.seconds(rank, 0)


def _steps(entry: Entry, course: Course) -> int:
    """Steps in which all samples are taken; a server takes none itself."""
    return -(-course.steps * RANKS // entry.takes)


def duration(course: Course, period: int, gradients: int = 1, first: int = 1) -> float:
    """The seconds in which the workers, from this rank on, have taken all the samples.

    A worker's samples count when a period of steps is done, and in an update of
    several gradients when the last of them is there.
    """
    updates = -(-course.samples // (course.share * period * gradients))
    turns = updates * gradients
    ends: list[float] = []
    for q in range(first, RANKS):
        steps = accumulate(course.seconds(q, i) for i in range(turns * period))
        ends += [*steps][period - 1 :: period]
    return sorted(ends)[turns - 1]


ENTRIES = {
    e.name: e
    for e in (
        Entry(
            "bsp-synchronous-sgd",
            "synchronous.bsp_synchronous_sgd",
            "first",
            settings={"bucket": 10**9, "update": 0},
        ),
        Entry(
            "stale-synchronous-parallel",
            "bounded_staleness.stale_synchronous_parallel",
            "first",
            clocked=True,
            takes=RANKS - 1,
            settings={"staleness": STALENESS},
        ),
        Entry(
            "backup-workers",
            "synchronous.backup_workers",
            "first",
            clocked=True,
            gradients=RANKS - 2,
            takes=RANKS - 2,
            settings={"backups": 1},
        ),
        Entry(
            "large-batch-scaling",
            "synchronous.large_batch_scaling",
            "first",
            spans=WHOLE,
        ),
        Entry("downpour", "asynchronous.downpour", "first", clocked=True),
        Entry(
            "n-softsync",
            "asynchronous.n_softsync",
            "first",
            clocked=True,
            gradients=RANKS - 1,
            settings={"splits": 1},
        ),
        Entry(
            "staleness-aware-rate",
            "asynchronous.staleness_aware_rate",
            "first",
            clocked=True,
        ),
        Entry(
            "delay-compensated-asgd",
            "asynchronous.delay_compensated_asgd",
            "first",
            clocked=True,
            aged=False,
        ),
        Entry(
            "asynchronous-gossip",
            "asynchronous.asynchronous_gossip",
            "mean",
            clocked=True,
            own=True,
            aged=False,
        ),
        Entry("local-sgd", "periodic.local_sgd", "mean", period=PERIOD),
        Entry("post-local-sgd", "periodic.post_local_sgd", "mean", period=PERIOD),
        Entry(
            "block-momentum",
            "periodic.block_momentum",
            "first",
            period=PERIOD,
            settings={"momentum": 0.75},
        ),
        Entry("diloco", "periodic.diloco", "first", period=PERIOD),
        Entry("streaming-diloco", "periodic.streaming_diloco", "first", period=PERIOD),
        Entry(
            "elastic-averaging",
            "periodic.elastic_averaging",
            "first",
            period=PERIOD,
            settings={"beta": 0.9},
        ),
        Entry(
            "elastic-averaging-asynchronous",
            "asynchronous.elastic_averaging_asynchronous",
            "first",
            clocked=True,
            period=PERIOD,
            settings={"alpha": 0.9 / (RANKS - 1)},
        ),
        Entry("d-psgd", "consensus.d_psgd", "mean"),
        Entry("push-sum", "consensus.push_sum", "mean", spans=WHOLE),
        Entry("rotating-partners", "consensus.rotating_partners", "mean", spans=WHOLE),
        Entry("gpipe", "pipeline_flush.gpipe", "joined", microbatches=RANKS),
        Entry("weight-stashing", "pipeline_stale.weight_stashing", "joined"),
        Entry("vertical-sync", "pipeline_stale.vertical_sync", "joined"),
        Entry(
            "weight-prediction",
            "pipeline_stale.weight_prediction",
            "joined",
            spans=THIRDS,
        ),
        Entry(
            "double-buffered-weights",
            "pipeline_stale.double_buffered_weights",
            "joined",
            microbatches=RANKS,
        ),
        *(
            Entry(
                "local-parallelism",
                "layer_local.local_parallelism",
                "joined",
                variant,
                settings={"chunks": chunks},
            )
            for variant, chunks in (("backprop", 1), ("chunked", 2), ("greedy", RANKS))
        ),
        Entry(
            "local-parallelism-overlapping",
            "layer_local.local_parallelism_overlapping",
            "joined",
        ),
        Entry(
            "interlocking-backprop",
            "layer_local.interlocking_backprop",
            "joined",
            spans=THIRDS,
            settings={"window": 2},
        ),
        Entry(
            "decoupled-greedy-buffer", "layer_local.decoupled_greedy_buffer", "joined"
        ),
        Entry(
            "synthetic-gradients",
            "layer_local.synthetic_gradients",
            "joined",
            spans=THIRDS,
        ),
    )
}
