"""The study of compressors: which there are, what was kept of them, is it of today."""

import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

from atlas.formulas import FORMULAS
from atlas.record import RecordError, hash_of, source_hash
from atlas.taxonomy import Atlas, Technique

PLACE = Path("measurements") / "studies" / "compressors"
#: The families whose techniques approximate a gradient, and one that sends it exactly.
AXIS = "communication-pattern"
FAMILIES = ("quantization", "sparsification", "low-rank-and-sketch")
HOMES = tuple((AXIS, family) for family in FAMILIES)
ALSO = ("sparse-gradients",)
PLAIN = "plain"
TASKS = ("digits", "characters")
RANKS = ("2", "4")  # on which the work was timed
PARTS = ("values", "loss", "work", "wires")
ROOM = Path("atlas") / "compressors"
#: What decides a figure; the rest of the room only keeps and shows it.
DECIDES = tuple(ROOM / f"{name}.py" for name in ("gradients", "plain", "runs"))

Json = dict[str, Any]


def compressors(atlas: Atlas) -> list[Technique]:
    """Every technique that the study is about, with an exemplar or without, by age."""
    found = [
        t
        for t in atlas.techniques.values()
        if (t.axis, t.family) in HOMES or t.id in ALSO
    ]
    return sorted(found, key=lambda t: (t.since, t.id))


def written(atlas: Atlas) -> list[Technique]:
    """Those whose exemplar exists and trains, so that gradients can be played to it."""
    return [t for t in compressors(atlas) if trains(atlas.root, t)]


def trains(root: Path, technique: Technique) -> bool:
    """Whether there is an exemplar with a `train`; it is read, never imported."""
    path = root / technique.exemplar
    return path.is_file() and "\ndef train(" in path.read_text(encoding="utf-8")


def read(root: Path, name: str) -> Json | None:
    """What was kept of one compressor, or None."""
    path = root / PLACE / f"{name}.json"
    try:
        found: Json = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        wrong = f"{PLACE / path.name}: {error}"
        raise RecordError(f"{wrong}; remove it and measure again") from None
    return found


def source(root: Path, technique: Technique | None) -> str:
    """The hash of what is measured; without a technique, of the plain all-reduce."""
    study = hash_of(root, DECIDES)
    return study if technique is None else f"{source_hash(root, technique)} {study}"


def stale(root: Path, technique: Technique | None, part: Json) -> bool:
    """Whether a part was measured from another source than today's."""
    return bool(part["source"] != source(root, technique))


# What follows from the figures: computed when they are read, never kept


@dataclass(frozen=True)
class Cost:
    """Processor seconds of a step beyond those of a plain all-reduce."""

    encode: float
    decode: float
    spread: float  # between the quartiles of the step

    @property
    def both(self) -> float:
        """What compressing takes."""
        return self.encode + self.decode


def cost(work: Json, plain: Json) -> Cost:
    """Encoding is what comes before the first call, decoding the rest.

    The whole was timed without instruments; the instrument that sees the first call
    only tells in which proportion to divide it.
    """
    extra = max(0.0, work["seconds"] - plain["seconds"])
    share = work["before"] / (work["before"] + work["after"])
    return Cost(share * extra, (1 - share) * extra, work["high"] - work["low"])


def break_even(plain_bytes: float, sent: float, extra: float) -> float:
    """Bits a second at which compressing takes as long as it saves.

    It pays on a slower link. Infinite where nothing is computed in addition, and 0
    where no byte is saved.
    """
    saved = plain_bytes - sent
    if saved <= 0:
        return 0.0
    return 8 * saved / extra if extra > 0 else inf


def step_seconds(
    work: float, calls: Mapping[str, int], sent: float, link: Json
) -> float | None:
    """What a step lasts on a link: its work, its calls, and its bytes.

    After a rest the shaped link lets some bytes pass at once: its credit. None where
    the latency of a call is not known.
    """
    if not calls.keys() <= link["latency"].keys():
        return None
    waiting = sum(count * link["latency"][op] for op, count in calls.items())
    return work + waiting + max(0.0, sent * link["beta"] - link["credit"])


def said_rate(rate: float) -> str:
    """A speed as people say it; where it never or always pays, that."""
    if rate == 0:
        return "never"
    if rate == inf:
        return "always"
    scale, unit = (1e9, "Gbit/s") if rate >= 1e9 else (1e6, "Mbit/s")
    return f"{float(f'{rate / scale:.2g}'):g} {unit}"


@dataclass(frozen=True)
class OnWire:
    """A step on a link of known speed: measured, and predicted."""

    rate: int  # bits a second
    seconds: float
    low: float
    high: float
    predicted: float | None


@dataclass(frozen=True)
class Figures:
    """One compressor on one task; None where a part was not measured."""

    wire: float | None = None
    ratio: float | None = None  # of the plain bytes to its own
    exact: bool | None = None  # whether bytes are the formula's; None: no formula
    first: float | None = None
    after: float | None = None
    bias: Json | None = None
    loss: Json | None = None
    cost: Cost | None = None
    pays: Mapping[str, float] = field(default_factory=dict)  # by ranks, bits a second
    work: float | None = None  # seconds of a whole step outside of calls, on 2 ranks
    sent: float | None = None  # bytes, on 2 ranks
    steps: tuple[OnWire, ...] = ()


@dataclass(frozen=True)
class Row:
    """One compressor: a technique, or the plain all-reduce."""

    technique: Technique | None
    nature: Json
    tasks: Mapping[str, Figures]
    stale: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def name(self) -> str:
        """As a reader knows it."""
        return self.technique.name if self.technique else "uncompressed"


def rows(root: Path, atlas: Atlas) -> list[Row]:
    """The plain all-reduce, then every compressor that has an exemplar."""
    plain = (read(root, PLAIN) or {}).get("parts", {})
    return [_row(root, t, plain) for t in (None, *written(atlas))]


def _row(root: Path, technique: Technique | None, plain: Json) -> Row:
    found = read(root, technique.id if technique else PLAIN) or {}
    parts, nature = found.get("parts", {}), found.get("nature", {})
    older = [p for p in PARTS if p in parts and stale(root, technique, parts[p])]
    kept = {part: parts[part]["found"] for part in parts}
    theirs = {part: plain[part]["found"] for part in plain}
    measure = "direction" if nature.get("scaled") else "error"
    tasks = {task: _figures(task, kept, theirs, measure) for task in TASKS}
    if technique and "values" in kept:
        for task in TASKS:
            exact = _as_formula(technique, kept["values"], task)
            tasks[task] = replace(tasks[task], exact=exact)
    missing = tuple(p for p in PARTS if p not in parts)
    return Row(technique, nature, tasks, tuple(older), missing)


def _figures(task: str, kept: Json, plain: Json, measure: str) -> Figures:
    made = Figures()
    if "values" in kept:
        mine = kept["values"][task]
        made = replace(
            made,
            wire=mine["wire"],
            first=fmean(point[measure] for point in mine["first"]),
            after=fmean(point[measure] for point in mine["after"]),
            bias=mine["bias"],
        )
        if "values" in plain:
            ratio = plain["values"][task]["wire"] / mine["wire"]
            made = replace(made, ratio=ratio)
    if "loss" in kept:
        made = replace(made, loss=kept["loss"][task])
    if "work" in kept and "work" in plain:
        work, theirs = kept["work"], plain["work"]
        costs = {p: cost(work[p][task], theirs[p][task]) for p in RANKS}
        pays = {
            p: break_even(theirs[p][task]["wire"], work[p][task]["wire"], c.both)
            for p, c in costs.items()
        }
        made = replace(made, cost=costs[RANKS[0]], pays=pays)
        if "wires" in kept and "wires" in plain:
            mine = work[RANKS[0]][task]
            whole = _compute(task, plain) + mine["seconds"]
            steps = tuple(_on_wires(task, whole, kept, plain))
            made = replace(made, work=whole, sent=mine["wire"], steps=steps)
    return made


def _compute(task: str, plain: Json) -> float:
    """Seconds of a real step beyond those of playing a recorded gradient."""
    played = plain["work"][RANKS[0]][task]["seconds"]
    return float(plain["work"]["trained"][task] - played)


def _on_wires(task: str, whole: float, kept: Json, plain: Json) -> Iterator[OnWire]:
    """At every rate; the work was timed apart, off the wire."""
    work = kept["work"][RANKS[0]][task]
    for rate in sorted((r for r in kept["wires"] if r.isdigit()), key=int):
        seen, link = kept["wires"][rate][task], plain["wires"][rate]["link"]
        said = step_seconds(whole, work["calls"], work["wire"], link)
        yield OnWire(int(rate), seen["seconds"], seen["low"], seen["high"], said)


def _as_formula(technique: Technique, values: Json, task: str) -> bool | None:
    """Whether every rank handed over the bytes of the claim's formula."""
    claims = [c for c in technique.claims if c.id == "payload" and c.formula]
    if not claims:
        return None
    formula = FORMULAS[claims[0].formula or ""]
    mine = values[task]
    known = {**mine["given"], **mine["settings"], "ranks": values["ranks"]}
    asked = inspect.signature(formula).parameters
    if not asked.keys() <= known.keys() | {"rank"}:
        return None
    said = [
        formula(**{name: {**known, "rank": rank}[name] for name in asked})
        for rank in range(values["ranks"])
    ]
    return bool(said == mine["handed"])
