"""1F1B by hand against torch.distributed.pipelining's Schedule1F1B."""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from atlas.bench.pair import Bench, Case, Pair, Side, sized
from exemplars.runtime import World
from exemplars.sync_strategy.pipeline_flush import one_f_one_b as exemplar


def make(w: World, *, micros: int, rows: int, width: int) -> Pair:
    """Both run the same stages over the same micro-batches."""
    most = f"{w.size} ranks for {micros} micro-batches: Schedule1F1B wants m >= p"
    w.require(w.size <= micros, most)
    sized(exemplar, MICROS=micros, ROWS=rows, WIDTH=width)
    batch = w.randn(micros, rows, width, of_rank=0)
    return Pair(ours(w, batch), theirs(w, batch), slack=256, compared=1)


def ours(w: World, batch: Tensor) -> Side:
    """The exemplar's stage."""
    stage = exemplar.Stage(w)

    def prepare() -> None:
        stage.layer.zero_grad()
        stage.loss.zero_()

    def values() -> list[Tensor]:
        return [*exemplar.gradients(stage.layer), stage.loss]

    return Side(lambda: stage.run(batch), values, prepare)


def theirs(w: World, batch: Tensor) -> Side:
    """The same layer as a PipelineStage; it learns its shapes in its first step."""
    layer = exemplar.layer(w.rank, w.device)
    micros, last = len(batch), w.rank == w.size - 1
    schedule = Schedule1F1B(
        PipelineStage(layer, w.rank, w.size, w.device),
        n_microbatches=micros,
        loss_fn=lambda y, _: exemplar.loss_of(y),
    )
    losses: list[Tensor] = []
    whole = batch.flatten(0, 1)

    def step() -> None:
        losses.clear()
        given = (whole,) if w.rank == 0 else ()
        asked: dict[str, Any] = {"target": whole, "losses": losses} if last else {}
        schedule.step(*given, return_outputs=False, **asked)

    def values() -> list[Tensor]:
        mean = sum(losses, torch.zeros((), dtype=batch.dtype)) / micros
        return [*exemplar.gradients(layer), mean.detach()]

    return Side(step, values, layer.zero_grad)


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
