"""Axes and families: what the choice is, and the techniques side by side."""

import json
from collections.abc import Iterable, Iterator, Sequence

from atlas.knowledge import Axis, Claim, Family, Technique
from atlas.site import address, race, sizes, standing
from atlas.site.context import Context, formula_of, latex
from atlas.site.evidence import COUNTED, tex
from atlas.site.overview import proven
from atlas.site.sizes import Rule
from atlas.site.text import attr, front, md, number, raw

ASSETS = ("views.css", "formulas.js", "sliders.js")
MOST = 3  # figures in a cell of an axis; the family's page has all
SKIPPED = ("three_d_place",)  # a rank's name is not a quantity


def axis_page(ctx: Context, axis: Axis) -> str:
    """An axis: its question, its answers, and all its techniques in one table."""
    here = f"{axis.id}/index.md"
    techniques = [t for f in axis.families for t in ctx.of_family(axis.id, f.id)]
    side = ["No technique of this axis is described yet."]
    if techniques:
        side = [_intro(), _with_sliders(_summary(ctx, axis, here))]
        side.append(_assumed(ctx, techniques))
    parts = [
        front(axis.name, description=axis.question),
        f"# {md(axis.name)}",
        f'<p class="lede">{md(axis.question)}</p>',
        "".join(f"<p>{md(text)}</p>" for text in axis.explains),
        address.assets(here, *ASSETS),
        "## Which, and when",
        _families(ctx, axis, here),
        "## Side by side",
        *side,
        *_race(ctx, axis, here),
        "## Systems",
        _systems(ctx, axis, here),
    ]
    return "\n\n".join(p for p in parts if p) + "\n"


def _race(ctx: Context, axis: Axis, here: str) -> Iterator[str]:
    """How the strategies learn from the same samples, where that is the question."""
    if axis.id == "sync-strategy" and race.study(ctx):
        yield address.assets(here, "studies.css", "race.js")
        yield from race.section(ctx)


def family_page(ctx: Context, axis: Axis, family: Family) -> str:
    """A family: what it means, its techniques, their numbers, who is in it."""
    here = f"{family.path}/index.md"
    found = ctx.of_family(axis.id, family.id)
    up = address.link(here, f"{axis.id}/index.md")
    parts = [
        front(family.name, description=family.summary),
        f'<p class="crumb"><a href="{up}">{md(axis.name)}</a></p>',
        f"# {md(family.name)}",
        f'<p class="lede">{md(family.summary)}</p>',
        f"<p>{md(family.explains)}</p>" if family.explains else "",
        address.assets(here, *ASSETS),
        "## Techniques",
        _techniques(ctx, found, here),
        *_side_by_side(ctx, found, here),
        *_visitors(ctx, axis, family, here),
        "## Systems",
        _systems_of(ctx, family, here),
    ]
    return "\n\n".join(p for p in parts if p) + "\n"


def _a(here: str, there: str, name: str) -> str:
    return f'<a href="{address.link(here, there)}">{md(name)}</a>'


# Words


def _families(ctx: Context, axis: Axis, here: str) -> str:
    rows = []
    for f in axis.families:
        found = ctx.of_family(axis.id, f.id)
        names = ", ".join(_a(here, f"{t.path}.md", t.name) for t in found)
        rows.append(
            f'<dt id="{f.id}">{_a(here, f"{f.path}/index.md", f.name)} '
            f'<span class="count">{len(found)}</span></dt><dd>{md(f.summary)}'
            f'<div class="quiet">{names or "No technique is described yet."}</div></dd>'
        )
    return f'<dl class="answers">{"".join(rows)}</dl>'


def _techniques(ctx: Context, found: Sequence[Technique], here: str) -> str:
    if not found:
        return "No technique of this family is described yet."
    rows = [
        f"<article><h3>{_a(here, f'{t.path}.md', t.name)} "
        f'<span class="count">{t.since}</span> '
        f"{proven(ctx, t)}</h3><p>{md(t.summary)}</p>"
        f'<dl class="when"><div><dt>Use it when</dt><dd>{md(t.use_when)}</dd></div>'
        f"<div><dt>Avoid it when</dt><dd>{md(t.avoid_when)}</dd></div></dl></article>"
        for t in found
    ]
    return f'<div class="members">{"".join(rows)}</div>'


def _visitors(ctx: Context, axis: Axis, family: Family, here: str) -> Iterator[str]:
    guests = [
        t for t in ctx.atlas.techniques.values() if t.also.get(axis.id) == family.id
    ]
    if guests:
        guests.sort(key=lambda t: (t.since, t.id))
        yield "## At home elsewhere, but also this"
        yield _listed(
            f"{_a(here, f'{t.path}.md', t.name)}: {md(t.summary)}" for t in guests
        )


def _listed(items: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{i}</li>' for i in items)}</ul>"


def _members(ctx: Context, family: Family) -> list[str]:
    """The systems that a family holds, oldest first, by id."""
    return [
        s.id
        for s in standing.by_age(ctx.atlas)
        if family.path in standing.homes(ctx.atlas, s)
    ]


def _systems_of(ctx: Context, family: Family, here: str) -> str:
    found = [ctx.atlas.systems[i] for i in _members(ctx, family)]
    if not found:
        return "No system in the atlas is recorded in this family: no known system."
    return _listed(
        f"{_a(here, f'systems/{s.id}.md', s.name)}, {s.year}: {md(s.summary)}"
        for s in found
    )


def _systems(ctx: Context, axis: Axis, here: str) -> str:
    rows = []
    for f in axis.families:
        found = [ctx.atlas.systems[i] for i in _members(ctx, f)]
        names = ", ".join(_a(here, f"systems/{s.id}.md", s.name) for s in found)
        rows.append(
            f'<dt>{md(f.name)} <span class="count">{len(found)}</span></dt>'
            f"<dd>{names or 'No known system.'}</dd>"
        )
    return f'<dl class="answers">{"".join(rows)}</dl>'


# Numbers


def _intro() -> str:
    return (
        f"<p>Numbers of the formulas, for p = {sizes.P} ranks and a model of n = "
        f"{number(sizes.N)} elements of 4 bytes, one step, unless the list "
        "below says otherwise. Where ranks differ, the least and the most of the "
        "first, the second and the last one are shown.</p>"
    )


def _sliders() -> str:
    return (
        '<form class="sliders" hidden><label for="slide-p">Ranks, p</label>'
        '<input type="range" id="slide-p" min="1" max="10" step="0.125" value="3">'
        f'<output for="slide-p" id="shown-p">{sizes.P}</output>'
        '<label for="slide-n">Size, n</label>'
        '<input type="range" id="slide-n" min="3" max="10" step="0.125" value="8">'
        '<output for="slide-n" id="shown-n">100 M</output>'
        '<button type="reset">Reset</button></form>'
    )


def counting(t: Technique) -> list[Claim]:
    """The technique's claims that are numbers of a formula."""
    return [
        c
        for c in t.claims
        if c.kind in COUNTED and c.formula and c.formula not in SKIPPED
    ]


def _recorded(ctx: Context, t: Technique) -> dict[str, object]:
    run = ctx.card_run(t.id)
    return dict(run["given"]) if run else {}


def figure(ctx: Context, t: Technique, claim: Claim) -> str:
    """A number that follows the sliders, with what it stands at first."""
    try:
        rules = sizes.given(t, claim, _recorded(ctx, t))
        limit = _limit(ctx, t)
        if limit is not None and claim.id != "ranks" and limit < sizes.P:
            shown = f"at most {limit} ranks"
        else:
            found = sizes.values(claim, rules, sizes.P, sizes.N)
            shown = sizes.spread(found, sizes.unit(claim))
    except KeyError as missing:
        return f'<span class="quiet">{attr(missing)} not given</span>'
    except ValueError as refused:
        shown = str(refused)
    data = [
        [name, [v.of, v.power, v.plus, v.by] if isinstance(v, Rule) else v]
        for name, v in rules
    ]
    more = f' data-limit="{limit}"' if limit is not None and claim.id != "ranks" else ""
    packed = attr(json.dumps(data, separators=(",", ":")))
    return (
        f'<output data-f="{claim.formula}" data-a="{packed}" '
        f'data-u="{sizes.unit(claim)}"{more}>{attr(shown)}</output>'
    )


def _limit(ctx: Context, t: Technique) -> int | None:
    """The most ranks it can use, where a claim says so."""
    for claim in t.claims:
        if claim.id == "ranks" and claim.kind == "bound" and claim.formula:
            rules = sizes.given(t, claim, _recorded(ctx, t))
            return int(sizes.values(claim, rules, sizes.P, sizes.N)[0])
    return None


def _given(ctx: Context, t: Technique, claims: Iterable[Claim]) -> str:
    """What the formulas of a technique are given, in words."""
    found: dict[str, str] = {}
    for claim in claims:
        try:
            rules = sizes.given(t, claim, _recorded(ctx, t))
        except KeyError:
            continue
        for name, v in rules:
            if name not in ("p", "r") and not (name == "n" and v == sizes.SIZE):
                found[name] = v.says if isinstance(v, Rule) else number(v)
    return ", ".join(f"{name} = {value}" for name, value in sorted(found.items()))


def _side_by_side(ctx: Context, found: Sequence[Technique], here: str) -> Iterator[str]:
    if not found:
        return
    yield "## Side by side"
    if any(counting(t) for t in found):
        yield _intro()
        yield _with_sliders(_numbers(ctx, found, here))
    bare = [t for t in found if not counting(t)]
    if bare:
        names = ", ".join(_a(here, f"{t.path}.md", t.name) for t in bare)
        yield f'<p class="quiet">Nothing counted by a formula yet: {names}.</p>'
    yield _assumed(ctx, found)


def _assumed(ctx: Context, found: Sequence[Technique]) -> str:
    """What the formulas are given beside p and n, folded away."""
    said = [
        f"{md(t.name)}: {md(g)}" for t in found if (g := _given(ctx, t, counting(t)))
    ]
    if not said:
        return ""
    return raw(
        '<details class="ranks"><summary>What the formulas are given</summary>'
        f"{_listed(said)}</details>"
    )


def _numbers(ctx: Context, found: Sequence[Technique], here: str) -> str:
    """Every number of every technique, the same quantity together."""
    bodies = []
    for kind, title in sizes.QUANTITIES:
        rows = [
            f'<tr><th scope="row">{_a(here, f"{t.path}.md", t.name)}</th>'
            f"<td>{md(c.says)}</td><td>{figure(ctx, t, c)}</td>"
            f"<td>{tex(latex(formula_of(c)))}</td></tr>"
            for t in found
            for c in counting(t)
            if sizes.kind(c) == kind
        ]
        if rows:
            bodies.append(
                '<tbody><tr class="group"><th colspan="4" '
                f'scope="rowgroup">{title}</th>'
                f"</tr>{''.join(rows)}</tbody>"
            )
    heads = "<th>technique</th><th>what</th><th>value</th><th>formula</th>"
    return _wide(f"<thead><tr>{heads}</tr></thead>{''.join(bodies)}", "numbers")


def _with_sliders(table: str) -> str:
    """Together in a box: the sliders stay in sight as long as their table does."""
    return raw(f"<div>{_sliders()}{table}</div>")


def _wide(inside: str, kind: str) -> str:
    return (
        '<div class="wide tall" tabindex="0" role="region" aria-label="Side by side">'
        f'<table class="{kind}">{inside}</table></div>'
    )


def _summary(ctx: Context, axis: Axis, here: str) -> str:
    """One row a technique, one column a quantity: its first claims of each."""
    groups = [(f, ctx.of_family(axis.id, f.id)) for f in axis.families]
    used = {sizes.kind(c) for _, found in groups for t in found for c in counting(t)}
    kinds = [(k, title) for k, title in sizes.QUANTITIES if k in used]
    bodies = []
    for f, found in groups:
        rows = "".join(_row(ctx, t, [k for k, _ in kinds], here) for t in found)
        head = _a(here, f"{f.path}/index.md", f.name)
        if not found:
            rows = f'<tr><td colspan="{len(kinds) + 1}">no technique yet</td></tr>'
        bodies.append(
            f'<tbody><tr class="group"><th colspan="{len(kinds) + 1}" scope="rowgroup">'
            f"{head}</th></tr>{rows}</tbody>"
        )
    heads = "".join(f"<th>{title}</th>" for _, title in kinds)
    head = f"<thead><tr><th>technique</th>{heads}</tr></thead>"
    return _wide(head + "".join(bodies), "summary")


def _row(ctx: Context, t: Technique, kinds: Sequence[str], here: str) -> str:
    name = f'<th scope="row">{_a(here, f"{t.path}.md", t.name)}</th>'
    claims = counting(t)
    if not claims:
        word = "not counted yet" if ctx.written(t) else "exemplar not written yet"
        return f'<tr>{name}<td class="quiet" colspan="{len(kinds)}">{word}</td></tr>'
    cells = []
    for kind in kinds:
        mine = [c for c in claims if sizes.kind(c) == kind]
        cells.append(f"<td>{'<br>'.join(_labelled(ctx, t, mine))}</td>")
    return f"<tr>{name}{''.join(cells)}</tr>"


def _labelled(ctx: Context, t: Technique, claims: Sequence[Claim]) -> Iterator[str]:
    """The first few figures of a cell; where there are several, with their names."""
    for claim in claims[:MOST]:
        label = claim.id.replace("_", " ") if len(claims) > 1 else ""
        said = f' <span class="quiet">{attr(label)}</span>' if label else ""
        yield (
            f'<span title="{attr(claim.says)}">{figure(ctx, t, claim)}{said}'
            f'<span class="sr"> {attr(claim.says)}</span></span>'
        )
