"""Axes and families: what the choice is, and the techniques side by side."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from atlas.formulas import FORMULAS
from atlas.script.formulas import javascript
from atlas.site import address, collectives, race
from atlas.site.overview import proven
from atlas.site.templating import macro, markup, render
from atlas.site.text import front
from atlas.taxonomy import Axis, Claim, Facet, Family, System, Technique
from atlas.views import compressors, proof, sizes, standing
from atlas.views.context import Context
from atlas.views.proof import COUNTED
from atlas.views.race import study
from atlas.views.sizes import Rule
from atlas.views.words import number

ASSETS = ("views.css", "sliders.js")
#: The axis and the family whose techniques have a page of timings.
COLLECTIVE = ("communication-pattern", "collective")
MOST = 3  # figures in a cell of an axis; the family's page has all


def script_of(axis: Axis) -> str:
    """The file with the formulas of an axis: a page loads no others."""
    return f"formulas-{axis.id}.js"


def script(ctx: Context, axis: Axis) -> str:
    """The formulas that the techniques of an axis claim."""
    claims = [
        c for t in ctx.atlas.techniques.values() if t.axis == axis.id for c in t.claims
    ]
    names = dict.fromkeys(c.formula for c in claims if c.formula)
    return javascript(FORMULAS[name] for name in names if name in FORMULAS)


def axis_page(ctx: Context, axis: Axis) -> str:
    """An axis: its question, its answers, and all its techniques in one table."""
    here = f"{axis.id}/index.md"
    groups = [(f, ctx.of_family(axis.id, f.id)) for f in axis.families]
    techniques = [t for _, found in groups for t in found]
    used = {sizes.kind(c) for t in techniques for c in counting(t)}
    kinds = [(k, title) for k, title in sizes.QUANTITIES if k in used]
    rows = [(f, [_row(ctx, t, [k for k, _ in kinds]) for t in ts]) for f, ts in groups]
    made = render(
        "axis.md.j2",
        here=here,
        axis=axis,
        front=markup(front(axis.name, description=axis.question)),
        styles=markup(address.assets(here, script_of(axis), *ASSETS)),
        facets=[_facet(ctx, facet) for facet in axis.facets],
        families=[(f, found, _members(ctx, f)) for f, found in groups],
        kinds=[title for _, title in kinds],
        rows=rows if techniques else [],
        given=list(_assumed(ctx, techniques)),
        race=[markup(part) for part in _race(ctx, axis, here)],
        collectives=axis.id == COLLECTIVE[0] and collectives.found(ctx) is not None,
        compressed=axis.id == compressors.AXIS,
        p=sizes.P,
        n=sizes.N,
    )
    return made.strip() + "\n"


def _facet(ctx: Context, facet: Facet) -> dict[str, Any]:
    """A facet with the techniques of each of its families."""
    families = [(f, ctx.of_family(f.axis, f.id)) for f in facet.families]
    return {**vars(facet), "families": families}


def _race(ctx: Context, axis: Axis, here: str) -> Iterator[str]:
    """How the strategies learn from the same samples, where that is the question."""
    if axis.id == "sync-strategy" and study(ctx):
        yield address.assets(here, "studies.css", "race.js")
        yield from race.section(ctx)


def family_page(ctx: Context, axis: Axis, family: Family) -> str:
    """A family: what it means, its techniques, their numbers, who is in it."""
    here = f"{family.path}/index.md"
    found = ctx.of_family(axis.id, family.id)
    guests = [
        t for t in ctx.atlas.techniques.values() if t.also.get(axis.id) == family.id
    ]
    made = render(
        "family.md.j2",
        here=here,
        axis=axis,
        family=family,
        facet=next(f for f in axis.facets if f.id == family.facet),
        front=markup(front(family.name, description=family.summary)),
        styles=markup(address.assets(here, script_of(axis), *ASSETS)),
        techniques=[(t, markup(proven(ctx, t))) for t in found],
        groups=list(_numbers(ctx, found)),
        collectives=(axis.id, family.id) == COLLECTIVE
        and collectives.found(ctx) is not None,
        compressed=(axis.id, family.id) in compressors.HOMES,
        bare=[t for t in found if not counting(t)],
        given=list(_assumed(ctx, found)),
        guests=sorted(guests, key=lambda t: (t.since, t.id)),
        members=_members(ctx, family),
        p=sizes.P,
        n=sizes.N,
    )
    return made.strip() + "\n"


def _members(ctx: Context, family: Family) -> list[System]:
    """The systems that a family holds, oldest first."""
    return [
        s
        for s in standing.by_age(ctx.atlas)
        if family.path in standing.homes(ctx.atlas, s)
    ]


# Numbers


def counting(t: Technique) -> list[Claim]:
    """The technique's claims that are numbers of a formula."""
    return [c for c in t.claims if c.kind in COUNTED and c.formula]


def _recorded(ctx: Context, t: Technique) -> dict[str, object]:
    run = ctx.card_run(t.id)
    return dict(run["given"]) if run else {}


@dataclass(frozen=True)
class Figure:
    """A number that follows the sliders; missing: the argument that is not known."""

    formula: str
    arguments: str = ""
    unit: str = ""
    limit: int | None = None
    shown: str = ""
    missing: str = ""


def figure(ctx: Context, t: Technique, claim: Claim) -> str:
    """The number as the tables have it."""
    return macro("family_parts.html.j2", "figure", _figure(ctx, t, claim))


def _figure(ctx: Context, t: Technique, claim: Claim) -> Figure:
    assert claim.formula is not None
    limit = sizes.most(t)
    try:
        rules = sizes.given(t, claim, _recorded(ctx, t))
        if limit is not None and limit < sizes.P:
            shown = f"at most {limit} ranks"
        else:
            found = sizes.values(claim, rules, sizes.P, sizes.N)
            shown = sizes.spread(found, sizes.unit(claim))
    except KeyError as missing:
        return Figure(claim.formula, missing=str(missing))
    except ValueError as refused:
        shown = str(refused)
    data = [
        [name, [v.of, v.power, v.plus, v.by] if isinstance(v, Rule) else v]
        for name, v in rules
    ]
    packed = json.dumps(data, separators=(",", ":"))
    return Figure(claim.formula, packed, sizes.unit(claim), limit, shown)


def _given(ctx: Context, t: Technique, claims: Iterable[Claim]) -> str:
    """What the formulas of a technique are given, in words."""
    found: dict[str, str] = {}
    for claim in claims:
        try:
            rules = sizes.given(t, claim, _recorded(ctx, t))
        except KeyError:
            continue
        for name, v in rules:
            plain = name == "elements" and v == sizes.SIZE
            if name not in ("ranks", "rank") and not plain:
                found[name] = v.says if isinstance(v, Rule) else number(v)
    return ", ".join(f"{name} = {value}" for name, value in sorted(found.items()))


def _assumed(
    ctx: Context, found: Sequence[Technique]
) -> Iterator[tuple[Technique, str]]:
    """What the formulas are given beside p and n."""
    for t in found:
        if given := _given(ctx, t, counting(t)):
            yield t, given


@dataclass(frozen=True)
class Number:
    """A claim in the table of a family."""

    technique: Technique
    says: str
    figure: Figure
    formula: proof.Formula | None


def _numbers(
    ctx: Context, found: Sequence[Technique]
) -> Iterator[tuple[str, list[Number]]]:
    """Every number of every technique, the same quantity together."""
    for kind, title in sizes.QUANTITIES:
        rows = [
            Number(t, c.says, _figure(ctx, t, c), proof.formula(ctx, c))
            for t in found
            for c in counting(t)
            if sizes.kind(c) == kind
        ]
        if rows:
            yield title, rows


@dataclass(frozen=True)
class Labeled:
    """A figure of a cell; where there are several, with its name."""

    says: str
    label: str
    figure: Figure


@dataclass(frozen=True)
class Row:
    """A technique in the table of an axis; no cells: nothing counted."""

    technique: Technique
    written: bool
    cells: list[list[Labeled]]


def _row(ctx: Context, t: Technique, kinds: Sequence[str]) -> Row:
    claims = counting(t)
    if not claims:
        return Row(t, ctx.written(t), [])
    of_kind = [[c for c in claims if sizes.kind(c) == kind] for kind in kinds]
    return Row(t, ctx.written(t), [list(_labeled(ctx, t, cell)) for cell in of_kind])


def _labeled(ctx: Context, t: Technique, claims: Sequence[Claim]) -> Iterator[Labeled]:
    for claim in claims[:MOST]:
        label = claim.id.replace("_", " ") if len(claims) > 1 else ""
        yield Labeled(claim.says, label, _figure(ctx, t, claim))
