"""Which detector sees which bug: all of them, on all bugs, kept as a study.

    python -m atlas.check

A detector is what people look at: the loss after 20 steps, the gradient norm, the
ranks' weights, the bytes; and `atlas check`. Each compares the wrong program with the
right one, on the same samples.
"""

import contextlib
import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from atlas import taxonomy
from atlas.check import checking
from atlas.check.checking import Order
from atlas.launch import launch
from atlas.record import compact, write_text
from atlas.taxonomy import Atlas, Bug
from atlas.yours import Here, Script, run

PLACE = Path("measurements") / "studies" / "bugs.json"
RANKS = 3
#: What a person notices in a curve, or in a logged number: one part in a hundred.
NOTICED = 0.01
DETECTORS = ("loss", "gradient norm", "ranks compared", "bytes", "atlas check")
#: Not wrong on one process: the same program there is what they are held against, and
#: there are no bytes to compare with.
PECULIAR = ("local-batch-norm", "dropout-during-a-comparison", "norm-counts-copies")


@dataclass(frozen=True)
class Pair:
    """The right program and the wrong one, as files."""

    bug: Bug
    right: Path
    wrong: Path


def source(root: Path, bug: Bug) -> str:
    """What a row of the study was made from."""
    program = (taxonomy.PROGRAMS / f"{bug.program}.py").read_bytes()
    planted = f"{bug.find}\0{bug.replace}\0{bug.one}\0{bug.many}".encode()
    return sha256(program + planted).hexdigest()[:16]


@contextlib.contextmanager
def pair(root: Path, bug: Bug) -> Iterator[Pair]:
    """Both programs in a folder of their own."""
    text = (taxonomy.PROGRAMS / f"{bug.program}.py").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="atlas-") as folder:
        made = Pair(bug, Path(folder) / "right.py", Path(folder) / "wrong.py")
        wrong = text.replace(bug.find, bug.replace)
        made.wrong.write_text(wrong)
        made.right.write_text(wrong if bug.id in PECULIAR else text)
        yield made


def row(root: Path, bug: Bug) -> dict[str, Any]:
    """What each detector sees of a bug."""
    with pair(root, bug) as both, checking.folder() as place:
        one, many = tuple(shlex.split(bug.one)), tuple(shlex.split(bug.many))
        alike = bug.id in PECULIAR
        right = _watched(both.right, one, 1) if alike else _watched(both.right, many)
        wrong = _watched(both.wrong, many)
        alone = Order(both.right, one)
        checking.reference(alone, place / "one")
        checking.captured(Order(both.wrong, many), place / "many", RANKS)
        found = checking.compared(place / "one", place / "many", bug.id)
        looked = str(place / "one"), str(place / "many")
        (norms,) = launch(_norms, 1, *looked, join=False, needs=checking.NEEDS)
    seen: dict[str, bool | None] = {
        "loss": _far(wrong["loss"], right["loss"]),
        "gradient norm": _far(norms["many"], norms["one"]),
        "ranks compared": norms["apart"],
        "bytes": None if alike else _far(wrong["bytes"], right["bytes"]),
        "atlas check": found.bug == bug.diagnosis,
    }
    figures = {"right": right, "wrong": wrong, "norm": norms}
    return {"source": source(root, bug), "seen": seen, "figures": figures}


def _far(value: float, expected: float) -> bool:
    return not abs(value - expected) <= NOTICED * abs(expected)


def _watched(
    script: Path, arguments: Sequence[str], ranks: int = RANKS
) -> dict[str, float]:
    """The last loss, averaged over the ranks, and the bytes of all ranks."""
    ran = run(Script(script, tuple(arguments)), ranks, watch=[_counting])
    assert ran.well, ran.cause
    values = [rank.value[0] for rank in ran.ranks]
    return {
        "loss": round(sum(v["loss"] for v in values) / ranks, 6),
        "bytes": sum(v["bytes"] for v in values),
    }


@contextlib.contextmanager
def _counting(here: Here) -> Iterator[Callable[[], dict[str, float]]]:
    import __main__
    from atlas.meter import Meter

    with Meter() as meter:
        yield lambda: {
            "loss": float(vars(__main__)["final"]),
            "bytes": int(meter.wire),
        }


def _norms(one: str, many: str) -> dict[str, Any]:
    """The gradient norm of the first step as rank 0 would log it."""
    from atlas.check.compare import Runs, distance, norm

    moved = [checking.read(Path(one) / f"moved-{seed}")[0] for seed in checking.SEEDS]
    runs = Runs(checking.read(Path(one))[0], moved, checking.read(Path(many)))

    def length(tensors: Any) -> float:
        return round(sum(norm(t) ** 2 for t in tensors) ** 0.5, 6)

    held = runs.of_many(0, "gradient")
    first = [copies[0].tensor for copies in held.values()]
    apart = any(
        distance(c.tensor, copies[0].tensor) > limit
        for step in range(runs.steps + 1)
        for limits in [runs.limits(step, "weights")]
        for name, copies in runs.of_many(step, "weights").items()
        for limit in [limits.get(name, 0.0)]
        for c in copies[1:]
    )
    one_norm = length(runs.of_one(0, "gradient").values())
    return {"one": one_norm, "many": length(first), "apart": apart}


def stale(atlas: Atlas) -> list[str]:
    """Bugs whose row was made from other text, or that have none."""
    kept = read(atlas.root).get("bugs", {})
    return [
        bug.id
        for bug in atlas.bugs.values()
        if kept.get(bug.id, {}).get("source") != source(atlas.root, bug)
    ]


def read(root: Path) -> dict[str, Any]:
    """The study as kept; empty if there is none."""
    path = root / PLACE
    if not path.is_file():
        return {}
    made: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return made


def main() -> int:
    """Run what is stale, keep it."""
    atlas = taxonomy.load()
    rows = dict(read(atlas.root).get("bugs", {}))
    todo = stale(atlas)
    for n, id in enumerate(todo, 1):
        print(f"{n} of {len(todo)}: {id}", file=sys.stderr, flush=True)
        rows[id] = row(atlas.root, atlas.bugs[id])
    made = {
        "recorded": datetime.now(UTC).date().isoformat(),
        "ranks": RANKS,
        "bugs": {id: rows[id] for id in sorted(atlas.bugs)},
    }
    write_text(atlas.root / PLACE, compact(json.dumps(made, indent=1) + "\n"))
    return 0
