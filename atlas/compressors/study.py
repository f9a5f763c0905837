"""The study in parts, each kept by itself: measurements/studies/compressors/NAME.json.

    values   bytes, error, bias      4 ranks, counted and seeded: the same every time
    loss     after the same samples  4 ranks, the best rate of a grid, three seeds
    work     encode and decode       processor seconds, on 2 and on 4 ranks
    wires    the step on a link      2 nodes, links of 100 Mbit/s, 1 and 10 Gbit/s

A part that was measured from today's source is not measured again, so the study can be
stopped and taken up anywhere.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

from atlas.bench.study import today, versions
from atlas.compressors import runs
from atlas.compressors.entries import Entry, entry, nature, plain
from atlas.compressors.gradients import RANKS, SHARE, TASKS, Name, elements
from atlas.launch import launch
from atlas.planner.accuracy.nodes import missing
from atlas.planner.accuracy.wire import Wire
from atlas.record import compact, write_text
from atlas.taxonomy import Technique
from atlas.views.compressors import PARTS, PLACE, PLAIN, read, source, stale

RATES = (100_000_000, 1_000_000_000, 10_000_000_000)  # bits a second
NODES = 2
GRID = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
START = 0.3  # where the search for the best rate begins
SEEDS = (1, 2, 3)
DEADLINE = 300.0
DIGITS = 6  # that a kept figure has

Json = dict[str, Any]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """One part of one compressor; without a technique, of the plain all-reduce."""

    technique: Technique | None
    part: str

    @property
    def name(self) -> str:
        """Of its file."""
        return self.technique.id if self.technique else PLAIN

    @property
    def entry(self) -> Entry:
        """What is run."""
        return entry(self.technique) if self.technique else plain()


def jobs(techniques: Sequence[Technique], parts: Sequence[str] = PARTS) -> list[Job]:
    """Every part of these, and of the plain all-reduce, which comes first."""
    return [Job(t, part) for part in parts for t in (None, *techniques)]


def due(root: Path, chosen: Sequence[Job]) -> list[Job]:
    """Those that nobody has measured, or from another source or other settings."""
    return [job for job in chosen if not _kept(root, job)]


def _kept(root: Path, job: Job) -> bool:
    found = read(root, job.name) or {"parts": {}}
    part = found["parts"].get(job.part)
    if part is None or stale(root, job.technique, part):
        return False
    if found["nature"] != vars(nature(job.name)):
        return False
    return bool(part["settings"] == _settings(job.entry))


def _settings(chosen: Entry) -> Json:
    return {name: chosen.settings(elements(name)) for name in TASKS}


def lacking() -> str | None:
    """What this machine lacks for links of known speed; None if nothing."""
    return missing()


def measure(root: Path, job: Job, progress: Progress = lambda text: None) -> Json:
    """One part, with what it was measured from and when."""
    load = os.getloadavg()[0]
    found = MEASURED[job.part](job.entry, progress)
    return {
        "recorded": today(),
        "versions": versions(),
        "load": round(load, 2),
        "source": source(root, job.technique),
        "settings": _settings(job.entry),
        "found": rounded(found),
    }


def keep(root: Path, job: Job, part: Json) -> Path:
    """Write a part beside the others of its compressor."""
    found = read(root, job.name) or {"parts": {}}
    made = {
        "compressor": job.name,
        "nature": vars(nature(job.name)),
        "parts": {**found["parts"], job.part: part},
    }
    text = json.dumps(made, indent=1, sort_keys=True) + "\n"
    target = root / PLACE / f"{job.name}.json"
    write_text(target, compact(text))
    return target


def rounded(value: Any) -> Any:
    """With as many digits as a reader could use."""
    match value:
        case dict():
            return {str(k): rounded(v) for k, v in value.items()}
        case list() | tuple():
            return [rounded(v) for v in value]
        case float():
            return float(f"{value:.{DIGITS}g}")
    return value


# The parts


def _values(chosen: Entry, progress: Progress) -> Json:
    progress(f"{chosen.name}, values")
    ranks = launch(runs.values, RANKS, chosen, timeout=DEADLINE)
    found: Json = ranks[0]
    for name in TASKS:
        found[name]["wire"] = max(rank[name]["wire"] for rank in ranks)
        found[name]["handed"] = [rank[name].pop("payload") for rank in ranks]
    return {"ranks": RANKS, **found}


def _loss(chosen: Entry, progress: Progress) -> Json:
    samples = runs.TRAINED * RANKS * SHARE
    made: Json = {"ranks": RANKS, "samples": samples, "grid": GRID}
    for name in TASKS:
        seen = search(partial(_last, chosen, progress, name, 0))
        rate = min(seen, key=lambda rate: seen[rate])
        last = [_last(chosen, progress, name, seed, rate) for seed in SEEDS]
        made[name] = {
            "rate": rate,
            "tried": {f"{r:g}": _or_none(x) for r, x in sorted(seen.items())},
            "mean": _or_none(fmean(last)),
            "low": _or_none(min(last)),
            "high": _or_none(max(last)),
        }
    return made


def _last(
    chosen: Entry, progress: Progress, name: Name, seed: int, rate: float
) -> float:
    """The last loss; beyond all numbers where the training blew up."""
    progress(f"{chosen.name}, loss on {name}, rate {rate:g}, seed {seed}")
    found = launch(runs.loss, RANKS, chosen, name, rate, seed, timeout=DEADLINE)[0]
    return float(found) if isfinite(found) else float("inf")


def _or_none(loss: float) -> float | None:
    return loss if isfinite(loss) else None


def search(
    loss: Callable[[float], float],
    grid: Sequence[float] = GRID,
    start: float = START,
) -> dict[float, float]:
    """Losses by rate: down from the start, then up, as long as it is not worse."""
    first = grid.index(start)
    seen = {start: loss(start)}
    for way in (reversed(grid[:first]), grid[first + 1 :]):
        best = seen[start]
        for rate in way:
            seen[rate] = loss(rate)
            if seen[rate] > best:
                break
            best = seen[rate]
    return seen


def _work(chosen: Entry, progress: Progress) -> Json:
    made: Json = {}
    for ranks in (NODES, RANKS):
        progress(f"{chosen.name}, work on {ranks} ranks")
        seen = launch(runs.work, ranks, chosen, timeout=DEADLINE)
        made[str(ranks)] = {name: _slowest(seen, name) for name in TASKS}
    if chosen.name == PLAIN:
        progress(f"{chosen.name}, real steps")
        steps = launch(runs.trained, NODES, chosen, timeout=DEADLINE)
        made["trained"] = {name: max(s[name] for s in steps) for name in TASKS}
    return made


def _slowest(seen: Sequence[Json], name: Name) -> Json:
    """Of the rank with the most work: the others wait for it."""
    slowest: Json = max((rank[name] for rank in seen), key=lambda x: x["seconds"])
    return slowest


def _wires(chosen: Entry, progress: Progress) -> Json:
    made: Json = {"nodes": NODES}
    for rate in RATES:
        progress(f"{chosen.name}, {rate / 1e6:g} Mbit/s")
        seen = launch(runs.wires, NODES, chosen, rate, timeout=DEADLINE)
        made[str(rate)] = {name: _slowest(seen, name) for name in TASKS}
        if chosen.name == PLAIN:
            small = launch(runs.latencies, NODES, rate, timeout=DEADLINE)
            made[str(rate)]["link"] = _link(Wire(rate), small)
    return made


def _link(wire: Wire, small: Sequence[dict[str, float]]) -> Json:
    """What predictions know of a link."""
    latency = {op: max(s[op] for s in small) for op in small[0]}
    return {"beta": wire.beta(True), "credit": wire.credit, "latency": latency}


MEASURED: dict[str, Callable[[Entry, Progress], Json]] = {
    "values": _values,
    "loss": _loss,
    "work": _work,
    "wires": _wires,
}
