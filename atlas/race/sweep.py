"""Batch sizes against serial steps and against compute: Laskin's claim, tried.

Beyond some batch size more samples a step buy no fewer steps: data parallelism has
nothing left to give. Layers that learn by themselves can still be spread: a step
then lasts as long as one layer's, not as long as all of them.
"""

from collections.abc import Sequence
from math import isfinite
from typing import Any

from atlas.race import runs
from atlas.race.courses import RANKS, Course, Name
from atlas.race.strategies import ENTRIES
from atlas.race.study import Progress

METHODS = (
    "bsp-synchronous-sgd",
    "local-parallelism:chunked",
    "local-parallelism:greedy",
)
SHARES = (1, 2, 4, 8, 16, 32)  # samples a rank; a step has four times as many
RATES = (0.1, 0.3, 1.0, 3.0)  # the upper part of the race's grid
TARGET: dict[Name, float] = {"digits": 0.5, "characters": 3.0}
MOST = 240  # steps
LOOKS = 60


def sweep(
    task: Name,
    progress: Progress = lambda text: None,
    shares: Sequence[int] = SHARES,
    grid: Sequence[float] = RATES,
    most: int = MOST,
) -> dict[str, Any]:
    """By method: for every batch the steps to the target, at the best rate."""
    points: dict[str, list[dict[str, float | None]]] = {}
    for name in METHODS:
        points[name] = []
        for share in shares:
            found: list[tuple[float, float]] = []
            for rate in grid:
                progress(f"{task}, {name}, batch {RANKS * share}, rate {rate:g}")
                course = Course(task, most, rate, share=share, looks=LOOKS)
                curve = runs.run(ENTRIES[name], course)["curve"]
                steps = steps_to(TARGET[task], curve, course.batch)
                found += [] if steps is None else [(steps, rate)]
            fewest = min(found, default=None)
            points[name].append(_point(name, RANKS * share, fewest))
    made = {"task": task, "target": TARGET[task], "most": most, "grid": list(grid)}
    return {**made, "points": points}


def steps_to(
    target: float, curve: Sequence[Sequence[float]], batch: int
) -> float | None:
    """Steps until the loss is at the target, between two looks by a line."""
    before: tuple[float, float] | None = None
    for samples, _, loss in curve:
        step = samples / batch
        if isfinite(loss) and loss <= target:
            if before is None:
                return float(step)
            s, high = before
            return float(s + (step - s) * (high - target) / (high - loss))
        before = (step, loss if isfinite(loss) else 1e9)
    return None


def _point(
    name: str, batch: int, fewest: tuple[float, float] | None
) -> dict[str, float | None]:
    """Serial time and compute, in forwards of one layer.

    A step goes through four layers forward, and twice as long backward. With a rank
    for each sample a step of backprop lasts 12; where layers learn alone, 3 after
    the first; with chunks of two, 6. Compute is what all samples take together.
    """
    if fewest is None:
        return {"batch": batch, "steps": None, "serial": None, "compute": None}
    steps, rate = fewest
    chunks = {"local-parallelism:greedy": 4, "local-parallelism:chunked": 2}
    lasts = 12 / chunks.get(name, 1)
    return {
        "batch": batch,
        "rate": rate,
        "steps": round(steps, 2),
        "serial": round(steps * lasts, 1),
        "compute": round(steps * batch * 12),
    }
