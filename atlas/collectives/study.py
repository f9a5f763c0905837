"""The collectives as a study: measurements/studies/collectives.json.

One launch for every number of ranks and size, with all collectives in turns. What a
launch measured is kept at once, so a study that was broken off goes on where it was.
Only what is new or of changed source is measured again, beside whatever else is.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from atlas.bench.study import today, versions
from atlas.collectives import timed
from atlas.launch import launch
from atlas.planner.accuracy import nodes
from atlas.planner.accuracy.shaped_study import lasted
from atlas.planner.accuracy.wire import Wire
from atlas.planner.calibrate.fit import fit
from atlas.planner.calibrate.timing import slowest
from atlas.record import RecordError, compact, write_text
from atlas.views.collectives import COLLECTIVES, PLACE, node_size, sources

RANKS = (2, 4, 8)
SIZES = tuple(2**k for k in range(12, 27, 2))
#: What the constants are fitted to: messages of a round, from one chunk to the whole.
MESSAGES = tuple(2**k for k in range(10, 25, 2))
FITTED_REPEATS = 15
#: Two nodes of two ranks, and the way out of each in bits a second.
NODE_SIZE, NODES, RATE = 2, 2, 200_000_000
SHAPED_SIZES = tuple(2**k for k in range(12, 23, 2))
DEADLINE = 240.0
GROUP_TIMEOUT = 60.0
#: One host: no memory is shared between nodes.
ONE_HOST = ("shared-memory-all-reduce",)

Json = dict[str, Any]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What is timed; the defaults are what the site shows."""

    names: tuple[str, ...] = tuple(COLLECTIVES)
    ranks: tuple[int, ...] = RANKS
    sizes: tuple[int, ...] = SIZES
    shaped: tuple[int, ...] = SHAPED_SIZES

    def units(self, old: Json) -> list["Unit"]:
        """What is still to be measured, each a launch of its own."""
        every = [Unit("constants", p) for p in self.ranks]
        every += [
            Unit("cells", p, n, self.names) for p in self.ranks for n in self.sizes
        ]
        remote = tuple(name for name in self.names if name not in ONE_HOST)
        every += [Unit("shaped", NODE_SIZE * NODES, n, remote) for n in self.shaped]
        left = [unit.without(old) for unit in every]
        return [unit for unit in left if unit is not None]


@dataclass(frozen=True)
class Unit:
    """One launch: constants, or all collectives of one size, on nodes or on one."""

    part: str
    ranks: int
    size: int = 0
    names: tuple[str, ...] = ()

    @property
    def says(self) -> str:
        """For a progress bar."""
        what = {"constants": "one round and one addition", "cells": said(self.size)}
        on_nodes = f"{said(self.size)}, {NODES} nodes"
        return f"{self.ranks} ranks, {what.get(self.part, on_nodes)}"

    @property
    def place(self) -> list[str]:
        """The keys to its figures in a study."""
        ranks, size = [str(self.ranks)], [str(self.size)]
        keys = {"constants": ranks, "cells": ranks + size, "shaped": size}
        return [self.part, *keys[self.part]]

    def add(self, made: Json, figures: Json) -> None:
        """Put figures into a study, beside those of the same row."""
        for key in self.place:
            made = made.setdefault(key, {})
        made.update(figures)

    def without(self, old: Json) -> "Unit | None":
        """What of it the study does not have; None if it has all."""
        row = old
        for key in self.place:
            row = row.get(key, {})
        if self.part == "constants":
            return None if row else self
        names = tuple(name for name in self.names if name not in row)
        return replace(self, names=names) if names else None

    def measured(self) -> Json:
        """Measure it."""
        if self.part == "constants":
            return constants(self.ranks)
        if self.part == "cells":
            return cell(self.ranks, self.size, self.names)
        return shaped(self.size, self.names)


def said(n: int) -> str:
    """A size, in words."""
    for unit, each in (("MiB", 2**20), ("KiB", 2**10)):
        if n >= each:
            return f"{n / each:g} {unit}"
    return f"{n} bytes"


def study(plan: Plan, made: Json, progress: Progress) -> Iterator[Json]:
    """The study after each launch; `progress` hears of every one before it begins."""
    for unit in plan.units(made):
        progress(unit.says)
        made["load"] = max(made.get("load", 0.0), round(os.getloadavg()[0], 1))
        unit.add(made, unit.measured())
        yield made


def constants(p: int) -> Json:
    """Seconds of a round, of a byte sent and of a byte added, and how well they fit."""
    seen = launch(
        timed.rounds_and_additions,
        p,
        MESSAGES,
        FITTED_REPEATS,
        timeout=DEADLINE,
        env={"CUDA_VISIBLE_DEVICES": ""},
    )

    def points(what: str) -> list[tuple[int, float]]:
        ranks = [rank[what] for rank in seen]
        sizes = enumerate(n for n, _ in ranks[0])
        return [(n, slowest([rank[i][1] for rank in ranks])) for i, n in sizes]

    message = fit([((1.0, n), s) for n, s in points("round")])
    addition = fit([((1.0, n), s) for n, s in points("add")])
    return {
        "alpha": _digits(message.costs[0]),
        "beta": _digits(message.costs[1]),
        "gamma": _digits(addition.costs[1]),
        "error": _digits(message.error),
    }


def _digits(value: float) -> float:
    """Four of them: measured seconds do not know more."""
    return float(f"{value:.4g}")


def repeats(n: int) -> tuple[int, int]:
    """Repetitions of a size, and calls in each."""
    if n <= 2**20:
        return 7, 2
    return (5, 1) if n <= 2**24 else (3, 1)


def cell(p: int, n: int, names: Sequence[str]) -> Json:
    """All collectives of one size: the median of the slowest rank, and quartiles."""
    seen = launch(
        timed.in_turns,
        p,
        n,
        list(names),
        *repeats(n),
        node_size(p),
        timeout=DEADLINE,
        env={"CUDA_VISIBLE_DEVICES": ""},
    )
    return {
        name: _summary(
            [max(turn) for turn in zip(*(s[name] for s in seen), strict=True)]
        )
        for name in names
    }


def _summary(seconds: Sequence[float]) -> Json:
    low, _, high = quantiles(seconds, n=4, method="inclusive")
    return {
        "low": _digits(low),
        "median": _digits(median(seconds)),
        "high": _digits(high),
    }


def shaped(n: int, names: Sequence[str]) -> Json:
    """The same on nodes; `wire` is what the busiest node put on its way out."""
    seen = launch(
        timed.between_nodes,
        NODE_SIZE * NODES,
        Wire(RATE),
        NODE_SIZE,
        [(n, 5 if n < 2**20 else 3)],
        list(names),
        GROUP_TIMEOUT,
        timeout=DEADLINE,
        env={"CUDA_VISIBLE_DEVICES": ""},
    )
    found = {}
    for name in names:
        ranks = [rank[0][name] for rank in seen]
        found[name] = {
            **_summary(lasted([rank["times"] for rank in ranks])),
            "wire": round(max(rank["wire"] for rank in ranks)),
            "lost": sum(rank["lost"] for rank in ranks[::NODE_SIZE]),
        }
    return found


def missing() -> str | None:
    """What this machine lacks to have nodes, in one line; None if nothing."""
    return nodes.missing()


# What is kept


def identity() -> Json:
    """What all figures have to be of, to stand beside new ones."""
    return {
        "versions": versions(),
        "machine": {"cores": os.cpu_count()},
        "given": {
            "ranks": list(RANKS),
            "sizes": list(SIZES),
            "messages": list(MESSAGES),
            "shaped": {
                "rate": RATE,
                "node_size": NODE_SIZE,
                "nodes": NODES,
                "sizes": list(SHAPED_SIZES),
            },
        },
    }


def fresh(root: Path) -> Json:
    """A study of which nothing is measured yet."""
    return {**identity(), "sources": sources(root)}


def begun(root: Path) -> Json:
    """The study that lies there, without what is of another source, or a fresh one."""
    old = kept(root)
    if any(old.get(key) != value for key, value in identity().items()):
        return fresh(root)
    now = sources(root)
    same = {t for t, source in now.items() if old["sources"].get(t) == source}
    good = {n for n, c in COLLECTIVES.items() if c.technique in {None, *same}}
    rows = [row for ranks in old.get("cells", {}).values() for row in ranks.values()]
    for row in (*rows, *old.get("shaped", {}).values()):
        for name in set(row) - good:
            del row[name]
    return {**old, "sources": now}


def keep(root: Path, made: Json) -> Path:
    """Write the study as far as it goes."""
    text = json.dumps({**made, "recorded": today()}, indent=1, sort_keys=True) + "\n"
    write_text(root / PLACE, compact(text))
    return root / PLACE


def kept(root: Path) -> Json:
    """The study that lies there; empty if none does."""
    try:
        found: Json = json.loads((root / PLACE).read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise RecordError(f"{PLACE}: {error}; remove it and measure again") from None
    return found
