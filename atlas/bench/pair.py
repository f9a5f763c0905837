"""Two implementations of one thing: the same values first, then time and bytes.

Both sides live in the same ranks and take turns, so that whatever else the
machine does slows both. A repetition begins at a barrier and ends when its
slowest rank does. On a busy machine that says much about its other work, so the
seconds that the processor spent on either side are kept too.
"""

import ctypes
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from atlas.meter import meter
from exemplars.runtime import World

#: Steps after which the values are compared.
COMPARED = 2
WARM_UP = 3


class DiffersError(Exception):
    """The two sides do not compute the same: there is nothing to time."""


def _nothing() -> None:
    """No preparation."""


@dataclass(frozen=True)
class Side:
    """One implementation: a step, what it leads to, and what precedes it untimed."""

    step: Callable[[], object]
    values: Callable[[], list[Tensor]]
    prepare: Callable[[], object] = _nothing


@dataclass(frozen=True)
class Pair:
    """The exemplar and the production code, on one rank; slack is in roundings."""

    ours: Side
    theirs: Side
    slack: float
    compared: int = COMPARED


Make = Callable[..., Pair]


@dataclass(frozen=True)
class Case:
    """One size of a pair: the arguments of its `make`, and steps a repetition."""

    label: str
    bytes: int
    sizes: Mapping[str, Any]
    calls: int = 1


@dataclass(frozen=True)
class Bench:
    """What is compared for one technique, and what is known of the difference."""

    technique: str
    production: str
    what: str
    note: str
    make: Make
    cases: tuple[Case, ...]
    headline: str
    tiny: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.headline in [c.label for c in self.cases]


#: Of glibc's mallopt, and what tells it never to give memory back.
MALLOPT = {"M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, 2**31 - 1)}


def keep_memory() -> None:
    """Keep freed memory in this process, as torch keeps that of a GPU.

    Buffers of many megabytes would otherwise be mapped anew for every call, and a
    page at a time, which the library, with its small segments, never pays.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):  # glibc
        for option, value in MALLOPT.values():
            library.mallopt(option, value)


def run(
    w: World, make: Make, sizes: Mapping[str, Any], repeats: int, calls: int = 1
) -> dict[str, Any]:
    """On a rank: check, time in turns, then count; what this rank saw."""
    keep_memory()
    pair = make(w, **sizes)
    error = compare(w, pair)
    sides = {"ours": pair.ours, "theirs": pair.theirs}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    busy: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(-WARM_UP, repeats):
        order = list(sides) if turn % 2 else list(reversed(sides))
        for name in order:
            taken, worked = timed(sides[name], calls)
            if turn >= 0:
                seconds[name].append(taken)
                busy[name].append(worked)
    counted = {name: count(side) for name, side in sides.items()}
    return {"error": error, "seconds": seconds, "busy": busy, "counted": counted}


def compare(w: World, pair: Pair) -> float:
    """How far the two sides are apart after some steps; too far is an error."""
    for side in (pair.ours, pair.theirs):
        side.prepare()
        for _ in range(pair.compared):
            side.step()
    ours, theirs = pair.ours.values(), pair.theirs.values()
    if len(ours) != len(theirs) or not ours:
        raise DiffersError(f"{len(ours)} values of ours, {len(theirs)} of theirs")
    error = max(_distance(a, b) for a, b in zip(ours, theirs, strict=True))
    limit = pair.slack * w.size * torch.finfo(ours[0].dtype).eps
    if not error <= limit:
        raise DiffersError(f"ours and theirs differ by {error:.2g}, may by {limit:.2g}")
    return error


def _distance(a: Tensor, b: Tensor) -> float:
    """Largest difference, relative to the largest number."""
    if a.shape != b.shape:
        raise DiffersError(f"shape {tuple(a.shape)} against {tuple(b.shape)}")
    scale = b.detach().abs().max().clamp_min(1e-30)
    return float((a.detach() - b.detach()).abs().max() / scale)


def timed(side: Side, calls: int) -> tuple[float, float]:
    """Seconds of one step on this rank, from a barrier on: wall, and processor."""
    side.prepare()
    dist.barrier()
    start, worked = time.perf_counter(), time.process_time()
    for _ in range(calls):
        side.step()
    taken = time.perf_counter() - start
    return taken / calls, (time.process_time() - worked) / calls


def count(side: Side) -> dict[str, float]:
    """The bytes of one step: handed over, to be sent at least, really written."""
    side.prepare()
    dist.barrier()
    with meter() as moved:
        side.step()
    calls = {op: c for op, c in moved.calls.items() if op != "recv"}
    return {
        "calls": sum(c.count for c in calls.values()),
        "payload": sum(c.payload for c in calls.values()),
        "wire": float(sum(c.wire for c in calls.values())),
        "written": moved.written or 0,
    }
