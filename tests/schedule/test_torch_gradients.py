"""Torch's schedules on the same stages, in the same run: the same gradients."""

from typing import Any

import pytest
import torch
from torch.distributed import pipelining
from torch.nn import functional as F

from atlas.launch import launch
from atlas.schedule import generate
from exemplars.runtime import World
from exemplars.sync_strategy.pipeline_flush.dualpipe import Mixed
from exemplars.sync_strategy.pipeline_flush.schedule_as_data import Stage, run_batch
from exemplars.workload import Task, equal_layers

pytestmark = pytest.mark.slow

MICROS, ROWS, WIDTH = 4, 2, 4
OURS = {
    "ScheduleInterleaved1F1B": "interleaved-1f1b",
    "ScheduleInterleavedZeroBubble": "zb-h1",
    "ScheduleZBVZeroBubble": "zb-v",
    "ScheduleDualPipeV": "dualpipe-v",
}


def furthest(w: World, name: str) -> float:
    """How far torch's gradients are from those of our schedule, at most."""
    plan = generate(OURS[name], w.size, MICROS)
    samples = w.randn(MICROS * ROWS, WIDTH, seed=0)
    labels = torch.arange(MICROS * ROWS) % WIDTH
    task = Task(
        "rows", lambda: equal_layers(plan.stages, WIDTH), lambda *_: (samples, labels)
    )
    kind = Mixed if plan.split else Stage
    own = {s: kind(w, task, s, plan) for s in plan.held(w.rank)}
    pairs = zip(samples.split(ROWS), labels.split(ROWS), strict=True)
    run_batch(w, own, plan, list(pairs))
    stages = {s: Stage(w, task, s, plan) for s in own}
    schedule: Any = getattr(pipelining, name)(
        [
            pipelining.PipelineStage(x.layers, s, plan.stages, w.device)
            for s, x in stages.items()
        ],
        n_microbatches=MICROS,
        loss_fn=F.cross_entropy,
    )
    last = {"target": labels} if plan.stages - 1 in own else {}
    schedule.step(*([samples] if 0 in own else []), return_outputs=False, **last)
    pairs_of = [
        (a.grad, b.grad)
        for s in own
        for a, b in zip(
            own[s].layers.parameters(), stages[s].layers.parameters(), strict=True
        )
    ]
    assert all(a is not None and b is not None for a, b in pairs_of)
    return max((a - b).abs().max().item() for a, b in pairs_of if a is not None)


@pytest.mark.parametrize("name", list(OURS))
def test_torchs_gradients_are_ours(name: str) -> None:
    assert max(launch(furthest, 2, name, timeout=60)) < 1e-14
