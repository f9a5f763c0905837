"""Two to four systems or techniques side by side, differences first."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from markupsafe import Markup

from atlas.script.latex import latex
from atlas.site import address
from atlas.site.templating import markup, render, script_data
from atlas.site.text import slug
from atlas.taxonomy import Claim, System, Technique
from atlas.views.context import BACKENDS, Context, formula_of
from atlas.views.proof import all_hold
from atlas.views.standing import (
    FORWARD,
    by_age,
    likeness,
    places,
    proven,
    verified,
)

HERE = "compare.md"
PARTS = "assets/js/compare/"  # a script for each thing
STARTS = 9  # how many comparisons the page suggests, of systems and of techniques
RUNGS = {"gloo": "gloo", "dry": "dry run", "emulated": "emulated GPU", "nccl": "NCCL"}
# What is compared, in this order; a row that no choice has is left out.
ROWS = {
    "kind": "Kind",
    "year": "First appeared",
    "venue": "Published",
    "sync-strategy": "Sync strategy",
    "parameter-distribution": "Parameter distribution",
    "communication-pattern": "Communication pattern",
    "techniques": "Techniques",
    "split": "What is split",
    "optimizer": "Where the optimizer runs",
    "topology": "Who talks to whom",
    "use": "Use it when",
    "avoid": "Avoid it when",
    "pros": "What it gives",
    "cons": "What it costs",
    "claims": "Claims",
    "rungs": "Run by this project",
    "proven": "Techniques run here",
    "shown": "What the run cannot show",
    "production": "In production",
    "users": "Systems that use it",
    "hardware": "Hardware",
    "run": "Reported run",
    "status": "Status",
    "maker": "Made by",
    "license": "License",
    "surveys": "Named by surveys",
    "relations": "Relations",
    "papers": "Papers",
    "read": "Sources read",
}
Value = str | list[str | int]


def key(ctx: Context, ident: str, kind: str = "system") -> str:
    """A system's or a technique's name in the address of a comparison."""
    taken = kind == "technique" and ident in ctx.atlas.systems
    return f"technique.{ident}" if taken else ident


def compare_link(
    ctx: Context, ident: str, here: str, *others: str, kind: str = "system"
) -> str:
    """From the page `here`: the comparison of one thing with others of its kind."""
    chosen = zip("abcd", (ident, *others), strict=False)
    query = "&amp;".join(f"{slot}={key(ctx, i, kind)}" for slot, i in chosen)
    return address.link(here, f"{HERE}?{query}")


def scripts(ctx: Context) -> dict[str, str]:
    """A small script for each thing, which the page loads when it is chosen.

    All in one would make the page twice as heavy; and a page that is opened as a
    file can load a script, but no JSON.
    """
    out = {}
    for name, thing in things(ctx).items():
        body = json.dumps(thing, separators=(",", ":"), ensure_ascii=True)
        out[f"{PARTS}{name}.js"] = f'atlasCompare("{name}",{body})\n'
    return out


def comparison(ctx: Context) -> str:
    """What the script draws from; without it, the way to the same data."""
    systems = sorted(ctx.atlas.systems.values(), key=lambda s: (s.name.lower(), s.id))
    found = sorted(ctx.atlas.techniques.values(), key=lambda t: (t.name.lower(), t.id))
    return render(
        "compare.html.j2",
        here=HERE,
        spec=markup(script_data(_spec(ctx))),
        systems=[(f"systems/{s.id}.md", s.name) for s in systems],
        techniques=[(f"{t.path}.md", t.name) for t in found],
        starts=list(_starts(ctx)),
    )


def _spec(ctx: Context) -> dict[str, Any]:
    """What the script offers, by key, and where the rest of it lies."""
    index: list[Any] = [
        [key(ctx, s.id), s.name, "system", str(s.year), s.also_called]
        for s in ctx.atlas.systems.values()
    ]
    kind = "technique"
    index += [
        [key(ctx, t.id, kind), t.name, kind, str(t.since), t.also_called]
        for t in ctx.atlas.techniques.values()
    ]
    parts = address.link(HERE, PARTS)
    return {"rows": list(ROWS.items()), "index": index, "parts": parts}


def _starts(ctx: Context) -> Iterator[tuple[Markup, str, str]]:
    """Comparisons to begin with: where each is, and the names of both."""
    named: dict[str, Any] = {"system": ctx.atlas.systems}
    named["technique"] = ctx.atlas.techniques
    wanted = {"system": _systems(ctx), "technique": _techniques(ctx)}
    for kind, pairs in wanted.items():
        for one, other in starts(pairs):
            to = markup(compare_link(ctx, one, HERE, other, kind=kind))
            yield to, named[kind][one].name, named[kind][other].name


def _techniques(ctx: Context) -> list[tuple[str, str]]:
    """Neighbors that can both be run, in the order of the axes."""
    return [
        (t.id, other)
        for family in ctx.atlas.families.values()
        for t in ctx.of_family(family.axis, family.id)
        for other in t.see_also
        if ctx.written(t) and ctx.written(ctx.atlas.techniques[other])
    ]


def _systems(ctx: Context) -> list[tuple[str, str]]:
    """Those that the papers compare, then those most alike."""
    wanted = [
        (r.system, s.id)
        for kind in ("compares-with", "succeeds")
        for s in by_age(ctx.atlas)
        for r in s.relations
        if r.kind == kind
    ]
    alike = likeness(ctx.atlas)
    near = sorted(
        (-like.score, one, like.system) for one in alike for like in alike[one]
    )
    return wanted + [(one, other) for _, one, other in near]


def starts(wanted: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The first pairs, each once, and nothing in more than one of them."""
    used: set[str] = set()
    for one, other in wanted:
        pair = frozenset((one, other))
        if len(pair) < 2 or pair & used:
            continue
        used |= pair
        yield one, other
        if len(used) == 2 * STARTS:
            return


def things(ctx: Context) -> dict[str, Any]:
    """All that can be compared, by its key."""
    found = {key(ctx, s.id): _system(ctx, s) for s in ctx.atlas.systems.values()}
    for t in ctx.atlas.techniques.values():
        found[key(ctx, t.id, "technique")] = _technique(ctx, t)
    return found


def _thing(one: Any, to: str, rows: dict[str, list[Value]]) -> dict[str, Any]:
    return {
        "name": one.name,
        "to": address.link(HERE, to),
        "says": one.summary,
        "also": list(one.also_called),
        "rows": {row: values for row, values in rows.items() if values},
    }


def _system(ctx: Context, s: System) -> dict[str, Any]:
    rows: dict[str, list[Value]] = {"kind": ["system"], "year": [str(s.year)]}
    rows["venue"] = [str(s.venue_year)] if s.venue_year else []
    for axis, found in places(ctx.atlas, s).items():
        rows[axis] = [_family(ctx, p.family, p.verified) for p in found]
    rows["techniques"] = [_use(ctx, u.technique, u.verified) for u in s.uses]
    if p := s.parallelism:
        rows["split"] = [_said(kind, p.verified) for kind in p.value]
    if o := s.optimizer_location:
        rows["optimizer"] = [_said(o.value.replace("-", " "), o.verified)]
    if w := s.topology:
        rows["topology"] = [_said(w.value, w.verified)]
    for row, fact in (("hardware", s.hardware), ("run", s.reported_run)):
        rows[row] = [_said(fact.says, fact.verified)] if fact else []
    rows["proven"] = _share(*proven(ctx, s))
    rows["status"] = [s.status]
    rows["maker"] = [s.made_by] if s.made_by else []
    rows["license"] = [s.license] if s.license else []
    rows["surveys"] = [ctx.atlas.surveys[v].name for v in s.surveys]
    for r in s.relations:
        named = f"{FORWARD[r.kind]} {ctx.atlas.systems[r.system].name}"
        to = address.link(HERE, f"systems/{r.system}.md")
        rows.setdefault("relations", []).append(_said(named, r.verified, to))
    rows["papers"] = [_paper(ctx, k) for k in s.papers]
    rows["read"] = _share(*verified(s))
    return _thing(s, f"systems/{s.id}.md", rows)


def _technique(ctx: Context, t: Technique) -> dict[str, Any]:
    rows: dict[str, list[Value]] = {"kind": ["technique"], "year": [str(t.since)]}
    for axis, family in {t.axis: t.family, **t.also}.items():
        rows[axis] = [_family(ctx, f"{axis}/{family}", True)]
    rows["use"], rows["avoid"] = [t.use_when], [t.avoid_when]
    rows["pros"] = [t.pros] if t.pros else []
    rows["cons"] = [t.cons] if t.cons else []
    rows["claims"] = [_claim(c) for c in t.claims]
    rows["rungs"] = [_rung(ctx, t, b) for b in BACKENDS if ctx.sizes(t.id, b)]
    rows["rungs"] = rows["rungs"] or ["not yet"]
    rows["shown"] = [t.not_shown] if t.not_shown else []
    rows["production"] = [[p.name, p.source] for p in t.production]
    users = ctx.atlas.users(t.id)
    rows["users"] = [[s.name, address.link(HERE, f"systems/{s.id}.md")] for s in users]
    rows["surveys"] = [ctx.atlas.surveys[v].name for v in t.surveys]
    rows["papers"] = [_paper(ctx, k) for k in t.papers]
    return _thing(t, f"{t.path}.md", rows)


def _said(text: str, read: bool, to: str = "") -> Value:
    """A value: its text, where it leads, and 1 where it was not verified."""
    if read:
        return [text, to] if to else text
    return [text, to, 1]


def _family(ctx: Context, path: str, read: bool) -> Value:
    name = ctx.atlas.families[path].name
    return _said(name, read, address.link(HERE, f"{path}/index.md"))


def _use(ctx: Context, technique: str, read: bool) -> Value:
    t = ctx.atlas.techniques[technique]
    return _said(t.name, read, address.link(HERE, f"{t.path}.md"))


def _paper(ctx: Context, paper: str) -> Value:
    p = ctx.atlas.papers[paper]
    return [f"{p.title}, {p.year}", address.link(HERE, f"papers.md#{slug(paper)}")]


def _share(some: int, of: int) -> list[Value]:
    return [f"{some} of {of}"] if of else []


def _rung(ctx: Context, t: Technique, backend: str) -> str:
    word = "holds" if all_hold(ctx, t, backend) else "a claim does not hold"
    old = ", older source" if ctx.stale(t.id, backend) else ""
    return f"{RUNGS[backend]}: {word}{old}"


def _claim(claim: Claim) -> Value:
    """A claim, with its formula as LaTeX where it has one."""
    fn = formula_of(claim)
    return [claim.says, "", 0, latex(fn)] if fn else claim.says


# What docs/compare.md may mark, as `{{ name }}`.
ASSETS = ("systems.css", "permalink.js", "compare.js")
PLACES: Mapping[str, Callable[[Context], object]] = {
    "assets": lambda ctx: address.assets(HERE, *ASSETS),
    "comparison": comparison,
}
