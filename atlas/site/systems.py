"""All systems as one table, which a script lets the reader filter and sort."""

import json
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

from atlas.kinds import Parallelism, Topology
from atlas.knowledge import System
from atlas.site import address
from atlas.site.context import Context
from atlas.site.standing import Place, by_age, places, proven, verified
from atlas.site.text import attr, front, raw

HERE = "systems/index.md"
OURS = (
    "Where a system stands on the axes is this project's own classification, made "
    "along the surveys' dimensions; each cell names its source."
)
UNREAD = '<span class="unread" title="not verified">?</span>'
LEGEND = (
    '<p class="quiet">Run here: how many of the techniques that the system uses were '
    "run by this project, with every claim true. Sources read: how many of the "
    "statements about the system were read in their source. A question mark stands "
    "where one was not.</p>"
)
# The tokens by which a row is filtered begin with these.
AXES = {
    "sync-strategy": "sync",
    "parameter-distribution": "dist",
    "communication-pattern": "comm",
}
COLUMNS = (
    ("name", "System"),
    ("year", "Year"),
    ("par", "What is split"),
    ("sync", "Sync strategy"),
    ("dist", "Parameter distribution"),
    ("comm", "Communication pattern"),
    ("opt", "Optimizer"),
    ("topo", "Topology"),
    ("status", "Status"),
    ("proven", "Run here"),
    ("read", "Sources read"),
)


def page(ctx: Context) -> str:
    """The table, complete without its script."""
    found = by_age(ctx.atlas)
    about = "Every system of the atlas: filter it by axis, technique, year and survey."
    head = front("Systems", description=about, hide=["navigation", "toc"])
    parts = [
        head + address.assets(HERE, "systems.css", "permalink.js", "facets.js"),
        "# Systems",
        f"{OURS} {_more()}",
    ]
    if not found:
        return "\n\n".join([*parts, "No system is described yet."]) + "\n"
    return "\n\n".join([*parts, raw(_view(ctx, found)), LEGEND]) + "\n"


def _more() -> str:
    return (
        "[Compare](../compare.md) two to four of them side by side, see them "
        "[year by year](../timeline.md), or take all as [JSON](../taxonomy.json)."
    )


def _view(ctx: Context, found: list[System]) -> str:
    heads = "".join(
        f'<th scope="col" data-key="{key}"{_ascending(key)}>{attr(title)}</th>'
        for key, title in COLUMNS
    )
    rows = "\n".join(_row(ctx, s) for s in found)
    data = json.dumps(_facets(ctx, found), separators=(",", ":"), ensure_ascii=True)
    data = data.replace("<", "\\u003c")
    return (
        '<section class="systems-view">\n'
        f'<script type="application/json">{data}</script>\n'
        '<div class="systems-box" role="region" aria-label="Systems" tabindex="0">\n'
        '<table class="systems"><caption class="sr">Systems, where they stand on '
        f"the axes, and what of it was checked</caption>\n<thead><tr>{heads}</tr>"
        f"</thead>\n<tbody>\n{rows}\n</tbody></table>\n</div>\n</section>"
    )


def _ascending(key: str) -> str:
    return ' aria-sort="ascending"' if key == "year" else ""


def _row(ctx: Context, s: System) -> str:
    on = places(ctx.atlas, s)
    run, used = proven(ctx, s)
    read, said = verified(s)
    cells = [str(s.year), _kinds(s)]
    cells += [_families(ctx, on[axis]) for axis in AXES]
    cells += [_value(s.optimizer_location), _value(s.topology), attr(s.status)]
    cells += [_share(run, used), _share(read, said)]
    name = f'<a href="{address.link(HERE, f"systems/{s.id}.md")}">{attr(s.name)}</a>'
    other = ""
    if s.also_called:
        other = f'<span class="aka" hidden>{attr(", ".join(s.also_called))}</span>'
    text = " ".join([s.name, s.id, s.made_by or "", s.summary]).lower()
    body = "".join(f"<td>{cell}</td>" for cell in cells)
    return (
        f'<tr data-id="{s.id}" data-v="{" ".join(tokens(ctx, s))}" '
        f'data-q="{attr(text)}"><th scope="row">{name}{other}</th>{body}</tr>'
    )


def tokens(ctx: Context, s: System) -> Iterator[str]:
    """What the row is filtered by; a question mark ends what was not verified."""
    for axis, short in AXES.items():
        for place in places(ctx.atlas, s)[axis]:
            name = place.family.partition("/")[2]
            yield f"{short}:{name}" + ("" if place.verified else "?")
    for use in s.uses:
        yield f"tech:{use.technique}" + ("" if use.verified else "?")
    if p := s.parallelism:
        yield from (f"par:{kind}" + ("" if p.verified else "?") for kind in p.value)
    if o := s.optimizer_location:
        where = ("central", "per-worker") if o.value == "either" else (o.value,)
        yield from (f"opt:{w}" + ("" if o.verified else "?") for w in where)
    if w := s.topology:
        yield f"topo:{w.value}" + ("" if w.verified else "?")
    yield f"status:{s.status}"
    yield from (f"survey:{survey}" for survey in s.surveys)


def _families(ctx: Context, found: list[Place]) -> str:
    out = []
    for place in found:
        name = attr(ctx.atlas.families[place.family].name)
        to = address.link(HERE, f"{place.family}/index.md")
        out.append(_marked(f'<a href="{to}">{name}</a>', place.verified))
    return _list(out)


def _kinds(s: System) -> str:
    if s.parallelism is None:
        return ""
    return _list(
        [_marked(attr(k), s.parallelism.verified) for k in s.parallelism.value]
    )


def _value(fact: Any) -> str:
    return _marked(attr(fact.value), fact.verified) if fact else ""


def _marked(text: str, read: bool) -> str:
    return text if read else f'<span class="doubt">{text}{UNREAD}</span>'


def _list(items: list[str]) -> str:
    return "<br>".join(items)


def _share(some: int, of: int) -> str:
    return f"{some} of {of}" if of else ""


def _facets(ctx: Context, found: list[System]) -> dict[str, Any]:
    """The facets that the script offers, without options that no system has."""
    have = {t.rstrip("?") for s in found for t in tokens(ctx, s)}
    facets = []
    for key, title, many, options in _vocabulary(ctx):
        kept = [(v, label) for v, label in options if f"{key}:{v}" in have]
        if kept:
            facets.append({"key": key, "title": title, "many": many, "options": kept})
    years = [s.year for s in found]
    return {
        "facets": facets,
        "years": [min(years), max(years)],
        "compare": address.link(HERE, "compare.md"),
    }


def _vocabulary(ctx: Context) -> Iterator[tuple[str, str, bool, list[tuple[str, str]]]]:
    atlas = ctx.atlas
    for axis in atlas.axes:
        options = [(f.id, f.name) for f in axis.families]
        yield AXES[axis.id], axis.name, True, options
    named = sorted(atlas.techniques.values(), key=lambda t: (t.name.lower(), t.id))
    yield "tech", "Technique", True, [(t.id, t.name) for t in named]
    yield "par", "What is split", True, _words(Parallelism)
    where = [("central", "central"), ("per-worker", "per worker")]
    yield "opt", "Optimizer", True, where
    yield "topo", "Topology", False, _words(Topology)
    yield "status", "Status", False, _words(System, "status")
    surveys = [(v.id, v.name) for v in atlas.surveys.values()]
    yield "survey", "Named by the survey", True, surveys


def _words(kind: type, field: str = "value") -> list[tuple[str, str]]:
    """The closed vocabulary of a field, in the order of the schema."""
    hint = get_type_hints(kind)[field]
    literal = hint if get_origin(hint) is Literal else get_args(hint)[0]
    return [(word, word) for word in get_args(literal)]
