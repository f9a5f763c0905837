"""What the front page shows: every technique by axis and family, and the counts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from atlas.site import address, path
from atlas.site.technique import replayed
from atlas.site.templating import macro, markup, render
from atlas.site.text import raw
from atlas.taxonomy import Technique
from atlas.views.context import BACKENDS, Context
from atlas.views.proof import all_hold, caught

HERE = "index.md"
#: The run that plays at the top: the best known exchange, with exact bytes.
HERO = "ring-all-reduce"
RUNGS = {"gloo": "gloo", "dry": "dry", "emulated": "emulated GPU", "nccl": "NCCL"}
LADDER = BACKENDS


def state(ctx: Context, t: Technique, backend: str) -> tuple[str, str]:
    """How a technique stands on a rung: a class, and the words for it."""
    if not ctx.sizes(t.id, backend):
        applies = backend != "dry" or t.dry
        return "none", "not yet run" if applies else "does not apply"
    if ctx.stale(t.id, backend):
        return "old", "recorded from an older source"
    if not all_hold(ctx, t, backend):
        return "bad", "a claim does not hold"
    return "ok", "holds"


def climbed(ctx: Context, t: Technique) -> str:
    """Four digits, one a rung: 1 where it was run and every claim held."""
    return "".join("1" if state(ctx, t, b)[0] == "ok" else "0" for b in LADDER)


def proven(ctx: Context, t: Technique) -> str:
    """Four small marks: which rungs this technique has climbed."""
    return macro("overview.html.j2", "rungs", _rungs(ctx, t))


def _rungs(ctx: Context, t: Technique) -> list[tuple[str, str, str]]:
    """Rung, class and words; none where the exemplar is not written."""
    if not ctx.written(t):
        return []
    return [(RUNGS[b], *state(ctx, t, b)) for b in LADDER]


def the_map(ctx: Context) -> str:
    """The three axes with their families and techniques, for the home page."""
    axes = [
        (
            axis,
            [
                (f, [(t, _rungs(ctx, t)) for t in ctx.of_family(axis.id, f.id)])
                for f in axis.families
            ],
        )
        for axis in ctx.atlas.axes
    ]
    return raw(macro("overview.html.j2", "map", HERE, axes))


def hero(ctx: Context) -> str:
    """A recorded run that plays when the page opens."""
    t = ctx.atlas.techniques[HERO]
    figure = markup(replayed(ctx, t, ident="replay-home"))
    return macro("overview.html.j2", "hero", HERE, t, figure)


@dataclass(frozen=True)
class Counts:
    """The size of the atlas today."""

    techniques: int
    written: int
    claims: int
    mutants: int
    systems: int
    papers: int
    most_ranks: int


def counts(ctx: Context) -> Counts:
    """Counted from the data, never typed."""
    techniques = ctx.atlas.techniques.values()
    run = [t for t in techniques if ctx.runs(t.id, "gloo")]
    sizes = (p for t in techniques for b in BACKENDS for p in ctx.sizes(t.id, b))
    return Counts(
        techniques=len(techniques),
        written=len(run),
        claims=sum(len(t.claims) for t in run),
        mutants=sum(caught(ctx, t)[0] for t in techniques),
        systems=len(ctx.atlas.systems),
        papers=len(ctx.atlas.papers),
        most_ranks=max(sizes, default=0),
    )


def rest(found: Counts) -> str:
    """What is described and does not run, if anything."""
    left = found.techniques - found.written
    if not left:
        return ""
    noun, verb = ("technique", "is") if left == 1 else ("techniques", "are")
    return f"The other {left} {noun} {verb} described from the papers and marked so."


def real_gpus(ctx: Context) -> str:
    """How many have met a real GPU."""
    found = sum(state(ctx, t, "nccl")[0] == "ok" for t in ctx.atlas.techniques.values())
    if not found:
        return "Nothing here has run on real GPUs yet."
    return f"On real GPUs with **NCCL**, {found} have run."


def stats(ctx: Context) -> str:
    """The size of the atlas today, in a row."""
    return render("stats.html.j2", counts=counts(ctx))


# What a hand-written page may mark, as `{{ name }}`.
PLACES: Mapping[str, Callable[[Context], object]] = {
    "assets": lambda _: address.assets(HERE, "home.css"),
    "hero": hero,
    "path": path.length,
    "map": the_map,
    "stats": stats,
    "written": lambda ctx: counts(ctx).written,
    "rest": lambda ctx: rest(counts(ctx)),
    "real_gpus": real_gpus,
    "claims": lambda ctx: counts(ctx).claims,
    "most_ranks": lambda ctx: counts(ctx).most_ranks,
}
