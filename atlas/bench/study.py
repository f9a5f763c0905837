"""Launches the pairs and keeps the figures in measurements/studies/production.json."""

import json
import os
import platform
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from atlas.bench.pair import Bench, Case, run
from atlas.launch import launch
from atlas.record import RecordError, compact, write_text

PLACE = Path("measurements") / "studies" / "production.json"
MODULES = ["ring", "halving_doubling", "hierarchical", "all_to_all", "shared_memory"]
MODULES += ["bsp", "zero_1", "zero", "tensor", "pipeline", "top_k", "powersgd"]
DEADLINE = 600.0
TIMES = ("ours_seconds", "theirs_seconds", "ratio")

Figures = dict[str, Any]


def benches() -> dict[str, Bench]:
    """Every comparison, by technique."""
    found = [import_module(f"atlas.bench.{name}").BENCH for name in MODULES]
    found += import_module("atlas.bench.schedules").BENCHES
    return {bench.technique: bench for bench in found}


def measure(bench: Bench, case: Case, ranks: int, repeats: int) -> Figures:
    """One case on gloo: medians over repetitions.

    A repetition lasts as long as its slowest rank; processor seconds and bytes
    are those of all ranks together.
    """
    seen = launch(
        run,
        ranks,
        bench.make,
        dict(case.sizes),
        repeats,
        case.calls,
        timeout=DEADLINE,
        env={"CUDA_VISIBLE_DEVICES": ""},
    )
    figures: Figures = {"label": case.label, "bytes": case.bytes}
    for side in ("ours", "theirs"):
        slowest = [max(turn) for turn in _turns(seen, "seconds", side)]
        worked = [sum(turn) for turn in _turns(seen, "busy", side)]
        figures[f"{side}_seconds"] = round(median(slowest), 7)
        figures[f"{side}_fastest"] = round(min(slowest), 7)
        figures[f"{side}_processor"] = round(median(worked), 7)
        figures[f"{side}_moved"] = _moved([s["counted"][side] for s in seen])
    figures["ratio"] = round(figures["ours_seconds"] / figures["theirs_seconds"], 3)
    figures["error"] = max(s["error"] for s in seen)
    return figures


def _turns(seen: Sequence[Figures], what: str, side: str) -> list[tuple[float, ...]]:
    """By repetition: the figure of every rank."""
    return list(zip(*(s[what][side] for s in seen), strict=True))


def _moved(counted: Sequence[dict[str, float]]) -> dict[str, int]:
    return {name: round(sum(c[name] for c in counted)) for name in counted[0]}


def assemble(bench: Bench, sizes: Sequence[Figures], ranks: int) -> Figures:
    """What is kept of one technique: the headline, and every size."""
    head = next(s for s in sizes if s["label"] == bench.headline)
    return {
        "production": bench.production,
        "p": ranks,
        "recorded": today(),
        "load": round(os.getloadavg()[0], 2),
        "what": bench.what,
        "note": bench.note,
        "ours_bytes": head["ours_moved"]["wire"],
        "theirs_bytes": head["theirs_moved"]["wire"],
        **{k: head[k] for k in TIMES},
        "sizes": list(sizes),
    }


def study(
    chosen: Sequence[Bench],
    ranks: int,
    repeats: int,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Figures]:
    """Measure them all; `progress` hears of every case before it begins."""
    runs = {}
    for bench in chosen:
        sizes = []
        for case in bench.cases:
            progress(f"{bench.technique}, {case.label}")
            sizes.append(measure(bench, case, ranks, repeats))
        runs[bench.technique] = assemble(bench, sizes, ranks)
    return runs


def keep(root: Path, runs: dict[str, Figures]) -> Path:
    """Write them beside those that were not measured now."""
    target = root / PLACE
    made = {
        "recorded": today(),
        "versions": versions(),
        "machine": {"cores": os.cpu_count()},
        "runs": {**kept(root), **runs},
    }
    text = json.dumps(made, indent=1, sort_keys=True) + "\n"
    write_text(target, compact(text))
    return target


def check_writable(root: Path) -> None:
    """Told before minutes of measuring, not after."""
    folder = (root / PLACE).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        told = f"{PLACE.parent} cannot be written: {error.strerror}"
        raise RecordError(f"{told}; --no-write only shows the figures") from None
    kept(root)


def kept(root: Path) -> dict[str, Figures]:
    """The runs that lie there, if they were made with the same versions."""
    try:
        old = json.loads((root / PLACE).read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise RecordError(f"{PLACE}: {error}; remove it and measure again") from None
    runs: dict[str, Figures] = old["runs"]
    return runs if old["versions"] == versions() else {}


def versions() -> dict[str, str]:
    """Of what was measured."""
    torch = version("torch").split("+")[0]
    return {"python": platform.python_version(), "torch": torch}


def today() -> str:
    """The date, as records have it."""
    return datetime.now(UTC).date().isoformat()
