"""The timeline: systems and techniques by year, in the families of each axis."""

import math
from collections import defaultdict
from dataclasses import dataclass

from atlas.site import address
from atlas.site.text import attr, front, md, raw
from atlas.taxonomy import Axis
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


def page(ctx: Context) -> str:
    """All three axes, one below the other; a script shows one at a time."""
    about = "Techniques and systems by year, in the families of each axis."
    head = front("Timeline", description=about, hide=["navigation", "toc"])
    sections = "\n".join(_axis(ctx, axis) for axis in ctx.atlas.axes)
    parts = [
        head + address.assets(HERE, "systems.css", "permalink.js", "chronology.js"),
        "# Timeline",
        f"{about} A technique stands in the year of its first paper, a system in the "
        "year in which it first appeared, in every family it belongs to. "
        '<span class="t-key technique">technique</span> '
        '<span class="t-key system">system</span>',
        raw(f'<section class="timeline-view">\n{sections}\n</section>'),
    ]
    return "\n\n".join(parts) + "\n"


def grid(ctx: Context, axis: Axis) -> Grid:
    """Year -> family -> what appeared there and then."""
    out: Grid = defaultdict(lambda: defaultdict(list))
    for t in ctx.atlas.techniques.values():
        family = t.family if t.axis == axis.id else t.also.get(axis.id)
        if family:
            to = address.link(HERE, f"{t.path}.md")
            item = Item(False, t.since, t.name, to, t.summary)
            out[max(t.since, BEFORE)][family].append(item)
    for s in ctx.atlas.systems.values():
        to = address.link(HERE, f"systems/{s.id}.md")
        item = Item(True, s.year, s.name, to, s.summary)
        for place in places(ctx.atlas, s)[axis.id]:
            family = place.family.partition("/")[2]
            out[max(s.year, BEFORE)][family].append(item)
    return out


def years(ctx: Context) -> list[int]:
    """The rows: one for all that is older, then every year."""
    techniques = (t.since for t in ctx.atlas.techniques.values())
    systems = (s.year for s in ctx.atlas.systems.values())
    return list(range(BEFORE, max([LAST, *techniques, *systems]) + 1))


def weights(found: Grid, axis: Axis) -> dict[str, int]:
    """Family -> how wide its column is: by the root of how much stands in it."""
    counts = {
        f.id: sum(len(cells.get(f.id, ())) for cells in found.values())
        for f in axis.families
    }
    return {family: max(4, round(math.sqrt(n))) for family, n in counts.items()}


def _axis(ctx: Context, axis: Axis) -> str:
    found = grid(ctx, axis)
    width = weights(found, axis)
    columns = " ".join(f"minmax(0,{w}fr)" for w in width.values())
    heads = "".join(
        f'<li data-family="{f.id}" data-width="{width[f.id]}"><a href="'
        f'{address.link(HERE, f"{f.path}/index.md")}">{md(f.name)}</a></li>'
        for f in axis.families
    )
    rows = "\n".join(_year(axis, y, found.get(y, {})) for y in years(ctx))
    return (
        f'<div class="t-axis" id="{axis.id}" style="--columns:{columns}">\n'
        f"<h2>{md(axis.name)}: {md(axis.question)}</h2>\n"
        f'<div class="t-box" role="region" tabindex="0" aria-label="{attr(axis.name)} '
        f'by year">\n<ul class="t-heads" aria-label="Families">{heads}</ul>\n'
        f'<ol class="t-years">\n{rows}\n</ol>\n</div>\n</div>'
    )


def _year(axis: Axis, year: int, cells: dict[str, list[Item]]) -> str:
    label = f"before {FIRST}" if year == BEFORE else str(year)
    body = "".join(
        f'<div class="t-cell" data-family="{f.id}" style="--k:{at}">'
        f"<b>{md(f.name)}</b><ul>{_items(cells[f.id])}</ul></div>"
        for at, f in enumerate(axis.families, 2)
        if f.id in cells
    )
    # one anchor a year: the first section has it
    here = f' id="y{year}"' if axis.id == "sync-strategy" else ""
    empty = "" if body else ' class="t-none"'
    return f'<li data-year="{year}"{here}{empty}><h3>{label}</h3>{body}</li>'


def _items(found: list[Item]) -> str:
    return "".join(_item(item) for item in sorted(found))


def _item(item: Item) -> str:
    kind = "system" if item.system else "technique"
    old = f" ({item.year})" if item.year < FIRST else ""
    return (
        f'<li class="{kind}"><a href="{item.to}" title="{attr(item.says)}">'
        f"{md(item.name)}</a>{old}</li>"
    )
