"""One run of one strategy: train on four ranks, look on the way, then judge."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from atlas.gpus import visible_gpus
from atlas.launch import launch
from atlas.race.courses import RANKS, Course, evaluate, task
from atlas.race.strategies import (
    ENTRIES,
    Entry,
    arguments,
    duration,
    samples_of,
    seconds_of,
)
from atlas.timeline import virtual
from exemplars.runtime import World, meter, span

DEADLINE = 300.0
MEMORY_STEPS = 10


@dataclass
class Looks:
    """This rank's weights at even distances in samples."""

    every: float
    most: int
    seen: list[tuple[int, Tensor]] = field(default_factory=list)

    def __call__(self, samples: int, weights: Sequence[Tensor]) -> None:
        """Keep a copy as one vector, if it is time to."""
        due = len(self.seen) + 1
        if due <= self.most and samples >= self.every * due:
            with span("look", label=len(self.seen)):
                flat = torch.cat([t.detach().reshape(-1) for t in weights])
                self.seen.append((samples, flat.cpu()))


def progress(course: Course, rank: int, steps: int) -> int:
    """Samples that all ranks have taken when this one has taken so many steps.

    Where every rank has steps of its own, it is known by the clock. What a rank has
    after the last step for which there is time is what it has in the end.
    """
    end, step = duration(course, 1, first=0), course.seconds(rank, 0)
    now = steps * step if (steps + 1) * step <= end else end
    return round(course.samples * now / end)


def on_rank(w: World, name: str, course: Course) -> dict[str, Any]:
    """What one rank does, and what it saw."""
    entry, samples, ages = ENTRIES[name], 0, list[int]()
    looks = Looks(course.samples / course.looks, course.looks)
    given, taken = arguments(entry, course, w.rank), samples_of(entry, course)
    with meter() as moved:
        for count, step in enumerate(entry.train(w, task(course), **given), 1):
            own = progress(course, w.rank, count) if entry.own else 0
            samples = own or samples + taken
            if step.weights:  # or else another rank holds them
                ages.append(step.age)
                looks(samples, step.weights)
    return {
        "looks": looks.seen,
        "events": [e.as_dict() for e in moved.events],
        "bytes": float(moved.wire),
        "ages": ages,
    }


def memory_on_rank(w: World, name: str, course: Course) -> int:
    """The most bytes of tensors that were ever alive at once on this rank."""
    entry = ENTRIES[name]
    given = arguments(entry, course, w.rank)
    with w.memory() as ledger:
        for _ in entry.train(w, task(course), **given):
            pass
    return ledger.peak["total"]


def _on_ranks(function: Callable[..., Any], *args: Any) -> list[Any]:
    """On GPUs if there is one for each rank, else all on the CPU."""
    env = {"CUDA_VISIBLE_DEVICES": ""} if visible_gpus() < RANKS else {}
    return launch(function, RANKS, *args, timeout=DEADLINE, env=env)


def memory(entry: Entry, course: Course) -> int:
    """Of the rank that needs most; a few steps tell, a ledger is slow."""
    few = replace(course, steps=MEMORY_STEPS)
    return max(_on_ranks(memory_on_rank, entry.name, few))


def run(entry: Entry, course: Course) -> dict[str, Any]:
    """Train, and judge what was seen: losses by samples and by virtual time."""
    ranks = _on_ranks(on_rank, entry.name, course)
    events = [r["events"] for r in ranks]
    times = _times([timed(entry, course, q, own) for q, own in enumerate(events)])
    holders = [q for q in range(RANKS) if ranks[q]["looks"]]
    if entry.kept == "first":
        holders = holders[:1]
    curve = []
    for i in range(min(len(ranks[q]["looks"]) for q in holders)):
        parts = [ranks[q]["looks"][i][1] for q in holders]
        samples = max(ranks[q]["looks"][i][0] for q in holders)
        at = max(times[q][i] for q in holders)
        curve.append(
            [samples, round(at, 3), evaluate(course.task, _keep(entry, parts))]
        )
    #: Who steps alone for a period has no stale gradient; its weights differ.
    silent = entry.period or not entry.aged
    ages = [] if silent else [age for r in ranks for age in r["ages"]]
    return {
        "curve": curve,
        "bytes": round(sum(r["bytes"] for r in ranks)),
        "staleness": round(fmean(ages), 3) if ages else None,
        "oldest": max(ages, default=None),
        "alone": entry.period,
    }


def timed(entry: Entry, course: Course, rank: int, events: list[Any]) -> list[Any]:
    """The events of a rank, its spans as long as the race says."""
    made = []
    for event in events:
        says = seconds_of(entry, course, rank, event.get("name", ""))
        made.append(event if says is None else {**event, "cost": says})
    return made


def _keep(entry: Entry, parts: list[Tensor]) -> Tensor:
    """The weights that one would keep, of the ranks' parts."""
    if entry.kept == "joined":
        return torch.cat(parts)
    return torch.stack(parts).mean(0)


def _times(traces: list[list[dict[str, Any]]]) -> list[list[float]]:
    """By rank: the virtual time of every look."""
    found: list[list[float]] = [[] for _ in traces]
    for s in virtual(traces).spans:
        if s.name == "look":
            found[s.rank].append(s.start)
    return found
