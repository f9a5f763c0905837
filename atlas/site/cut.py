"""How the taxonomy is cut: its facets, and where runs place every technique."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from atlas.classify.judged import STATE, Judged, judge
from atlas.site import address
from atlas.site.templating import macro
from atlas.taxonomy import Technique
from atlas.views.context import Context

HERE = "cut.md"
PARTS = "cut.html.j2"
#: The facets that a run can answer, as columns.
COLUMNS: tuple[str, ...] = (
    "consistency",
    "pipelining",
    "credit",
    "location",
    "topology",
)
COLUMNS += ("placement", "cut", "tier")
#: How each is read off a run; the other facets are declared.
MEASURED = {
    "consistency": "the versions of the weights, by their bits",
    "pipelining": "micro-batches between their two passes, and updates meanwhile",
    "credit": "whether anything comes back from a later layer",
    "placement": "bytes on p ranks and on twice as many",
    "cut": "bytes on p ranks and on twice as many",
    "tier": "bytes in a memory of their own",
    "topology": "who sent to whom",
}


@dataclass(frozen=True)
class Row:
    """A technique with what is declared and measured of it, by column."""

    technique: Technique
    answers: Mapping[str, Judged]


def rows(ctx: Context) -> list[Row]:
    """Every technique that was placed by runs, by its path."""
    kept, atlas = ctx.placed, ctx.atlas
    found = sorted(atlas.techniques.values(), key=lambda t: t.path)
    return [
        Row(t, {j.what: j for j in judge(atlas, t, kept[t.id])})
        for t in found
        if t.id in kept
    ]


def counts(ctx: Context) -> tuple[int, int, int]:
    """Answers in all, measured ones, and those that agree with what is declared."""
    every = [j for row in rows(ctx) for j in row.answers.values()]
    measured = [j for j in every if j.ok is not None]
    return len(every), len(measured), sum(bool(j.ok) for j in measured)


def counted(ctx: Context) -> str:
    """The sentence that says how many."""
    every, measured, agree = counts(ctx)
    return f"{measured} of {every} answers are measured, and {agree} of these agree"


# What docs/cut.md may mark, as `{{ name }}`.
PLACES: Mapping[str, Callable[[Context], object]] = {
    "assets": lambda ctx: address.assets(HERE, "views.css", "systems.css"),
    "facets": lambda ctx: macro(PARTS, "facets", HERE, ctx.atlas.axes, MEASURED),
    "matrix": lambda ctx: macro(PARTS, "matrix", HERE, rows(ctx), COLUMNS, STATE),
    "counted": counted,
}
