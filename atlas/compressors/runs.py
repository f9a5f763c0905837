"""On a rank: one compressor, timed and counted on recorded gradients, and trained."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor

from atlas.compressors.bias import bias
from atlas.compressors.entries import Entry, nature
from atlas.compressors.gradients import (
    POINTS,
    SHARE,
    STEPS,
    TASKS,
    Name,
    elements,
    evaluate,
    played,
    recorded,
    shapes,
    task,
)
from atlas.meter import Meter, meter
from atlas.planner.accuracy.nodes import plug_in
from atlas.planner.accuracy.timed import STEPS as EXCHANGES
from atlas.planner.accuracy.wire import Wire
from exemplars.runtime import World
from exemplars.workload import Step, Task

BLOCKS, DRAWS = 32, 8  # mean errors, and the draws that each is the mean of
TRAINED = 100  # steps of a training
WARM_UP, TIMED, SPLIT = 5, 41, 9  # steps of a timing
ON_WIRE = 15
SMALL, SMALL_REPEATS = 1024, 25  # bytes of a message that is all latency
#: By operation, the exchange that tells its latency; a message is half of a swap.
OPERATIONS = {
    **{op: op for op in ("all_reduce", "all_gather", "all_to_all", "broadcast")},
    "reduce_scatter": "reduce_scatter",
    "send": "receive_first",
}
TIMEOUT = 60.0

Json = dict[str, Any]


@dataclass
class Single(World):
    """A rank that draws in float32, as the recorded gradients are."""

    def randn(
        self,
        *shape: int,
        seed: int | None = None,
        dtype: torch.dtype = torch.float,
    ) -> Tensor:
        """As any rank draws."""
        return super().randn(*shape, seed=seed, dtype=dtype)


def training(
    w: World, entry: Entry, ground: Task, steps: int, rate: float
) -> Iterator[Step]:
    """The exemplar's own training, with the study's settings for this gradient."""
    given = entry.settings(elements(_name(ground)))
    own = Single(w.rank, w.size, w.device)
    return entry.train(own, ground, steps=steps, local_batch=SHARE, rate=rate, **given)


def _name(ground: Task) -> Name:
    return next(name for name in TASKS if name == ground.name)


def flat(step: Step) -> Tensor:
    """The weights after a step, as one vector that no later step changes."""
    return torch.cat([t.detach().reshape(-1) for t in step.weights])


# Values: bytes, error, bias


def values(w: World, entry: Entry) -> Json:
    """By task: what was sent, and how far it was from the mean gradient."""
    return {name: _values(w, entry, name) for name in TASKS}


def _values(w: World, entry: Entry, name: Name) -> Json:
    first, last, moved = [], [], list[Meter]()
    for rows in recorded(name).values():
        sums = torch.stack([*_played(w, entry, name, rows, moved)]).double()
        exact = rows[:, : w.size].double().mean(1)
        first.append(apart(sums[0], exact[0]))
        last.append(apart(sums[-1], exact.sum(0)))
    known = nature(entry.name)
    return {
        "settings": entry.settings(elements(name)),
        "given": given(name) | {"steps": STEPS * len(POINTS)},
        "payload": sum(_handed(m) for m in moved),
        "wire": float(moved[-1].wire),
        "calls": _calls(moved[-1]),
        "first": first,
        "after": last,
        "bias": _bias(w, entry, name) if known.draws and not known.memory else None,
    }


def _calls(moved: Meter) -> dict[str, int]:
    return {op: c.count for op, c in moved.calls.items() if op != "recv"}


def _handed(moved: Meter) -> int:
    """Bytes that this rank hands over, in messages and to collectives."""
    return moved.payload + moved.bytes_sent


def given(name: Name) -> Json:
    """What formulas may ask for of a gradient."""
    matrices = [s for s in shapes(name) if len(s) > 1]
    vectors = [s for s in shapes(name) if len(s) == 1]
    return {
        "elements": elements(name),
        "itemsize": 4,
        "matrices": len(matrices),
        "matrix_sides": sum(len_ for s in matrices for len_ in s),
        "vector_elements": sum(s.numel() for s in vectors),
    }


def _played(
    w: World, entry: Entry, name: Name, rows: Tensor, moved: list[Meter]
) -> Iterator[Tensor]:
    """After each step: all that was made of the gradients so far."""
    asked: list[int] = []

    def gradient(number: int) -> Tensor:
        asked.append(number)
        return rows[number // w.size, number % w.size]

    steps = training(w, entry, played(name, gradient), len(rows), rate=1.0)
    for i in range(len(rows)):
        with meter() as counted:
            step = next(steps)
        assert asked[i:] == [i * w.size + w.rank], f"{entry.name} asks for {asked[i:]}"
        moved.append(counted)
        yield -flat(step)


def apart(seen: Tensor, exact: Tensor) -> Json:
    """How far off, as a share of the exact one: as it is, and at the best length."""
    cosine = (seen @ exact / (seen.norm() * exact.norm())).item()
    return {
        "error": ((seen - exact).norm() / exact.norm()).item(),
        "direction": sqrt(max(0.0, 1 - cosine**2)),
    }


def _bias(w: World, entry: Entry, name: Name) -> Json:
    """The same gradients again and again: do the errors cancel?"""
    rows = recorded(name)[POINTS[-1]][0]
    exact = rows[: w.size].double().mean(0)
    ground = played(name, lambda number: rows[number % w.size])
    before, errors = torch.zeros(len(exact)).double(), []
    steps = training(w, entry, ground, BLOCKS * DRAWS, rate=1.0)
    for i, step in enumerate(steps, start=1):
        if i % DRAWS == 0:
            now = -flat(step).double()
            errors.append((now - before) / DRAWS - exact)
            before = now
    every = torch.stack(errors)
    found = bias((every @ every.T).tolist(), exact.norm().item())
    return {"square": found.square, "low": found.low, "high": found.high}


# Loss


def loss(w: World, entry: Entry, name: Name, rate: float, seed: int) -> float:
    """Of the weights that a training ends with."""
    for step in training(w, entry, task(name, seed), TRAINED, rate):
        last = flat(step)
    return evaluate(name, last)


# Work: processor seconds


def work(w: World, entry: Entry) -> Json:
    """By task: what a rank computes in a step, outside of every collective."""
    return {name: _work(w, entry, name) for name in TASKS}


def _work(w: World, entry: Entry, name: Name) -> Json:
    """Of the whole step, without instruments; then when its first call comes."""
    rows = recorded(name)[POINTS[0]][0]
    ground = played(name, lambda number: rows[number % w.size])
    steps = training(w, entry, ground, WARM_UP + TIMED + SPLIT, rate=1.0)
    seconds = [_busy(steps) for _ in range(WARM_UP + TIMED)][WARM_UP:]
    parts = [_parts(steps) for _ in range(SPLIT)]
    return {
        **_spread(seconds),
        "before": median(before for before, _, _ in parts),
        "after": median(after for _, after, _ in parts),
        "wire": float(parts[-1][2].wire),
        "calls": _calls(parts[-1][2]),
    }


def _spread(seconds: list[float]) -> Json:
    low, _, high = quantiles(seconds, n=4)
    return {"seconds": median(seconds), "low": low, "high": high}


def _busy(steps: Iterator[Step]) -> float:
    """Seconds of a step in which this thread had work: a waiting one has none."""
    begun = time.thread_time()
    next(steps)
    return time.thread_time() - begun


def _parts(steps: Iterator[Step]) -> tuple[float, float, Meter]:
    """Seconds before the first call, and after it but outside of calls."""
    with meter() as moved:
        begun = time.perf_counter()
        next(steps)
        lasted = time.perf_counter() - begun
    calls = [e for e in moved.events if e.kind in ("collective", "send", "recv")]
    before = min(e.at for e in calls)
    after = lasted - before - _covered([(e.at, e.until) for e in calls])
    return before, after, moved


def _covered(spans: list[tuple[float, float]]) -> float:
    """Seconds in which at least one of them is under way."""
    total, reached = 0.0, 0.0
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def trained(w: World, entry: Entry) -> dict[str, float]:
    """By task: processor seconds of a whole step of real training."""
    found: dict[str, float] = {}
    for name in TASKS:
        steps = training(w, entry, task(name), WARM_UP + TIMED, 0.01)
        seconds = [_busy(steps) for _ in range(WARM_UP + TIMED)][WARM_UP:]
        found[name] = median(seconds)
    return found


# Wires: the step of a real training on a link of known speed


def wires(w: World, entry: Entry, rate: int) -> Json:
    """By task: seconds of a step, and the bytes that this node put on its wire."""
    node = plug_in(w, Wire(rate), TIMEOUT)
    found: Json = {}
    for name in TASKS:
        steps = training(w, entry, task(name), WARM_UP + ON_WIRE, 0.01)
        for _ in range(WARM_UP):
            next(steps)
        node.meet()
        before, _ = node.counted()
        seconds = [_lasting(steps) for _ in range(ON_WIRE)]
        node.meet()
        after, _ = node.counted()
        low, high = min(seconds), max(seconds)
        found[name] = {"seconds": median(seconds), "low": low, "high": high}
        found[name]["sent"] = (after - before) / ON_WIRE
    return found


def _lasting(steps: Iterator[Step]) -> float:
    begun = time.perf_counter()
    next(steps)
    return time.perf_counter() - begun


def latencies(w: World, rate: int) -> dict[str, float]:
    """By operation: seconds of a small one on this link."""
    node = plug_in(w, Wire(rate), TIMEOUT)
    found = {}
    for name, exchange in OPERATIONS.items():
        step, seconds = EXCHANGES[exchange](SMALL // 4), []
        for _ in range(SMALL_REPEATS):
            node.meet()
            begun = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - begun)
        found[name] = median(seconds)
    node.meet()
    return found
