"""Runs that others published: what the oracle says of each, and how far off it is.

`measurements/studies/published-runs.json` holds facts alone, each row with the file
and the line that it was read from. Nothing here is fitted to them but the few
constants whose sources in taxonomy/clusters name a set of this file; `FITTED` lists
its rows, and every summary says which rows are whose.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from atlas.planner import presets
from atlas.planner.cluster import Cluster, Link
from atlas.planner.errors import OracleError, nearest
from atlas.planner.model import Model
from atlas.planner.predict import predict
from atlas.planner.prediction import Prediction
from atlas.planner.records import Recompute
from atlas.planner.strategy import parse
from atlas.planner.train import PRECISIONS, Train
from atlas.planner.transformer import transformer

__all__ = [
    "FITTED",
    "Judged",
    "Run",
    "RunSet",
    "Summary",
    "band",
    "judge",
    "judged",
    "judged_alone",
    "layouts",
    "read",
    "share_within",
    "summary",
]

HOME = "measurements/studies/published-runs.json"
#: The rows that constants of the presets were fitted on, all of one node: of a set,
#: the runs on so many devices at most, and of those one in so many.
FITTED: Mapping[str, tuple[int, int]] = {
    "mpt-a100-80g": (8, 1),
    "mpt-h100": (8, 1),
    "mpt-h100-fp8": (8, 1),
    "vtrain-single": (8, 5),
}
#: Shortlists of so many are what the planner asks a reader to measure.
SHORTLIST = 5
#: Layouts of one question, for it to say something of a choice among them.
CHOICES = 4

TERAFLOPS = 1e12
#: Share of rows that a band may miss.
OUTSIDE = 0.1
UNITS: Mapping[str, Callable[["Run", Model], float]] = {
    "ran": lambda *_: math.nan,  # a layout: nobody said how long it took
    "s": lambda run, _: run.measured,
    "ms": lambda run, _: run.measured / 1000,
    "tokens/s/GPU": lambda run, _: (
        run.batch * run.tokens / (run.measured * run.devices)
    ),
    "TFLOP/s/GPU": lambda run, model: (
        3 * run.batch * model.flops / (run.measured * TERAFLOPS * run.devices)
    ),
    "TFLOP/s/GPU, full recomputation": lambda run, model: (
        (4 * model.flops - _head(model))
        * run.batch
        / (run.measured * TERAFLOPS * run.devices)
    ),
}
KEYS = {"flash", "id", "says", "source", "cluster", "unit", "models", "columns", "rows"}
MAY = {
    "lean",
    "whole",
    "bucket",
    "eager",
    "flash",
    "stops",
    "woven",
    "overlap",
    "precision",
    "changes",
    "assumed",
}
COLUMNS = (
    *("model", "tokens", "strategy", "batch", "micro_batch", "recompute"),
    *("measured", "memory", "line"),
)
MORE = ("precision", "parameters", "compiled")


@dataclass(frozen=True, eq=False)
class RunSet:
    """One published table: where it is from, and its rows."""

    id: str
    says: str
    source: Mapping[str, str | None]
    cluster: str
    unit: str
    models: Mapping[str, Mapping[str, Any]]
    runs: tuple["Run", ...]
    changes: Mapping[str, Mapping[str, float]]
    flash: bool
    eager: bool
    lean: bool
    stops: bool
    whole: bool  # memory is the device's, drivers and libraries included
    woven: bool
    bucket: int
    overlap: bool
    assumed: str | None

    @property
    def link(self) -> str:
        """Where a reader finds the table."""
        home, path = self.source["repository"], self.source["path"]
        if home == "arXiv":
            return f"https://arxiv.org/abs/{path}"
        return f"https://github.com/{home}/blob/{self.source['commit']}/{path}"


@dataclass(frozen=True)
class Run:
    """One row: a layout, and what was measured, in the table's own unit."""

    model: str
    tokens: int
    strategy: str
    batch: int
    micro_batch: int
    recompute: str
    measured: float  # 0 where the table does not say
    memory: float | None  # bytes on the fullest device
    line: int | str  # of the file, or the row's name in the paper
    precision: str
    parameters: int | None = None
    compiled: bool = False

    @property
    def devices(self) -> int:
        """Ranks of its strategy."""
        return parse(self.strategy).ranks


@dataclass(frozen=True)
class Judged:
    """A run beside its prediction."""

    run: Run
    seconds: float  # measured
    predicted: Prediction
    fitted: bool  # a constant was fitted on this row
    besides: float = 0.0  # bytes of drivers and libraries that the set counts too

    @property
    def ratio(self) -> float:
        """Predicted over measured seconds."""
        return self.predicted.seconds / self.seconds

    @property
    def held(self) -> bool:
        """Whether the measured seconds lie in the band that was printed."""
        return self.predicted.low <= self.seconds <= self.predicted.high

    @property
    def memory_ratio(self) -> float | None:
        """Predicted over measured bytes, where they were published."""
        if self.run.memory is None:
            return None
        return (sum(self.predicted.memory) + self.besides) / self.run.memory


@dataclass(frozen=True)
class Summary:
    """What a set says of the oracle."""

    id: str
    rows: int
    error: float  # mean of |predicted / measured - 1|
    bias: float  # mean of predicted / measured - 1
    worst: Judged
    correlation: float  # of the logarithms
    held: float  # share of rows inside their band
    refused: int  # real layouts that the oracle says do not fit
    regret: tuple[float, float] | None  # of its first choice, of the best of its five
    questions: int  # that the regrets are means of
    memory: float | None  # mean error, where bytes were published


def read(root: Path) -> tuple[RunSet, ...]:
    """All sets; a malformed one is one line."""
    return _read(root / HOME)


@functools.cache
def _read(path: Path) -> tuple[RunSet, ...]:
    found = json.loads(path.read_text(encoding="utf-8"))["sets"]
    return tuple(_set(one) for one in found)


def layouts(root: Path) -> tuple[RunSet, ...]:
    """Sets of layouts that ran, without a time: do they fit?"""
    found = json.loads((root / HOME).read_text(encoding="utf-8"))
    return tuple(_set(one) for one in found.get("layouts", []))


def _set(data: Mapping[str, Any]) -> RunSet:
    name = data.get("id", "a set without an id")
    for key in KEYS - data.keys():
        raise OracleError(f"{name}: missing {key}")
    for key in data.keys() - KEYS - MAY:
        raise OracleError(f"{name}: unknown {key}: expected {nearest(key, KEYS | MAY)}")
    if data["unit"] not in UNITS:
        near = nearest(data["unit"], UNITS)
        raise OracleError(f"{name}: unit {data['unit']}: expected {near}")
    columns = data["columns"]
    if tuple(columns[: len(COLUMNS)]) != COLUMNS or set(columns) - {*COLUMNS, *MORE}:
        raise OracleError(f"{name}: columns {columns}: expected {', '.join(COLUMNS)}")
    return RunSet(
        name,
        data["says"],
        data["source"],
        data["cluster"],
        data["unit"],
        data["models"],
        tuple(_run(data, columns, row) for row in data["rows"]),
        data.get("changes", {}),
        flash=data["flash"],
        eager=data.get("eager", False),
        lean=data.get("lean", False),
        stops=data.get("stops", False),
        whole=data.get("whole", False),
        woven=data.get("woven", False),
        bucket=data.get("bucket", 25 * 2**20),
        overlap=data.get("overlap", True),
        assumed=data.get("assumed"),
    )


def _run(data: Mapping[str, Any], columns: Sequence[str], row: Sequence[Any]) -> Run:
    if len(row) != len(columns):
        raise OracleError(f"{data['id']}: row {row}: expected {len(columns)} values")
    given = dict(zip(columns, row, strict=True))
    if given["model"] not in data["models"]:
        near = nearest(given["model"], data["models"])
        raise OracleError(f"{data['id']}: model {given['model']}: expected {near}")
    given["measured"] = given["measured"] or 0.0
    return Run(**{"precision": data.get("precision", "mixed"), **given})


def cluster_of(one: RunSet) -> Cluster:
    """The preset on which a set ran, with what the set says is different there."""
    cluster = presets.cluster(one.cluster)
    changes: dict[str, Any] = dict(one.changes)
    device = dataclasses.replace(cluster.device, **changes.pop("device", {}))
    levels = []
    for level in cluster.levels:
        change: dict[str, Any] = dict(changes.pop(level.name, {}))
        bandwidth = change.pop("bandwidth", None)
        links = {
            op: Link(link.alpha, 1 / bandwidth if bandwidth else link.beta, link.launch)
            for op, link in level.links.items()
        }
        levels.append(dataclasses.replace(level, links=links, **change))
    if changes:
        raise OracleError(f"{one.id}: changes of {', '.join(changes)}: no such level")
    return dataclasses.replace(cluster, device=device, levels=tuple(levels))


@functools.cache
def _model(name: str, tokens: int, given: tuple[tuple[str, Any], ...]) -> Model:
    return transformer(name, tokens=tokens, **dict(given))


def model_of(one: RunSet, run: Run) -> Model:
    """A run's network, for its sequences."""
    return _model(run.model, run.tokens, tuple(sorted(one.models[run.model].items())))


def _head(model: Model) -> float:
    """Operations forward that are never computed again: those of the head."""
    return sum(layer.work.once for layer in model.layers)


def is_fitted(name: str, place: int, run: Run) -> bool:
    """Whether a constant of the presets was fitted on this row of a set."""
    if name not in FITTED:
        return False
    most, among = FITTED[name]
    return run.devices <= most and place % among == 0


def judge(one: RunSet, place: int, cluster: Cluster) -> Judged:
    """The run at a place in a set, and its prediction."""
    run = one.runs[place]
    model = model_of(one, run)
    train = Train(
        run.batch,
        run.micro_batch,
        PRECISIONS[run.precision],
        recompute=Recompute(run.recompute),
        flash=one.flash,
        lean=one.lean,
        stops=one.stops,
        woven=one.woven,
        eager=one.eager and not run.compiled,
        bucket=one.bucket,
        overlap=one.overlap,
    )
    return Judged(
        run,
        UNITS[one.unit](run, model),
        predict(model, parse(run.strategy), cluster, train),
        fitted=is_fitted(one.id, place, run),
        besides=cluster.device.reserved if one.whole else 0.0,
    )


def judged(one: RunSet) -> tuple[Judged, ...]:
    """Every row of a set."""
    cluster = cluster_of(one)
    return tuple(judge(one, place, cluster) for place in range(len(one.runs)))


def summary(name: str, rows: Sequence[Judged]) -> Summary:
    """The figures of some rows."""
    off = [row.ratio - 1 for row in rows]
    memory = [abs(m - 1) for row in rows if (m := row.memory_ratio) is not None]
    regrets = [_regret(group) for group in _questions(rows)]
    return Summary(
        name,
        len(rows),
        fmean(map(abs, off)),
        fmean(off),
        max(rows, key=lambda row: abs(math.log(row.ratio))),
        _correlation(rows),
        fmean(row.held for row in rows),
        sum(not row.predicted.fits for row in rows),
        (fmean(r for r, _ in regrets), fmean(r for _, r in regrets))
        if regrets
        else None,
        len(regrets),
        fmean(memory) if memory else None,
    )


def judged_alone(rows: Iterable[Judged]) -> list[Judged]:
    """The rows on which nothing was fitted."""
    return [row for row in rows if not row.fitted]


def band(groups: Iterable[Sequence[Judged]]) -> tuple[float, float]:
    """Measured over predicted: where nine of ten lie, every set weighing the same."""
    found = [(1 / row.ratio, 1 / len(rows)) for rows in groups if rows for row in rows]
    found.sort()
    whole = sum(weight for _, weight in found)
    low, high, seen = math.nan, math.nan, 0.0
    for ratio, weight in found:
        seen += weight / whole
        if math.isnan(low) and seen >= OUTSIDE / 2:
            low = ratio
        if math.isnan(high) and seen >= 1 - OUTSIDE / 2:
            high = ratio
    return math.floor(100 * low) / 100, math.ceil(100 * high) / 100


def share_within(rows: Sequence[Judged], limits: tuple[float, float]) -> float:
    """Of some rows, how many a band holds."""
    low, high = limits
    return fmean(low <= 1 / row.ratio <= high for row in rows)


def _correlation(rows: Iterable[Judged]) -> float:
    pairs = [(math.log(r.predicted.seconds), math.log(r.seconds)) for r in rows]
    mean = fmean(x for x, _ in pairs), fmean(y for _, y in pairs)
    xy = sum((x - mean[0]) * (y - mean[1]) for x, y in pairs)
    xx = sum((x - mean[0]) ** 2 for x, _ in pairs)
    yy = sum((y - mean[1]) ** 2 for _, y in pairs)
    return xy / math.sqrt(xx * yy) if xx and yy else math.nan


def _questions(rows: Iterable[Judged]) -> list[list[Judged]]:
    """Rows that answer one question: a model and a batch on so many devices."""
    groups: dict[tuple[Any, ...], list[Judged]] = {}
    for row in rows:
        run = row.run
        asked = (run.model, run.tokens, run.devices, run.batch)
        groups.setdefault(asked, []).append(row)
    return [group for group in groups.values() if len(group) >= CHOICES]


def _regret(group: Sequence[Judged]) -> tuple[float, float]:
    """What the oracle's first choice, and the best of its five, cost over the best."""
    best = min(row.seconds for row in group)
    ranked = sorted(group, key=lambda row: row.predicted.seconds)
    first, five = ranked[0].seconds, min(r.seconds for r in ranked[:SHORTLIST])
    return first / best - 1, five / best - 1
