"""Langer's least delays: the printed formulas, drawn, beside the bytes we counted."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from atlas.formulas import FORMULAS
from atlas.site import address
from atlas.site.langer import tables
from atlas.site.templating import macro, markup
from atlas.site.text import attr, listing, md
from atlas.svg import corners, short
from atlas.taxonomy import Technique
from atlas.taxonomy.tables import Counted, Delay, Delays, Network, Trained
from atlas.views.context import Context, Json, latex

HERE = "surveys/langer-delays.md"
PARTS = "delays.html.j2"
WORDS = ("workers", "transmit", "reduce", "update")
GIB = 1024  # MiB
WIDE, HIGH = 420, 250
LEFT, RIGHT, ABOVE, BELOW = 46, 10, 12, 36
TICKS = 4  # of a panel, as in the figure
Points = list[tuple[float, float]]


def seconds(delay: Delay, **values: Any) -> Any:
    """The printed expression; what it does not take is left out."""
    formula = FORMULAS[delay.formula]
    taken = inspect.signature(formula).parameters
    return formula(**{word: value for word, value in values.items() if word in taken})


# What our records count: the factor of the time to transmit the model


@dataclass(frozen=True)
class Factor:
    """Models that pass a link one after the other: printed, and counted here."""

    ranks: int
    workers: int
    printed: Fraction
    busiest: Fraction
    mean: Fraction


def printed(delay: Delay, workers: int) -> Fraction:
    """The factor of T in the printed expression, exactly."""
    one, zero = Fraction(1), Fraction(0)
    return Fraction(
        seconds(delay, workers=workers, transmit=one, reduce=zero, update=zero)
    )


def factors(ctx: Context, delay: Delay) -> list[Factor]:
    """One for every recorded number of ranks; none where nothing is counted."""
    how = delay.counted
    if how is None:
        return []
    found = []
    for run in ctx.runs(how.technique, "gloo"):
        p = int(run["p"])
        workers = p if how.ranks == "workers" else p - 1
        if workers < delay.least:
            continue
        each = list(_counted(how, run, workers))
        mean = sum(each, Fraction(0)) / len(each)
        found.append(Factor(p, workers, printed(delay, workers), max(each), mean))
    return found


def _counted(how: Counted, run: Json, workers: int) -> Iterator[Fraction]:
    """Bytes over bytes of the model, of each rank that counts."""
    given = run["given"]
    for rank in run["ranks"]:
        if (how.who, rank["rank"] == 0) in (("server", False), ("worker", True)):
            continue
        moved = rank["measured"]["bytes_sent"]
        if how.bytes == "sent-and-received":
            moved += rank["calls"]["recv"]["payload"]
        model = given["elements"] * given["itemsize"]
        yield Fraction(moved, model) / _exchanges(how, given, rank, workers)


def _exchanges(how: Counted, given: Json, rank: Json, workers: int) -> Fraction:
    """How many exchanges the bytes are of."""
    match how.per:
        case "run":
            return Fraction(1)
        case "step":
            return Fraction(given["steps"])
        case "update":
            return Fraction(rank["measured"]["updates"])
        case "round":
            return Fraction(rank["measured"]["updates"], workers)


# The drawing


def transmit(model: Trained, network: Network) -> float:
    """Seconds to transmit a model of Fig. 14 over a network of it."""
    return model.mib / network.mib


def curve(made: Delays, delay: Delay, model: Trained, network: Network) -> list[float]:
    """The delay for every number of workers that the figure draws."""
    times = {
        "transmit": transmit(model, network),
        "reduce": model.mib / (made.reduce_gib * GIB),
        "update": model.mib / (made.update_gib * GIB),
    }
    counts = range(delay.least, made.workers + 1)
    return [seconds(delay, workers=n, **times) for n in counts]


@dataclass(frozen=True)
class Panel:
    """One model on one network: the drawing and its numbers."""

    model: Trained
    network: Network
    drawing: str
    columns: list[int]
    rows: list[tuple[Delay, list[float | None]]]


def panels(made: Delays) -> Iterator[Panel]:
    """A panel for each model on each network, as in the figure."""
    columns = [2**k for k in range(made.workers.bit_length()) if 2**k < made.workers]
    columns.append(made.workers)
    for network in made.networks:
        for model in made.models:
            lines = {d.id: curve(made, d, model, network) for d in made.patterns}
            rows = [
                (
                    d,
                    [
                        lines[d.id][n - d.least] if n >= d.least else None
                        for n in columns
                    ],
                )
                for d in made.patterns
            ]
            drawing = _drawing(made, model, network, lines)
            yield Panel(model, network, markup(drawing), columns, rows)


def _drawing(
    made: Delays, model: Trained, network: Network, lines: Mapping[str, Sequence[float]]
) -> str:
    """Seconds against workers, one line per pattern, and the time of a gradient."""
    highest, last = network.highest[model.id], made.workers
    levels = [highest * k / TICKS for k in range(TICKS + 1)]
    top = highest * (1 + 1 / TICKS)

    def x(n: float) -> float:
        return LEFT + (n - 1) / (last - 1) * (WIDE - LEFT - RIGHT)

    def y(value: float) -> float:
        return HIGH - BELOW - value / top * (HIGH - ABOVE - BELOW)

    parts = [
        f'<path class="grid" d="M{LEFT} {short(y(v))}H{WIDE - RIGHT}"/>'
        f'<text class="left" x="{LEFT - 6}" y="{short(y(v) + 4)}">{v:g}</text>'
        for v in levels
    ]
    parts += [
        f'<text x="{short(x(n))}" y="{HIGH - BELOW + 16}">{n}</text>'
        for n in range(1, last + 1, 2)
    ]
    middle = short((LEFT + WIDE - RIGHT) / 2)
    parts.append(f'<text x="{middle}" y="{HIGH - 4}">workers</text>')
    if model.seconds <= top:
        at = short(y(model.seconds))
        parts.append(
            f'<path class="step" d="M{LEFT} {at}H{WIDE - RIGHT}"><title>one gradient: '
            f"{model.seconds:g} s</title></path>"
        )
    for i, d in enumerate(made.patterns):
        line = _below(top, [(d.least + k, v) for k, v in enumerate(lines[d.id])])
        points = corners((x(n), y(v)) for n, v in line)
        parts.append(
            f'<g class="c{i}" data-line="{i}"><title>{attr(d.name)}</title>'
            f'<polyline points="{points}"/></g>'
        )
    ends = "; ".join(f"{d.name} {lines[d.id][-1]:.3g}" for d in made.patterns)
    says = f"Seconds of {model.name} over {network.name}, with {last} workers: {ends}"
    return (
        f'<svg class="curve race delay" viewBox="0 0 {WIDE} {HIGH}" role="img" '
        f'aria-label="{attr(says)}">{"".join(parts)}</svg>'
    )


def _below(top: float, line: Points) -> Points:
    """The part of a rising line that is in the panel."""
    kept: Points = []
    for n, value in line:
        if value > top:
            if kept:
                m, before = kept[-1]
                share = (top - before) / (value - before)
                kept.append((m + share * (n - m), top))
            break
        kept.append((n, value))
    return kept


# The page


def formulas(ctx: Context) -> str:
    """The patterns, each with its printed expression and its symbols."""
    made = tables(ctx).delays
    rows = [(d, latex(FORMULAS[d.formula])) for d in made.patterns]
    return macro(PARTS, "formulas", rows, [ctx.atlas.symbols[w] for w in WORDS])


def drawings(ctx: Context) -> str:
    """The legend, the panels and their numbers."""
    made = tables(ctx).delays
    return macro(PARTS, "drawings", made, list(panels(made)))


def constants(ctx: Context) -> str:
    """What the drawing assumes, and where each number was read."""
    return macro(PARTS, "constants", tables(ctx).delays)


def drawn(ctx: Context) -> str:
    """Which curves of the figure follow the text, and which do not."""
    return macro(PARTS, "drawn", tables(ctx).delays.patterns)


def counts(ctx: Context) -> str:
    """Printed factors beside counted ones."""
    rows = [(d, _home(ctx, d), factors(ctx, d)) for d in tables(ctx).delays.patterns]
    return macro(PARTS, "counts", HERE, rows)


def _home(ctx: Context, delay: Delay) -> Technique | None:
    return ctx.atlas.techniques[delay.counted.technique] if delay.counted else None


# What docs/surveys/langer-delays.md may mark, as `{{ name }}`.
PLACES: Mapping[str, Callable[[Context], object]] = {
    "assets": lambda ctx: address.assets(HERE, "terms.css", "studies.css", "race.js"),
    "where": lambda ctx: tables(ctx).delays.where,
    "figure": lambda ctx: tables(ctx).delays.figure,
    "formulas": formulas,
    "constants": constants,
    "drawings": drawings,
    "unprinted": lambda ctx: listing(
        [f"*{md(c)}*" for c in tables(ctx).delays.unprinted]
    ),
    "drawn": drawn,
    "counts": counts,
}
