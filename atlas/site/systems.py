"""All systems as one table, which a script lets the reader filter and sort."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from atlas.site import address
from atlas.site.templating import markup, render, script_data
from atlas.site.text import front
from atlas.taxonomy import Family, System
from atlas.taxonomy.kinds import Parallelism, Topology
from atlas.views.context import Context
from atlas.views.standing import by_age, places, proven, verified

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
    made = render(
        "systems.md.j2",
        here=HERE,
        front=markup(front("Systems", description=about, hide=["navigation", "toc"])),
        ours=OURS,
        legend=markup(LEGEND),
        unread=markup(UNREAD),
        columns=COLUMNS,
        facets=markup(script_data(_facets(ctx, found)) if found else ""),
        rows=[_row(ctx, s) for s in found],
    )
    return made.strip() + "\n"


@dataclass(frozen=True)
class Placed:
    """A family that a system is in, and whether that was read in its source."""

    family: Family
    verified: bool


@dataclass(frozen=True)
class Row:
    """A system as the table shows it; a share is some of so many."""

    system: System
    tokens: str
    text: str
    places: list[list[Placed]]
    proven: tuple[int, int]
    read: tuple[int, int]


def _row(ctx: Context, s: System) -> Row:
    on = places(ctx.atlas, s)
    families = ctx.atlas.families
    return Row(
        s,
        " ".join(tokens(ctx, s)),
        " ".join([s.name, s.id, s.made_by or "", s.summary]).lower(),
        [[Placed(families[p.family], p.verified) for p in on[axis]] for axis in AXES],
        proven(ctx, s),
        verified(s),
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
        options = [
            (f.id, f"{facet.name}: {f.name}")
            for facet in axis.facets
            for f in facet.families
        ]
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
