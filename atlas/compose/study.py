"""The pairs as a study: measurements/studies/composition.json.

One launch for every pair; what it found is kept at once, so a study that was broken off
goes on where it was. A change of any source that a pair runs makes it begin anew.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from atlas.bench.study import today, versions
from atlas.launch import LaunchError, launch
from atlas.record import compact, write_text
from atlas.views import composition as view
from atlas.views.composition import PLACE, Pair
from atlas.views.context import Json

DEADLINE = 60.0
GROUP_TIMEOUT = 20.0
NEEDS = ("atlas.compose.step",)
FIGURES = ("gradient", "norm", "update")


def run(pair: Pair) -> Json:
    """One pair on its ranks: the largest differences, or what went wrong."""
    from atlas.compose.step import cell

    given: Json = {"ranks": view.ranks(pair), "box": view.lengths(pair)}
    try:
        seen = launch(
            cell,
            view.ranks(pair),
            pair,
            timeout=DEADLINE,
            group_timeout=GROUP_TIMEOUT,
            env={"CUDA_VISIBLE_DEVICES": ""},
            needs=NEEDS,
        )
    except LaunchError as error:
        return {**given, "failed": error.summary}
    return {**given, **judged(seen)}


def judged(seen: list[dict[str, float]]) -> Json:
    """The figures of the rank that is farthest off, and whether that is too far."""
    found: Json = {k: float(f"{max(s[k] for s in seen):.3g}") for k in FIGURES}
    wrong = [k for k in FIGURES if not found[k] <= 1]
    if wrong:
        found["failed"] = f"not equal to one process: {', '.join(wrong)}"
    elif missing := max(s["missing"] for s in seen):
        found["failed"] = f"{missing:g} elements of the model are on no rank"
    return found


def study(made: Json) -> Iterator[Json]:
    """The study after each pair that it did not have."""
    for pair in missing(made):
        made["cells"][view.key(pair)] = run(pair)
        yield made


def missing(made: Json) -> list[Pair]:
    """The pairs that are still to be run."""
    return [pair for pair in view.open_pairs() if view.key(pair) not in made["cells"]]


def begun(root: Path) -> Json:
    """The study that lies there, if it is of today's source, or a fresh one."""
    now = {"sources": view.sources(root), "versions": versions()}
    old = view.study(root) or {}
    if all(old.get(name) == value for name, value in now.items()):
        return old
    return {**now, "cells": {}}


def keep(root: Path, made: Json) -> Path:
    """Write the study as far as it goes."""
    text = json.dumps({**made, "recorded": today()}, indent=1, sort_keys=True) + "\n"
    write_text(root / PLACE, compact(text))
    return root / PLACE
