"""A measured machine as a cluster file, residuals included: machine.json.

    atlas calibrate
    atlas predict --cluster machine.json --model resnet-50 --strategy "Data(2)" ...

The network has a level for every number of ranks that was measured, since a
collective costs more where more processes share the machine. All ranks compute at
once while computing is timed, so that they share caches and memory as in training.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atlas.bench.study import today, versions
from atlas.launch import launch
from atlas.planner.calibrate import measure
from atlas.planner.calibrate.fit import Fit, fit
from atlas.planner.calibrate.measure import OPS, Sizes, Times
from atlas.planner.calibrate.timing import slowest
from atlas.record import write_text

__all__ = ["Machine", "assembled", "calibrate", "keep", "link_rows", "rounded"]

DEADLINE = 300.0
LARGEST = 2**24  # bytes of the messages that links are judged by

Json = dict[str, Any]
Progress = Callable[[str], None]
Points = dict[str, list[tuple[float, float]]]  # what -> (size, seconds)


@dataclass(frozen=True)
class Machine:
    """What was measured: computing on the fewest ranks, collectives on each number."""

    computing: Points
    collectives: dict[int, Points]


def calibrate(
    ranks: Sequence[int], sizes: Sizes, progress: Progress = lambda text: None
) -> Machine:
    """Measure this machine; `progress` hears of every part before it begins."""
    progress(f"computing, {ranks[0]} ranks")
    computed = _points(launch(measure.computing, ranks[0], sizes, timeout=DEADLINE))
    found = {}
    for p in ranks:
        progress(f"collectives, {p} ranks")
        seen = launch(measure.collectives, p, sizes, timeout=DEADLINE)
        found[p] = _points(seen)
    return Machine(computed, found)


def _points(seen: Sequence[Times]) -> Points:
    """Of all ranks: by size, the median of the slowest rank's seconds."""
    return {
        what: [
            (size, slowest([rank[what][i][1] for rank in seen]))
            for i, (size, _) in enumerate(seen[0][what])
        ]
        for what in seen[0]
    }


def link_rows(op: str, p: int, points: Sequence[tuple[float, float]]) -> list[Any]:
    """How often a round, and a byte sent, occur in every measured call.

    As in atlas.planner.rings: 2 (p - 1) rounds of an all-reduce, p - 1 of the others,
    each with a p-th of the bytes; a message goes there and back.
    """
    if op == "p2p":
        return [((2, 2 * n), seconds) for n, seconds in points]
    rounds = (2 if op == "all_reduce" else 1) * (p - 1)
    return [((rounds, rounds * n / p), seconds) for n, seconds in points]


def assembled(machine: Machine) -> Json:
    """The cluster file: constants, how well they fit, and the band they leave."""
    fitted: list[Json] = []
    device = _device(machine.computing, fitted, min(machine.collectives))
    levels = [_level(p, machine.collectives[p], fitted) for p in machine.collectives]
    band = {
        "low": min(row["low"] for row in fitted),
        "high": max(row["high"] for row in fitted),
        "of": "the points of the calibration itself",
    }
    return {
        "name": "This machine, measured",
        "summary": "Processes of one computer, by a calibration.",
        "device": device,
        "levels": levels,
        "band": band,
        "calibration": {
            "recorded": today(),
            "cores": os.cpu_count() or 1,
            "backend": _backend(),
            "versions": versions(),
            "fitted": fitted,
        },
        "sources": {"device": "measured", "levels": "measured", "band": "measured"},
    }


def _backend() -> str:
    import torch

    return "nccl" if torch.accelerator.is_available() else "gloo"


def _device(points: Points, fitted: list[Json], p: int) -> Json:
    """Products reach f / (f + half) of the peak, where f is their operations."""
    flops, half = {}, 0.0
    for kind in ("fp64", "fp32"):
        made = fit([((f, 1.0), seconds) for f, seconds in points[kind]])
        flops[kind], half = 1 / made.costs[0], made.costs[1] / made.costs[0]
        fitted.append(_row(f"matrix products, {kind}, {p} ranks at once", made))
    (moved, seconds), *_ = points["copy"]
    step = fit([((1.0, depth), seconds) for depth, seconds in points["step"]])
    fitted.append(_row(f"steps that are all overhead, {p} ranks at once", step))
    products = 3  # of a layer: one forward, two backward
    return {
        "name": "one process",
        "flops": flops,
        "top": 1.0,  # of rates that were measured
        "memory": _memory() / p,
        "bandwidth": moved / seconds,
        "half": half,
        "overhead": step.costs[1] / products,
        "step": step.costs[0],
    }


def _level(p: int, points: Points, fitted: list[Json]) -> Json:
    links: Json = {}
    for op in OPS:
        made = fit(link_rows(op, p, points[op]))
        alpha, beta = made.costs
        links[op] = {"alpha": alpha, "bandwidth": 1 / beta if beta else 1e15}
        fitted.append(_row(f"{op}, {p} ranks", made))
    return {
        "name": f"ranks-{p}",
        "size": p,
        "rails": p,
        "links": {"any": links["p2p"], **links},
    }


def _row(what: str, made: Fit) -> Json:
    return {
        "what": what,
        "points": len(made.ratios),
        "error": made.error,
        "low": min(1.0, *made.ratios),
        "high": max(1.0, *made.ratios),
    }


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def keep(path: Path, made: Json) -> None:
    """Write the file, whole."""
    write_text(path, json.dumps(rounded(made), indent=1) + "\n")


def rounded(value: Any) -> Any:
    """Five digits: measured seconds do not know more."""
    match value:
        case float():
            return float(f"{value:.5g}")
        case dict():
            return {k: rounded(v) for k, v in value.items()}
        case list():
            return [rounded(v) for v in value]
    return value
