"""The timeline: systems and techniques by year, in the families of each axis."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from atlas.site import address
from atlas.site.templating import render
from atlas.taxonomy import Axis, Family
from atlas.views.context import Context
from atlas.views.standing import places

HERE = "timeline.md"
FIRST, LAST = 2011, 2026  # from Hogwild on; what is older stands in one row
BEFORE = FIRST - 1
Grid = dict[int, dict[str, list["Item"]]]


@dataclass(frozen=True, order=True)
class Item:
    """A technique or a system, in the order in which a cell lists them."""

    system: bool
    year: int
    name: str
    to: str
    says: str


@dataclass(frozen=True)
class Cell:
    """What a year brought to a family, and the column it stands in."""

    family: Family
    column: int
    items: list[Item]


@dataclass(frozen=True)
class Year:
    """A row: the families in which something appeared."""

    year: int
    cells: list[Cell]


@dataclass(frozen=True)
class Part:
    """One axis: how wide the columns of its families are, and its rows."""

    axis: Axis
    widths: dict[str, int]
    years: list[Year]


def timeline(ctx: Context) -> str:
    """All three axes, one below the other; a script shows one at a time."""
    axes = [_part(ctx, axis) for axis in ctx.atlas.axes]
    return render("timeline.html.j2", here=HERE, since=FIRST, axes=axes)


def grid(ctx: Context, axis: Axis) -> Grid:
    """Year -> family -> what appeared there and then."""
    out: Grid = defaultdict(lambda: defaultdict(list))
    for t in ctx.atlas.techniques.values():
        family = t.family if t.axis == axis.id else t.also.get(axis.id)
        if family:
            item = Item(False, t.since, t.name, f"{t.path}.md", t.summary)
            out[max(t.since, BEFORE)][family].append(item)
    for s in ctx.atlas.systems.values():
        item = Item(True, s.year, s.name, f"systems/{s.id}.md", s.summary)
        for place in places(ctx.atlas, s)[axis.id]:
            family = place.family.partition("/")[2]
            out[max(s.year, BEFORE)][family].append(item)
    return out


def years(ctx: Context) -> list[int]:
    """The rows: one for all that is older, then every year."""
    techniques = (t.since for t in ctx.atlas.techniques.values())
    systems = (s.year for s in ctx.atlas.systems.values())
    return list(range(BEFORE, max([LAST, *techniques, *systems]) + 1))


def widths(found: Grid, axis: Axis) -> dict[str, int]:
    """Family -> how wide its column is: by the root of how much stands in it."""
    counts = {
        f.id: sum(len(cells.get(f.id, ())) for cells in found.values())
        for f in axis.families
    }
    return {family: max(4, round(math.sqrt(n))) for family, n in counts.items()}


def _part(ctx: Context, axis: Axis) -> Part:
    found = grid(ctx, axis)
    rows = [Year(y, _cells(axis, found.get(y, {}))) for y in years(ctx)]
    return Part(axis, widths(found, axis), rows)


def _cells(axis: Axis, found: Mapping[str, list[Item]]) -> list[Cell]:
    return [
        Cell(f, column, sorted(found[f.id]))
        for column, f in enumerate(axis.families, 2)  # the first holds the years
        if f.id in found
    ]


# What docs/timeline.md may mark, as `{{ name }}`.
ASSETS = ("systems.css", "permalink.js", "chronology.js")
PLACES: Mapping[str, Callable[[Context], object]] = {
    "assets": lambda ctx: address.assets(HERE, *ASSETS),
    "timeline": timeline,
}
