"""1F1B by hand against torch.distributed.pipelining's Schedule1F1B."""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional as F

from atlas.bench.pair import Bench, Case, Pair, Side
from exemplars.parameter_distribution.inter_layer.layer_partition import Part
from exemplars.runtime import World
from exemplars.sync_strategy.pipeline_flush.one_f_one_b import run_batch
from exemplars.workload import Task, equal_layers


def make(w: World, *, micros: int, rows: int, width: int) -> Pair:
    """Both run the same stages over the same micro-batches."""
    most = f"{w.size} ranks for {micros} micro-batches: Schedule1F1B wants m >= p"
    w.require(w.size <= micros, most)
    samples = w.randn(micros * rows, width, seed=0)
    labels = torch.arange(micros * rows, device=w.device) % width

    def batch(step: int, size: int) -> tuple[Tensor, Tensor]:
        return samples, labels

    task = Task("rows", lambda: equal_layers(w.size, width), batch)
    return Pair(ours(w, task, micros), theirs(w, task, micros), slack=256, compared=1)


def ours(w: World, task: Task, micros: int) -> Side:
    """The exemplar's stage."""
    stage, losses = Part(w, task), list[float]()
    samples, labels = (t.tensor_split(micros) for t in task.batch(0, micros))
    pairs = list(zip(samples, labels, strict=True))

    def step() -> None:
        losses[:] = [run_batch(w, stage, pairs, {"F": 1, "B": 2})]

    def values() -> list[Tensor]:
        return _values(stage, losses[0])

    return Side(step, values, stage.layers.zero_grad)


def _values(stage: Part, loss: float) -> list[Tensor]:
    """The gradients; on the last stage, also the loss."""
    found = [p.grad for p in stage.layers.parameters() if p.grad is not None]
    return [*found, found[0].new_tensor(loss if stage.last else 0.0)]


def theirs(w: World, task: Task, micros: int) -> Side:
    """The same layer as a PipelineStage; it learns its shapes in its first step."""
    stage = Part(w, task)
    schedule = Schedule1F1B(
        PipelineStage(stage.layers, w.rank, w.size, w.device),
        n_microbatches=micros,
        loss_fn=F.cross_entropy,
    )
    losses: list[Tensor] = []
    samples, labels = task.batch(0, micros)

    def step() -> None:
        losses.clear()
        given = (samples,) if stage.first else ()
        asked: dict[str, Any] = {"target": labels, "losses": losses}
        schedule.step(*given, return_outputs=False, **(asked if stage.last else {}))

    def values() -> list[Tensor]:
        mean = sum(loss.item() for loss in losses) / micros
        return _values(stage, mean)

    return Side(step, values, stage.layers.zero_grad)


BENCH = Bench(
    technique="one-f-one-b",
    production="torch.distributed.pipelining.Schedule1F1B",
    what="8 micro-batches of 64 rows through one layer a stage, width 512, float64.",
    note=(
        "Same messages and bytes. Both drive the same schedule from Python, one batch "
        "of messages between two actions; torch's also cuts and checks the batch."
    ),
    make=make,
    cases=(Case("width 512", 64 * 512 * 8, {"micros": 8, "rows": 64, "width": 512}),),
    headline="width 512",
    tiny={"micros": 4, "rows": 2, "width": 4},
)
