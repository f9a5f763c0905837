"""The race as a study: best rate of a grid, three seeds, with and without straggler.

Every strategy learns from the same number of samples. Its rate is the one of the
printed grid with the lowest last loss on a seed of its own, which is not raced on;
where the clock decides what is computed, with each clock anew.
"""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf, isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

from atlas import taxonomy
from atlas.bench.study import today, versions
from atlas.race import runs
from atlas.race.courses import RANKS, SHARE, SLOWDOWN, Course, Name
from atlas.race.strategies import PERIOD, Entry
from atlas.record import RecordError, compact, source_hash, write_text

PLACE = Path("measurements") / "studies" / "race.json"
GRID = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
SEEDS = (1, 2, 3)
BEYOND = 1e99  # stands for a loss that is no number any more; JSON has none
STEPS = {"digits": 150, "characters": 150}
TASKS: tuple[Name, ...] = ("digits", "characters")

Progress = Callable[[str], None]
Json = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What is raced; the defaults are what the site shows."""

    entries: tuple[Entry, ...]
    tasks: tuple[Name, ...] = TASKS
    seeds: tuple[int, ...] = SEEDS
    grid: tuple[float, ...] = GRID
    steps: int | None = None
    stragglers: tuple[bool, ...] = (False, True)

    def course(self, task: Name, straggler: bool) -> Course:
        """At the first rate and the seed that rates are chosen on."""
        steps = self.steps or STEPS[task]
        return Course(task, steps, self.grid[0], straggler=straggler)

    @property
    def total(self) -> int:
        """How many times ranks are started, for a progress bar."""
        count = 0
        for entry in self.entries:
            grids = len(self.stragglers) if entry.clocked else 1
            races = len(self.stragglers) * len(self.seeds)
            count += len(self.tasks) * (len(self.grid) * grids + races + 1)
        return count


def race(plan: Plan, progress: Progress = lambda text: None) -> Json:
    """All of it; `progress` hears of every run before it begins."""
    made: Json = {task: {} for task in plan.tasks}
    for task in plan.tasks:
        for entry in plan.entries:
            made[task][entry.name] = _entry(plan, entry, task, progress)
    return made


def _entry(plan: Plan, entry: Entry, task: Name, progress: Progress) -> Json:
    """One strategy on one task."""
    made: Json = {"technique": entry.technique, "variant": entry.variant}
    chosen: tuple[float, list[float]] | None = None
    for straggler in plan.stragglers:
        course = plan.course(task, straggler)
        if chosen is None or entry.clocked:
            chosen = best(entry, course, plan.grid, progress)
        rate, losses = chosen
        races = []
        for seed in plan.seeds:
            progress(f"{task}, {entry.name}, seed {seed}")
            races.append(runs.run(entry, replace(course, rate=rate, seed=seed)))
        made["straggler" if straggler else "equal"] = {
            "rate": rate,
            "grid": losses,
            **average(races),
        }
    progress(f"{task}, {entry.name}, memory")
    made["peak"] = runs.memory(entry, plan.course(task, False))
    return made


def best(
    entry: Entry, course: Course, grid: Sequence[float], progress: Progress
) -> tuple[float, list[float]]:
    """The rate of the grid with the lowest last loss, and all last losses."""
    losses = []
    for rate in grid:
        progress(f"{course.task}, {entry.name}, rate {rate:g}")
        found = runs.run(entry, replace(course, rate=rate, looks=1))
        losses.append(_finite(found["curve"][-1][2]))
    lowest = min(x if x is not None else inf for x in losses)
    if lowest == inf:
        rates = ", ".join(f"{rate:g}" for rate in grid)
        what = f"{entry.name} on {course.task} diverges at every rate ({rates})"
        raise RecordError(f"{what}; add a lower one with --rate")
    return grid[losses.index(lowest)], [x if x is not None else -1.0 for x in losses]


def _finite(loss: float) -> float | None:
    """A loss, or None where training blew up."""
    return round(loss, 4) if isfinite(loss) else None


def average(races: Sequence[Json]) -> Json:
    """Of the seeds: the mean curve with its extremes, and what else was counted."""
    curves = [r["curve"] for r in races]
    points = []
    for seen in zip(*curves, strict=True):
        losses = [loss if isfinite(loss) else BEYOND for _, _, loss in seen]
        row = [fmean(losses), min(losses), max(losses)]
        points.append([seen[0][0], seen[0][1], *(round(x, 4) for x in row)])
    kept = ("bytes", "staleness", "oldest", "alone")
    return {"curve": points, **{k: races[0][k] for k in kept}}


def sources(root: Path, entries: Iterable[Entry]) -> dict[str, str]:
    """By technique: the exemplar that was raced and what it stands on, as a hash."""
    known = taxonomy.load(root).techniques
    names = sorted({e.technique for e in entries})
    return {name: source_hash(root, known[name]) for name in names}


def keep(root: Path, plan: Plan, made: Json, sweep: Json | None) -> Path:
    """Write the study; what was not made again stays, with its source."""
    old = kept(root)
    races, again = old.get("races", {}), sources(root, plan.entries) if made else {}
    made = {
        task: {**races.get(task, {}), **made.get(task, {})}
        for task in {**races, **made}
    }
    study = {
        "recorded": today(),
        "versions": versions(),
        "machine": {"cores": os.cpu_count()},
        "sources": {**old.get("sources", {}), **again},
        "given": {
            "ranks": RANKS,
            "share": SHARE,
            "slowdown": SLOWDOWN,
            "period": PERIOD,
            "grid": plan.grid,
            "seeds": plan.seeds,
            "samples": {t: plan.course(t, False).samples for t in plan.tasks},
        },
        "races": made,
        "sweep": {**(old.get("sweep") or {}), **(sweep or {})},
    }
    text = json.dumps(study, indent=1, sort_keys=True) + "\n"
    write_text(root / PLACE, compact(text))
    return root / PLACE


def kept(root: Path) -> Json:
    """The study that lies there; empty if none does."""
    try:
        found: Json = json.loads((root / PLACE).read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise RecordError(f"{PLACE}: {error}; remove it and race again") from None
    return found


def plain(plan: Plan) -> Json:
    """A plan as data, for --json."""
    return {**asdict(plan), "entries": [e.name for e in plan.entries]}
