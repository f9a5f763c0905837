"""All collectives on one page: measured dots, predicted lines, and where they cross."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atlas.site import address
from atlas.site.templating import macro, markup
from atlas.site.text import attr
from atlas.svg import corners, short
from atlas.views import collectives as view
from atlas.views.collectives import COLLECTIVES, KINDS, of_kind
from atlas.views.context import Context, Json

HERE = "collectives.md"
PARTS = "collectives.html.j2"
WIDE, HIGH = 400, 300
LEFT, RIGHT, ABOVE, BELOW = 50, 10, 10, 38
MARK = 3.2
ROOM = 1.3  # of a logarithmic axis, beyond what is drawn
#: Bytes above which a collective is all bandwidth, and what sends no byte too many.
LARGE = 2**24
OPTIMAL: tuple[str, ...] = ("ring-all-reduce", "halving-doubling", "hierarchical")
OPTIMAL += ("reduce-scatter-all-gather", "shared-memory-all-reduce")

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    """One collective in a plot: what was measured, and what was predicted."""

    name: str
    measured: Points
    predicted: Points

    @property
    def color(self) -> str:
        """By its place among its kind."""
        i = list(of_kind(COLLECTIVES[self.name].kind)).index(self.name)
        return f"c{i % 9} d{i // 9}"

    @property
    def number(self) -> int:
        """Its place in the table, by which the legend finds it."""
        return list(COLLECTIVES).index(self.name)


def found(ctx: Context) -> Json | None:
    """The study, if it is whole."""
    made = view.study(ctx)
    if made is None:
        return None
    given, cells = made["given"], made.get("cells", {})
    rows = [
        cells.get(str(p), {}).get(str(n), {})
        for p in given["ranks"]
        for n in given["sizes"]
    ]
    return made if all(set(row) >= set(COLLECTIVES) for row in rows) else None


def size(n: float) -> str:
    """Bytes in binary units, to two digits."""
    for unit, each in (("MiB", 2**20), ("KiB", 2**10)):
        if n >= each:
            return f"{float(f'{n / each:.2g}'):g} {unit}"
    return f"{n:.2g} B"


def seconds(value: float) -> str:
    """Two digits, in the unit that suits."""
    for unit, each in (("s", 1.0), ("ms", 1e-3)):
        if value >= each:
            return f"{float(f'{value / each:.2g}'):g} {unit}"
    return f"{float(f'{value / 1e-6:.2g}'):g} µs"


# The plots


def plots(ctx: Context) -> str:
    """By kind, a plot for every number of ranks over one legend."""
    made = found(ctx)
    if made is None:
        return "*Not measured yet: `atlas collectives --write` does it.*"
    return "\n\n".join(_kind(made, kind) for kind in KINDS)


def _kind(made: Json, kind: str) -> str:
    panels = []
    for p in made["given"]["ranks"]:
        lines = [_line(made, p, name) for name in of_kind(kind)]
        caption = f"{p} ranks on {made['machine']['cores']} cores"
        panels.append((markup(draw(lines, f"{kind}, {caption}")), caption))
    return macro(PARTS, "kind", kind, panels, _key(of_kind(kind)))


def _line(made: Json, p: int, name: str) -> Line:
    c, sizes = view.constants(made, p), made["given"]["sizes"]
    said = [(n, COLLECTIVES[name].seconds(p, n, c)) for n in sizes]
    predicted = [(n, s) for n, s in said if s is not None]
    return Line(name, view.measured(made, p, name), predicted)


def _key(names: Iterable[str]) -> list[dict[str, Any]]:
    lines = [Line(name, (), ()) for name in names]
    return [
        {
            "number": line.number,
            "color": line.color,
            "says": COLLECTIVES[line.name].says,
        }
        for line in lines
    ]


def draw(lines: Sequence[Line], title: str) -> str:
    """Seconds against bytes, both logarithmic."""
    points = [point for line in lines for point in (*line.measured, *line.predicted)]
    x = _axis([n for n, _ in points], LEFT, WIDE - RIGHT)
    y = _axis([s for _, s in points], HIGH - BELOW, ABOVE)
    body = "".join(_drawn(line, x, y) for line in lines)
    middle = short((LEFT + WIDE - RIGHT) / 2)
    return (
        f'<svg class="curve race" viewBox="0 0 {WIDE} {HIGH}" role="img" '
        f'aria-label="{attr(_spoken(lines, title))}">{"".join(_grid(points, x, y))}'
        f'{body}<text x="{middle}" y="{HIGH - 4}">bytes of the tensor</text></svg>'
    )


def _axis(
    values: Sequence[float], start: float, end: float
) -> Callable[[float], float]:
    low, high = math.log(min(values) / ROOM), math.log(max(values) * ROOM)

    def place(value: float) -> float:
        return start + (math.log(value) - low) / (high - low) * (end - start)

    return place


def _grid(
    points: Points, x: Callable[[float], float], y: Callable[[float], float]
) -> Iterator[str]:
    sizes = sorted({n for n, _ in points})
    for n in sizes[::2]:
        yield f'<text x="{short(x(n))}" y="{HIGH - BELOW + 16}">{size(n)}</text>'
    low, high = min(s for _, s in points), max(s for _, s in points)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for k in range(first, last + 1):
        if low / ROOM <= 10.0**k <= high * ROOM:
            at = y(10.0**k)
            yield f'<path class="grid" d="M{LEFT} {short(at)}H{WIDE - RIGHT}"/>'
            text = f'x="{LEFT - 6}" y="{short(at + 4)}"'
            yield f'<text class="left" {text}>{seconds(10.0**k)}</text>'


def _drawn(line: Line, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    """A line for what was predicted, a dot for every measurement."""
    says = COLLECTIVES[line.name].says
    path = corners((x(n), y(s)) for n, s in line.predicted)
    predicted = f'<polyline points="{path}"/>' if path else ""
    dots = "".join(
        f'<circle cx="{short(x(n))}" cy="{short(y(s))}" r="{MARK}" '
        f'style="fill:var(--c)"><title>{attr(says)}, {size(n)}: {seconds(s)}'
        "</title></circle>"
        for n, s in line.measured
    )
    mark = f'class="{line.color}" data-line="{line.number}"'
    return f"<g {mark}>{predicted}{dots}</g>"


def _spoken(lines: Sequence[Line], title: str) -> str:
    """Who is fastest at the smallest and at the largest size."""
    told = []
    for place in (0, -1):
        n, _ = lines[0].measured[place]
        best = min(lines, key=lambda line: line.measured[place][1])
        says = COLLECTIVES[best.name].says
        told.append(f"at {size(n)} {says}, {seconds(best.measured[place][1])}")
    return f"Seconds against bytes: {title}. Fastest: {'; '.join(told)}"


# The tables


def constants(ctx: Context) -> str:
    """What a round, a byte and an addition cost here."""
    made = found(ctx)
    if made is None:
        return ""
    rows = [(p, made["constants"][str(p)]) for p in made["given"]["ranks"]]
    return macro(PARTS, "constants", rows)


def crossings(ctx: Context) -> str:
    """Where one collective overtakes another, as predicted and as seen."""
    made = found(ctx)
    return "" if made is None else macro(PARTS, "crossings", list(_crossings(made)))


def _crossings(made: Json) -> Iterator[dict[str, Any]]:
    for c in view.crossings(made):
        yield {
            "small": COLLECTIVES[c.small].says,
            "large": COLLECTIVES[c.large].says,
            "ranks": c.ranks,
            "predicted": _crossed(c.predicted, c.said, made),
            "measured": _crossed(c.measured, c.seen, made),
        }


def _crossed(n: float | None, best: str, made: Json) -> str:
    """A size, or who is faster wherever it was looked."""
    sizes = made["given"]["sizes"]
    if n is not None and sizes[0] <= n <= sizes[-1]:
        return size(n)
    return f"none: {COLLECTIVES[best].says} is faster"


def ratios(ctx: Context) -> str:
    """Bandwidth-optimal all-reduces against the library's, at large sizes."""
    made = found(ctx)
    if made is None:
        return ""
    ranks, theirs = made["given"]["ranks"], next(iter(of_kind("all-reduce")))
    sizes = [n for n in made["given"]["sizes"] if n >= LARGE]
    heads = [f"{size(n)}, {p} ranks" for n in sizes for p in ranks]
    rows = [
        (
            COLLECTIVES[name].says,
            [f"{_median(made, p, n, name, theirs):.2f}" for n in sizes for p in ranks],
        )
        for name in OPTIMAL
    ]
    return macro(PARTS, "ratios", heads, rows)


def _median(made: Json, p: int, n: int, name: str, theirs: str) -> float:
    row = made["cells"][str(p)][str(n)]
    return float(row[name]["median"] / row[theirs]["median"])


# Two nodes


def nodes(ctx: Context) -> str:
    """The same on two nodes: plots, and who wins."""
    made = found(ctx)
    if made is None or not made.get("shaped"):
        return "*Not measured yet.*"
    parts = [_nodes_kind(made, kind) for kind in KINDS]
    return "\n\n".join([_nodes_table(made), *parts])


def _nodes_table(made: Json) -> str:
    """At the largest size: seconds, and what crossed the link."""
    shaped = made["given"]["shaped"]
    n = max(int(k) for k in made["shaped"])
    row, rate = made["shaped"][str(n)], shaped["rate"]
    rows = []
    for kind in KINDS:
        names = [name for name in of_kind(kind) if name in row]
        best = min(names, key=lambda name: row[name]["median"])
        for name in names:
            rows.append(
                {
                    "kind": kind,
                    "says": COLLECTIVES[name].says,
                    "seconds": seconds(row[name]["median"]),
                    "least": seconds(row[name]["wire"] * 8 / rate),
                    "crossed": f"{row[name]['wire'] / n:.2f}",
                    "best": name == best,
                }
            )
    return macro(PARTS, "nodes", size(n), rows)


def _nodes_kind(made: Json, kind: str) -> str:
    shaped, cells = made["given"]["shaped"], made["shaped"]
    names = [name for name in of_kind(kind) if name in next(iter(cells.values()))]
    lines = []
    for name in names:
        rows = sorted((int(n), row[name]) for n, row in cells.items())
        measured = [(n, r["median"]) for n, r in rows]
        least = [(n, r["wire"] * 8 / shaped["rate"]) for n, r in rows]
        lines.append(Line(name, measured, least))
    p = shaped["nodes"] * shaped["node_size"]
    caption = f"{kind}, {p} ranks on {shaped['nodes']} nodes"
    panel = [(markup(draw(lines, caption)), caption)]
    return macro(PARTS, "panel", panel, _key(names))


def hierarchy(ctx: Context) -> str:
    """Whether the hierarchy wins on two nodes, and by how much."""
    made = found(ctx)
    if made is None or not made.get("shaped"):
        return ""
    n = max(int(k) for k in made["shaped"])
    row = made["shaped"][str(n)]
    ours, ring = row["hierarchical"], row["ring-all-reduce"]
    names = [name for name in of_kind("all-reduce") if name in row]
    best = min(names, key=lambda name: row[name]["median"])
    return macro(
        PARTS,
        "hierarchy",
        {
            "size": size(n),
            "won": best == "hierarchical",
            "best": COLLECTIVES[best].says,
            "ours": seconds(ours["median"]),
            "ring": seconds(ring["median"]),
            "gain": f"{ring['median'] / ours['median']:.2f}",
            "bytes": f"{ring['wire'] / ours['wire']:.2f}",
        },
    )


def recorded(ctx: Context) -> str:
    """When, on what, and whether the exemplars have changed since."""
    made = found(ctx)
    if made is None:
        return ""
    cores, ranks = made["machine"]["cores"], made["given"]["ranks"]
    facts = {
        "date": made["recorded"],
        "torch": made["versions"]["torch"],
        "cores": cores,
        "load": made["load"],
        "stale": made["sources"] != view.sources(ctx.root),
        "over": [p for p in ranks if p > cores],
        "under": [p for p in ranks if p <= cores],
    }
    return macro(PARTS, "recorded", facts)


def link(ctx: Context) -> str:
    """The Mbit/s between the nodes, the nodes, and the ranks of each, in words."""
    made = found(ctx)
    if made is None:
        return "not measured yet"
    shaped = made["given"]["shaped"]
    return (
        f"{shaped['nodes']} nodes with {shaped['node_size']} ranks each, and "
        f"{shaped['rate'] / 1e6:g} Mbit/s between them"
    )


PLACES: Mapping[str, Callable[[Context], object]] = {
    "assets": lambda ctx: address.assets(HERE, "studies.css", "race.js"),
    "recorded": recorded,
    "constants": constants,
    "plots": plots,
    "crossings": crossings,
    "large": lambda ctx: size(LARGE),
    "ratios": ratios,
    "link": link,
    "hierarchy": hierarchy,
    "nodes": nodes,
}
