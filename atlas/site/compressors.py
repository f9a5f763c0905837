"""Compressors on one page: tables, plots and what they say, all from the record."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from atlas.site import address
from atlas.site.templating import macro, markup
from atlas.site.text import amount, attr
from atlas.svg import corners, short
from atlas.taxonomy import Atlas
from atlas.views import compressors as view
from atlas.views.compressors import TASKS, Figures, OnWire, Row
from atlas.views.context import Context, Json

HERE = "compressors.md"
PARTS = "compressors.html.j2"
WIDE, HIGH = 460, 300
LEFT, RIGHT, ABOVE, BELOW = 44, 22, 14, 40
DOT = 5.0
SLOWEST, FASTEST = 1e7, 1e11  # bits a second that are drawn
CALM = 2.5  # the load of two nodes that compute all the time, and a little more


def measured(ctx: Context) -> list[Row]:
    """The rows that have figures; the plain all-reduce comes first."""
    every = view.rows(ctx.root, ctx.atlas)
    return [r for r in every if len(r.missing) < len(view.PARTS)]


# What the figures say


@dataclass(frozen=True)
class Finding:
    """What holds over all compressors on one task."""

    task: str
    count: int  # of compressors whose steps were timed
    faster: Mapping[int, list[Row]]  # by rate: median step shorter than any plain one
    errors: list[float]  # of the predicted steps, relative
    worse: list[Row]  # whose losses lie above those of plain SGD, seed by seed
    compared: int
    most: Row | None  # the highest break-even
    least: Row | None

    @property
    def typical(self) -> float:
        """The median of the errors."""
        return median(self.errors)


def finding(rows: Sequence[Row], task: str) -> Finding:
    """All of it from the rows; a row that lacks a part is not counted there."""
    plain, others = rows[0].tasks[task], rows[1:]
    timed = [r for r in others if r.tasks[task].steps]
    limits = {s.rate: s.low for s in plain.steps}
    faster = {
        rate: [r for r in timed if _at(r.tasks[task], rate).seconds < limit]
        for rate, limit in limits.items()
    }
    steps = [s for r in rows for s in r.tasks[task].steps]
    trained = [r for r in others if r.tasks[task].loss]
    ranked = sorted(
        (r for r in others if 0 < _even(r, task) < math.inf),
        key=lambda r: _even(r, task),
    )
    return Finding(
        task,
        len(timed),
        faster,
        [abs(s.predicted - s.seconds) / s.seconds for s in steps if s.predicted],
        [r for r in trained if _worse(r.tasks[task].loss, plain.loss)],
        len(trained),
        ranked[-1] if ranked else None,
        ranked[0] if ranked else None,
    )


def _at(figures: Figures, rate: int) -> OnWire:
    return next(s for s in figures.steps if s.rate == rate)


def _even(row: Row, task: str) -> float:
    return row.tasks[task].pays.get(view.RANKS[0], 0.0)


def _worse(loss: Json | None, plain: Json | None) -> bool:
    """Whether its best seed is worse than the worst of plain SGD."""
    if not loss or not plain or plain["high"] is None:
        return False
    return loss["low"] is None or bool(loss["low"] > plain["high"])


# Plots


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis between two values."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Where a value lies; what is beyond lies on the edge."""
        kept = min(max(value, self.low), self.high)
        share = math.log(kept / self.low) / math.log(self.high / self.low)
        return round(self.start + share * (self.end - self.start), 1)

    @property
    def ticks(self) -> list[float]:
        """Powers of ten, and where there are few, three times them."""
        low, high = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        steps = (1, 3) if high - low < 4 else (1,)
        every = [s * 10.0**k for k in range(low, high + 1) for s in steps]
        return [v for v in every if self.low <= v * 1.001 and v <= self.high * 1.001]


def _across(low: float, high: float) -> Axis:
    return Axis(low, high, LEFT, WIDE - RIGHT)


def _upward(low: float, high: float) -> Axis:
    return Axis(low, high, HIGH - BELOW, ABOVE)


def _frame(x: Axis, y: Axis, across: str, unit: Callable[[float], str]) -> str:
    parts = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDE - RIGHT}" y1="{y(v)}" y2="{y(v)}"/>'
        f'<text class="left" x="{LEFT - 6}" y="{y(v) + 4}">{v:g}</text>'
        for v in y.ticks
    ]
    parts += [
        f'<text x="{x(v)}" y="{HIGH - BELOW + 16}">{unit(v)}</text>' for v in x.ticks
    ]
    middle = (LEFT + WIDE - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HIGH - 5}">{attr(across)}</text>')
    return "".join(parts)


def _figure(kind: str, says: str, inside: str) -> str:
    return (
        f'<svg class="curve race {kind}" viewBox="0 0 {WIDE} {HIGH}" role="img" '
        f'aria-label="{attr(says)}">{inside}</svg>'
    )


def _group(i: int, title: str, inside: str) -> str:
    tip = f"<title>{attr(title)}</title>"
    return f'<g class="c{i % 9} d{i // 9}" data-line="{i}">{tip}{inside}</g>'


def errors(rows: Sequence[Row], task: str) -> str:
    """Error at the end of a recording against bytes, both logarithmic."""
    points = [
        (i, r, f.wire, f.after)
        for i, r in enumerate(rows)
        if (f := r.tasks[task]).wire and f.after is not None and r.technique
    ]
    if not points:
        return ""
    sent = [wire for *_, wire, _ in points]
    off = [after for *_, after in points]
    x = _across(min(sent) / 2, max(sent) * 2)
    y = _upward(max(min(off), 1e-3) / 2, max(off) * 2)
    marks = [_mark(i, r, x(wire), y(after)) for i, r, wire, after in points]
    spoken = "; ".join(
        f"{r.name} {amount(wire)}B, {after:.2g}" for _, r, wire, after in points
    )
    frame = _frame(x, y, "bytes sent by a rank in a step", lambda v: f"{amount(v)}B")
    return _figure("dots", f"Error against bytes: {spoken}", frame + "".join(marks))


def _mark(i: int, row: Row, x: float, y: float) -> str:
    label = f'<text x="{short(x)}" y="{short(y - DOT - 3)}">{i}</text>'
    dot = f'<circle cx="{short(x)}" cy="{short(y)}" r="{DOT}"/>'
    return _group(i, row.name, dot + label)


def times(rows: Sequence[Row], task: str) -> str:
    """Step time against the speed of the link: lines follow from work and bytes."""
    chosen = [(i, r) for i, r in enumerate(rows) if r.tasks[task].steps]
    if not chosen:
        return ""
    lines = {i: _line(r.tasks[task]) for i, r in chosen}
    slow = [line(SLOWEST) for line in lines.values()]
    fast = [line(FASTEST) for line in lines.values()]
    x = _across(SLOWEST, FASTEST)
    y = _upward(min(fast) * 1e3 / 1.5, max(slow) * 1e3 * 1.2)
    parts = [
        _group(i, r.name, _drawn(r.tasks[task], lines[i], x, y)) for i, r in chosen
    ]
    marks = _crossings(rows, task, lines[0], x, y) if 0 in lines else ""
    spoken = "; ".join(
        f"{r.name} {view.said_rate(_even(r, task))}" for _, r in chosen if r.technique
    )
    frame = _frame(x, y, "speed of the link, bits a second", amount)
    label = f"Milliseconds of a step against the link's speed. Break-even: {spoken}"
    return _figure("dots", label, frame + "".join(parts) + marks)


def _line(figures: Figures) -> Callable[[float], float]:
    """Seconds at a speed: work, and bytes over bandwidth; no latency, no headers."""
    work, sent = figures.work, figures.sent
    assert work is not None
    assert sent is not None
    return lambda rate: work + 8 * sent / rate


def _drawn(figures: Figures, line: Callable[[float], float], x: Axis, y: Axis) -> str:
    count = 40
    ratio = FASTEST / SLOWEST
    speeds = [SLOWEST * ratio ** (k / count) for k in range(count + 1)]
    path = corners((x(v), y(line(v) * 1e3)) for v in speeds)
    dots = "".join(
        f'<circle cx="{x(s.rate)}" cy="{y(s.seconds * 1e3)}" r="3"/>'
        for s in figures.steps
    )
    return f'<polyline points="{path}"/>{dots}'


def _crossings(
    rows: Sequence[Row], task: str, plain: Callable[[float], float], x: Axis, y: Axis
) -> str:
    """A tick on the uncompressed line where a compressor breaks even."""
    return "".join(_tick(i, r, task, plain, x, y) for i, r in enumerate(rows))


def _tick(
    i: int, row: Row, task: str, plain: Callable[[float], float], x: Axis, y: Axis
) -> str:
    rate = _even(row, task)
    if not SLOWEST < rate < FASTEST:
        return ""
    at, up = x(rate), y(plain(rate) * 1e3)
    title = f"{row.name} breaks even at {view.said_rate(rate)}"
    mark = f'<line class="even" x1="{at}" x2="{at}" y1="{up}" y2="{HIGH - BELOW}"/>'
    return _group(i, title, f'{mark}<text x="{at}" y="{HIGH - BELOW - 4}">{i}</text>')


# The places of docs/compressors.md


def tables(ctx: Context) -> str:
    """A section for each task."""
    return "\n\n".join(_sections(measured(ctx)))


def _sections(rows: Sequence[Row]) -> Iterator[str]:
    if not rows:
        yield "*Not measured yet: `atlas compressors --write` does it.*"
        return
    yield '<div class="choices race" data-label="Gradients of" markdown="1">'
    for task in TASKS:
        plots = [(says, markup(draw(rows, task))) for says, draw in PLOTS.items()]
        yield macro(PARTS, "task", HERE, task, rows, plots)
    yield "</div>"


PLOTS = {
    "Error of the summed updates at the end of a recording, against bytes": errors,
    "Milliseconds of a step on 2 ranks against the speed of the link. Lines: work and "
    "bytes over bandwidth. Dots: measured on shaped links. Ticks: break-even": times,
}


def intro(ctx: Context) -> str:
    """How the figures were made, with the numbers of the record."""
    found = view.read(ctx.root, view.PLAIN)
    if found is None or "values" not in found["parts"]:
        return ""
    return macro(PARTS, "intro", found["parts"], busy(ctx.root, ctx.atlas))


def busy(root: Path, atlas: Atlas) -> bool:
    """Whether something was timed while more ran than the nodes themselves."""
    names = [view.PLAIN, *(t.id for t in view.compressors(atlas))]
    kept = [found["parts"] for name in names if (found := view.read(root, name))]
    timed = [parts[p] for parts in kept for p in ("work", "wires") if p in parts]
    return any(part["load"] > CALM for part in timed)


def found(ctx: Context) -> str:
    """What the figures say, task by task."""
    rows = measured(ctx)
    every = [finding(rows, task) for task in TASKS] if rows else []
    some = [f for f in every if f.faster or f.most or f.compared]
    return macro(PARTS, "found", HERE, some) if some else ""


def absent(ctx: Context) -> str:
    """Compressors that are described but have no figures here, and why."""
    have = [r.technique.id for r in measured(ctx) if r.technique]
    others = [t for t in view.compressors(ctx.atlas) if t.id not in have]
    waiting = [t for t in others if view.trains(ctx.root, t)]
    apart = [t for t in others if ctx.written(t) and t not in waiting]
    unwritten = [t for t in others if not ctx.written(t)]
    return macro(PARTS, "absent", HERE, waiting, apart, unwritten)


def burst(ctx: Context) -> str:
    """Seconds of sending that a shaped link lets pass at once."""
    plain = view.read(ctx.root, view.PLAIN)
    wires = (plain or {"parts": {}})["parts"].get("wires")
    if wires is None:
        return "some sending"
    links = [x["link"] for x in wires["found"].values() if isinstance(x, dict)]
    return f"{links[0]['credit'] * 1e3:g} ms of sending"


# What docs/compressors.md may mark, as `{{ name }}`.
PLACES: Mapping[str, Callable[[Context], object]] = {
    "assets": lambda ctx: address.assets(HERE, "views.css", "studies.css", "race.js"),
    "intro": intro,
    "found": found,
    "tables": tables,
    "absent": absent,
    "burst": burst,
}
