"""Schedules with several stages per rank, or split backwards, against torch's own.

Both run the same list of work: torch's order is held against ours before anything is
timed.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed import pipelining
from torch.nn import functional as F

from atlas.bench.pair import Bench, Case, DiffersError, Pair, Side
from atlas.schedule import Schedule, from_torch, generate
from exemplars.runtime import World
from exemplars.sync_strategy.pipeline_flush.dualpipe import Mixed
from exemplars.sync_strategy.pipeline_flush.schedule_as_data import Stage, run_batch
from exemplars.sync_strategy.pipeline_flush.zero_bubble import Halves
from exemplars.workload import Task, equal_layers


@dataclass(frozen=True)
class Kind:
    """A schedule: its exemplar, its name here and in torch, and how a stage runs it."""

    technique: str
    name: str
    torchs: str
    stage: type[Stage]


KINDS = (
    Kind(
        "interleaved-one-f-one-b", "interleaved-1f1b", "ScheduleInterleaved1F1B", Stage
    ),
    Kind("zero-bubble", "zb-h1", "ScheduleInterleavedZeroBubble", Halves),
    Kind("v-schedule", "zb-v", "ScheduleZBVZeroBubble", Halves),
    Kind("dualpipe", "dualpipe-v", "ScheduleDualPipeV", Mixed),
)


def make(w: World, kind: Kind, *, micros: int, rows: int, width: int) -> Pair:
    """Both run the same stages over the same micro-batches, in the same order."""
    plan = generate(kind.name, w.size, micros)
    samples = w.randn(micros * rows, width, seed=0)
    labels = torch.arange(micros * rows, device=w.device) % width

    def batch(step: int, size: int) -> tuple[Tensor, Tensor]:
        return samples, labels

    task = Task("rows", lambda: equal_layers(plan.stages, width), batch)
    one, other = (
        {s: of(w, task, s, plan) for s in plan.held(w.rank)} for of in _both(kind)
    )
    return Pair(ours(w, plan, one), theirs(w, kind, plan, other), slack=256, compared=1)


def _both(kind: Kind) -> tuple[type[Stage], type[Stage]]:
    return kind.stage, Stage


def ours(w: World, plan: Schedule, own: dict[int, Stage]) -> Side:
    """The exemplar's stages, by the schedule that is generated."""
    samples, labels = next(iter(own.values())).task.batch(0, 0)
    m = plan.microbatches
    pairs = list(zip(samples.chunk(m), labels.chunk(m), strict=True))
    return Side(
        lambda: run_batch(w, own, plan, pairs),
        lambda: gradients(own),
        lambda: clear(own),
    )


def theirs(w: World, kind: Kind, plan: Schedule, own: dict[int, Stage]) -> Side:
    """The same layers as PipelineStages; they learn their shapes in the first step."""
    samples, labels = next(iter(own.values())).task.batch(0, 0)
    stages = [
        pipelining.PipelineStage(stage.layers, s, plan.stages, w.device)
        for s, stage in own.items()
    ]
    schedule: Any = getattr(pipelining, kind.torchs)(
        stages, n_microbatches=plan.microbatches, loss_fn=F.cross_entropy
    )
    if from_torch(schedule.pipeline_order).ranks != plan.ranks:
        raise DiffersError(f"{kind.torchs} has another order than {kind.name}")
    given = [samples] if 0 in own else []
    asked = {"target": labels} if plan.stages - 1 in own else {}
    step = partial(schedule.step, *given, return_outputs=False, **asked)
    return Side(step, lambda: gradients(own), lambda: clear(own))


def gradients(own: dict[int, Stage]) -> list[Tensor]:
    """Of all stages of this rank, in order."""
    weights = [p for stage in own.values() for p in stage.layers.parameters()]
    return [p.grad for p in weights if p.grad is not None]


def clear(own: dict[int, Stage]) -> None:
    """Both sides add to gradients."""
    for stage in own.values():
        stage.layers.zero_grad()


def _bench(kind: Kind) -> Bench:
    return Bench(
        technique=kind.technique,
        production=f"torch.distributed.pipelining.{kind.torchs}",
        what="8 micro-batches of 64 rows, one layer per stage, width 512, float64.",
        note=(
            "The same order on every rank, held against torch's before it is timed. "
            "Both post a batch for each message; torch's also cuts and checks the "
            "batch, and splits a backward by walking autograd's graph."
        ),
        make=partial(make, kind=kind),
        cases=(
            Case("width 512", 64 * 512 * 8, {"micros": 8, "rows": 64, "width": 512}),
        ),
        headline="width 512",
        tiny={"micros": 4, "rows": 2, "width": 4},
    )


BENCHES = tuple(_bench(kind) for kind in KINDS)
