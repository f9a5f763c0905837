"""What is proven, what is missing, and what changed lately."""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from atlas.site.overview import RUNGS
from atlas.site.templating import markup, render
from atlas.site.text import front
from atlas.taxonomy import Axis, Family, System, Technique
from atlas.views import standing
from atlas.views.context import BACKENDS, Context
from atlas.views.proof import COUNTED, all_hold, caught, mutation

HERE, CHANGES = "coverage.md", "changes.md"


def page(ctx: Context) -> str:
    """What is proven and, as plainly, what is missing."""
    techniques = sorted(ctx.atlas.techniques.values(), key=lambda t: t.path)
    about = "What is proven where, and what is missing."
    made = render(
        "coverage.md.j2",
        here=HERE,
        front=markup(front("Coverage", description=about, hide=["navigation"])),
        counts=list(_counts(ctx, techniques)),
        families=list(_bare_families(ctx)),
        unwritten=[t for t in techniques if not ctx.written(t)],
        unformulated=list(_unformulated(techniques)),
        unverified=list(_unverified(ctx)),
        rungs=[RUNGS[b] for b in BACKENDS],
        automatic=bool(ctx.mutation),
        rows=[_row(ctx, t) for t in techniques],
    )
    return made.strip() + "\n"


def _bare_families(ctx: Context) -> Iterator[tuple[Axis, Family]]:
    for axis in ctx.atlas.axes:
        for f in axis.families:
            if not any(ctx.written(t) for t in ctx.of_family(axis.id, f.id)):
                yield axis, f


def _unformulated(
    techniques: list[Technique],
) -> Iterator[tuple[Technique, list[str]]]:
    for t in techniques:
        bare = [c.says for c in t.claims if c.kind in COUNTED and c.formula is None]
        if bare:
            yield t, bare


def _unverified(ctx: Context) -> Iterator[tuple[System, int, int]]:
    """A system, how many of its statements were not read, of how many."""
    for s in standing.by_age(ctx.atlas):
        read, of = standing.verified(s)
        if read < of:
            yield s, of - read, of


def _counts(
    ctx: Context, techniques: list[Technique]
) -> Iterator[tuple[str, int, int]]:
    """What is counted, how much there is, of how much."""
    written = sum(ctx.written(t) for t in techniques)
    counted = [c for t in techniques for c in t.claims if c.kind in COUNTED]
    formulas = sum(bool(c.formula) for c in counted)
    families = sum(len(a.families) for a in ctx.atlas.axes)
    bare = len(list(_bare_families(ctx)))
    cells = [standing.verified(s) for s in ctx.atlas.systems.values()]
    read, of = sum(a for a, _ in cells), sum(b for _, b in cells)
    whole = sum(a == b for a, b in cells)
    yield "families with an exemplar", families - bare, families
    yield "techniques with an exemplar", written, len(techniques)
    yield "counting claims with a formula", formulas, len(counted)
    yield "systems with every cell verified", whole, len(cells)
    yield "cells of systems verified", read, of
    if ctx.mutation:
        tried = ctx.mutation.values()
        could = sum(s.mutants - s.equivalent for s in tried)
        yield "automatic mutants caught", sum(s.killed for s in tried), could
    for backend in BACKENDS:
        ran = sum(bool(ctx.sizes(t.id, backend)) for t in techniques)
        where = "dry" if backend == "dry" else f"on {RUNGS[backend]}"
        yield f"techniques run {where}", ran, len(techniques)


@dataclass(frozen=True)
class Row:
    """A technique in the table: on how many ranks it was run, rung by rung."""

    technique: Technique
    written: bool
    sizes: list[str]
    mutants: str
    automatic: str


def _row(ctx: Context, t: Technique) -> Row:
    hits, of = caught(ctx, t)
    mutants = f"{hits} of {of}" if of else "none yet"
    sizes = [_sizes(ctx, t, b) for b in BACKENDS]
    return Row(t, ctx.written(t), sizes, mutants, _automatic(ctx, t))


def _automatic(ctx: Context, t: Technique) -> str:
    """Of the mutants made by rule, those that a claim noticed."""
    found, tried = ctx.mutation.get(t.id), mutation(ctx, t)
    if found is None or tried is None:
        return "not tried yet"
    old = ", older source" if tried.stale else ""
    return f"{found.killed} of {found.mutants - found.equivalent}{old}"


def _sizes(ctx: Context, t: Technique, backend: str) -> str:
    sizes = ctx.sizes(t.id, backend)
    if not sizes:
        return "not yet"
    old = ", older source" if ctx.stale(t.id, backend) else ""
    good = "" if all_hold(ctx, t, backend) else "✗ "
    return f"{good}{' '.join(map(str, sizes))}{old}"


def changes(ctx: Context) -> str:
    """The changelog, and when each record was made."""
    log = ctx.root / "CHANGELOG.md"
    text = log.read_text(encoding="utf-8") if log.is_file() else ""
    head = front("Changes", description="What changed lately.", hide=["navigation"])
    made = render(
        "changes.md.j2",
        here=CHANGES,
        front=markup(head),
        changelog=markup(re.sub(r"\A# .*\n+", "", text).strip()),
        days=list(_days(ctx)),
    )
    return made.strip() + "\n"


Day = tuple[str, list[tuple[str, list[Technique]]]]  # date, rungs with what ran there


def _days(ctx: Context) -> Iterator[Day]:
    by_day: dict[str, dict[str, list[Technique]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for t in sorted(ctx.atlas.techniques.values(), key=lambda t: t.name.lower()):
        for backend in BACKENDS:
            if found := ctx.record(t.id, backend):
                by_day[str(found["recorded"])][backend].append(t)
    for day in sorted(by_day, reverse=True):
        yield day, [(RUNGS[b], found) for b, found in by_day[day].items()]
