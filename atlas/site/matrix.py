"""The map: sync strategy by parameter distribution, communication as a facet."""

from collections.abc import Iterator
from dataclasses import dataclass

from atlas.site import address
from atlas.site.overview import LADDER, RUNGS, climbed
from atlas.site.text import attr, front, listing, md, raw
from atlas.taxonomy import Axis, Family, System, Technique
from atlas.views import standing
from atlas.views.context import BACKENDS, Context

HERE = "map.md"
DOWN, ACROSS, FACET = (
    "sync-strategy",
    "parameter-distribution",
    "communication-pattern",
)
NONE = "no known system"
SIGNS = "●○"  # proven on this rung, or not


@dataclass(frozen=True)
class Cell:
    """What stands where a row meets a column."""

    row: Family
    column: Family
    techniques: tuple[Technique, ...]
    systems: tuple[System, ...]

    @property
    def id(self) -> str:
        return f"{self.row.id}.{self.column.id}"


def coordinates(t: Technique) -> dict[str, str]:
    """Axis -> family: its home, and where else it says it belongs."""
    return {**t.also, t.axis: t.family}


def families(ctx: Context, s: System) -> dict[str, set[str]]:
    """Axis -> the families that the system's file puts it in."""
    found = standing.places(ctx.atlas, s)
    return {
        axis: {p.family.partition("/")[2] for p in on} for axis, on in found.items()
    }


def cells(ctx: Context) -> list[list[Cell]]:
    """The matrix, row by row."""
    axes = {a.id: a for a in ctx.atlas.axes}
    systems = [(s, families(ctx, s)) for s in standing.by_age(ctx.atlas)]
    techniques = sorted(ctx.atlas.techniques.values(), key=lambda t: (t.since, t.id))
    placed = [(t, coordinates(t)) for t in techniques]
    return [
        [
            Cell(
                row,
                column,
                tuple(
                    t
                    for t, at in placed
                    if (at.get(DOWN), at.get(ACROSS)) == (row.id, column.id)
                ),
                tuple(
                    s
                    for s, on in systems
                    if row.id in on[DOWN] and column.id in on[ACROSS]
                ),
            )
            for column in axes[ACROSS].families
        ]
        for row in axes[DOWN].families
    ]


def page(ctx: Context) -> str:
    """The whole view."""
    rows = cells(ctx)
    full = [c for row in rows for c in row if c.techniques or c.systems]
    parts = [
        front(
            "Map",
            description="Who agrees when, and holds what.",
            hide=["navigation", "toc"],
        ),
        "# The map",
        '<p class="lede">When do the workers agree, and who holds what? Every '
        "technique and every system stands where its two answers meet.</p>",
        address.assets(HERE, "views.css", "map.js"),
        _legend(ctx, rows),
        _facets(ctx),
        _table(ctx, rows),
        raw(f'<div class="cells">{"".join(_section(ctx, c) for c in full)}</div>'),
        _unplaced(ctx),
    ]
    return "\n\n".join(p for p in parts if p) + "\n"


def _legend(ctx: Context, rows: list[list[Cell]]) -> str:
    full = sum(bool(c.techniques or c.systems) for row in rows for c in row)
    known = sum(bool(c.systems) for row in rows for c in row)
    of = sum(map(len, rows))
    steps = "".join(
        f'<span class="lit-{k}">{SIGNS[0] * k}{SIGNS[1] * (4 - k)}</span>'
        for k in range(5)
    )
    return (
        f"<p>Of {of} cells {full} hold something, and {known} hold a known system. "
        "The signs count where techniques of the cell were run and every claim held: "
        f"on {listing(RUNGS[b] for b in BACKENDS)}, in this order. A technique has one "
        "place; a system stands wherever it has both families, as its file says with "
        "its sources.</p>"
        f'<p class="map-key quiet"><span>none</span>{steps}<span>all four</span></p>'
    )


def _facets(ctx: Context) -> str:
    axis = next(a for a in ctx.atlas.axes if a.id == FACET)
    chips = "".join(
        f'<label class="chip"><input type="checkbox" name="c" value="{f.id}">'
        f"{md(f.name)} <output></output></label>"
        for f in axis.families
    )
    return (
        '<form class="facets" id="facets" hidden>'
        f"<fieldset><legend>{md(axis.question)}</legend>{chips}</fieldset>"
        "<fieldset><legend>Show what has</legend>"
        '<label class="chip"><input type="radio" name="mode" value="any" checked>any '
        "of "
        'these</label><label class="chip"><input type="radio" name="mode" '
        'value="all">all of these</label></fieldset>'
        '<p><button type="reset">Show everything</button> '
        '<output class="hits" aria-live="polite"></output></p></form>'
    )


def _table(ctx: Context, rows: list[list[Cell]]) -> str:
    heads = "".join(f'<th scope="col">{_family(c.column)}</th>' for c in rows[0])
    body = "".join(
        f'<tr><th scope="row">{_family(row[0].row)}{_missing(row)}</th>'
        f"{''.join(_cell(ctx, c) for c in row)}</tr>"
        for row in rows
    )
    return raw(
        '<div class="matrix-box"><table class="matrix"><caption class="sr">Rows: when '
        "the workers agree. Columns: who holds what.</caption>"
        f"<thead><tr><td></td>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _family(f: Family) -> str:
    to = address.link(HERE, f"{f.path}/index.md")
    return f'<a href="{to}">{md(f.name)}</a>'


def _missing(row: list[Cell]) -> str:
    """For a narrow screen, where empty cells are left out: which they are."""
    empty = [md(c.column.name) for c in row if not c.techniques and not c.systems]
    return f'<span class="missing">{NONE}: {", ".join(empty)}</span>' if empty else ""


def counted(n: int, what: str) -> str:
    """One system, two systems."""
    return f"{n} {what}{'' if n == 1 else 's'}"


def proof(ctx: Context, techniques: tuple[Technique, ...]) -> str:
    """Which rungs any of the techniques has climbed, as four digits."""
    marks = [climbed(ctx, t) for t in techniques]
    return "".join("1" if any(m[k] == "1" for m in marks) else "0" for k in range(4))


def signs(digits: str) -> str:
    """The four digits as signs."""
    return "".join(SIGNS[0] if d == "1" else SIGNS[1] for d in digits)


def spoken(digits: str) -> str:
    """The four digits in words."""
    found = [RUNGS[b] for b, d in zip(LADDER, digits, strict=True) if d == "1"]
    return f"proven on {listing(found)}" if found else "nothing proven yet"


def _cell(ctx: Context, c: Cell) -> str:
    label = f'data-column="{attr(c.column.name)}"'
    if not c.techniques and not c.systems:
        return f'<td class="empty" {label}><span class="none">{NONE}</span></td>'
    digits = proof(ctx, c.techniques)
    techniques = counted(len(c.techniques), "technique") if c.techniques else ""
    systems = counted(len(c.systems), "system") if c.systems else NONE
    return (
        f'<td class="lit-{digits.count("1")}" data-cell="{c.id}" {label}>'
        f'<a href="#{c.id}"><span class="t">{techniques}</span> '
        f'<span class="s">{systems}</span> <span class="signs" aria-hidden="true">'
        f'{signs(digits)}</span><span class="sr">{spoken(digits)}</span></a></td>'
    )


def _section(ctx: Context, c: Cell) -> str:
    techniques = "".join(_technique(ctx, t) for t in c.techniques)
    systems = "".join(_system(ctx, s) for s in c.systems)
    said = (
        f"<h4>Systems</h4><ul>{systems}</ul>"
        if systems
        else f"<p>{NONE.capitalize()}.</p>"
    )
    return (
        f'<section class="cell" id="{c.id}" tabindex="-1" '
        f'aria-label="{attr(c.row.name)}, '
        f'{attr(c.column.name)}"><h3>{md(c.row.name)} × {md(c.column.name)}</h3>'
        + (f'<h4>Techniques</h4><ul class="t">{techniques}</ul>' if techniques else "")
        + f'<div class="s">{said}</div></section>'
    )


def _technique(ctx: Context, t: Technique) -> str:
    to = address.link(HERE, f"{t.path}.md")
    digits = climbed(ctx, t)
    facet = coordinates(t).get(FACET, "")
    note = signs(digits) if ctx.written(t) else "exemplar not written yet"
    return (
        f'<li data-c="{facet}" data-proof="{digits}"><a href="{to}">{md(t.name)}</a> '
        f'<span class="quiet" title="{spoken(digits)}">{note}</span></li>'
    )


def _system(ctx: Context, s: System) -> str:
    to = address.link(HERE, f"systems/{s.id}.md")
    facet = " ".join(sorted(families(ctx, s)[FACET]))
    return (
        f'<li data-c="{facet}"><a href="{to}">{md(s.name)}</a> '
        f'<span class="quiet">{s.year}</span></li>'
    )


def _unplaced(ctx: Context) -> str:
    """What has no place for want of an answer: said, not hidden."""
    left = [
        f'<a href="{address.link(HERE, path)}">{md(name)}</a> ({why})'
        for path, name, why in (*_stray_techniques(ctx), *_stray_systems(ctx))
    ]
    if not left:
        return ""
    return f'<p class="quiet">Without a place here: {", ".join(left)}.</p>'


def _stray_techniques(ctx: Context) -> Iterator[tuple[str, str, str]]:
    for t in ctx.atlas.techniques.values():
        if why := _lacks(ctx.atlas.axes, set(coordinates(t))):
            yield f"{t.path}.md", t.name, why


def _stray_systems(ctx: Context) -> Iterator[tuple[str, str, str]]:
    for s in ctx.atlas.systems.values():
        has = {axis for axis, on in families(ctx, s).items() if on}
        if why := _lacks(ctx.atlas.axes, has):
            yield f"systems/{s.id}.md", s.name, why


def _lacks(axes: tuple[Axis, ...], has: set[str]) -> str:
    names = [
        md(a.name.lower()) for a in axes if a.id in (DOWN, ACROSS) and a.id not in has
    ]
    return f"no {listing(names, 'or')} recorded" if names else ""
