"""Langer's Table 1 held against our files, cell by cell, and its Table 2."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args
from urllib.parse import urlsplit

from atlas.site import address
from atlas.site.grid import ROWS, SCHEDULE, columns_of, rows_of
from atlas.site.matrix import DOWN
from atlas.site.templating import macro
from atlas.site.text import slug
from atlas.taxonomy import System
from atlas.taxonomy.kinds import Sourced
from atlas.taxonomy.tables import (
    Candidate,
    Dimension,
    LangerTables,
    Reason,
    Row,
)
from atlas.views.context import Context, Json
from atlas.views.race import TASKS, study

HERE = "surveys/langer-table.md"
PARTS = "langer.html.j2"
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)
Verdict = Literal["agrees", "differs", "open"]
# Langer's words for two of the columns, as ours.
SPLITS = {"DP only": {"DP"}, "MP only": {"MP"}, "MP + DP": {"MP", "DP"}}
OPTIMIZERS = dict(zip(("central", "decentral"), ROWS, strict=True))
#: What our cell rests on.
Basis = Literal["elsewhere", "langer", "unread"]


@dataclass(frozen=True)
class Cell:
    """Langer's word, ours, and whether they agree."""

    dimension: Dimension
    theirs: str
    ours: tuple[str, ...]
    verdict: Verdict
    reason: Reason | None
    basis: Basis | None  # None: we say nothing


@dataclass(frozen=True)
class Compared:
    """A row of Table 1 with its four compared cells."""

    row: Row
    system: System
    cells: tuple[Cell, ...]


def tables(ctx: Context) -> LangerTables:
    """Langer's tables, without which there is no page."""
    assert ctx.atlas.tables is not None
    assert ctx.atlas.tables.langer2020 is not None
    return ctx.atlas.tables.langer2020


def compared(ctx: Context) -> list[Compared]:
    """All rows of Table 1, in its order."""
    found = []
    for row in tables(ctx).systems.rows:
        s = ctx.atlas.systems[row.system]
        cells = tuple(_cell(ctx, row, s, d) for d in DIMENSIONS)
        found.append(Compared(row, s, cells))
    return found


def _cell(ctx: Context, row: Row, s: System, dimension: Dimension) -> Cell:
    ours, agrees = OURS[dimension](ctx, row, s)
    verdict: Verdict = "open" if agrees is None else "agrees" if agrees else "differs"
    reason = row.differs.get(dimension) or row.open.get(dimension)
    basis = _basis(ctx, list(_statements(ctx, row, s, dimension))) if ours else None
    return Cell(dimension, getattr(row, dimension), ours, verdict, reason, basis)


# What our file says, and whether that is Langer's word; None: cannot be compared

Said = tuple[tuple[str, ...], bool | None]


def _parallelism(ctx: Context, row: Row, s: System) -> Said:
    """Data is DP, everything else MP."""
    value = s.parallelism.value if s.parallelism else ()
    kinds = {"DP" if kind == "data" else "MP" for kind in value}
    return value, kinds == SPLITS[row.parallelism] if value else None


def _optimization(ctx: Context, row: Row, s: System) -> Said:
    where = s.optimizer_location
    if where is None:
        return (), None
    return (where.value,), OPTIMIZERS[row.optimization] in rows_of(s)


def _scheduling(ctx: Context, row: Row, s: System) -> Said:
    """Langer names one, and a system may offer several: is it among them?"""
    ours = tuple(columns_of(ctx, s))
    return ours, bool(set(_schedule(ctx, row)) & set(ours)) if ours else None


def _topology(ctx: Context, row: Row, s: System) -> Said:
    means = _wiring(ctx, row)
    if s.topology is None:
        return (), None
    return (s.topology.value,), s.topology.value in means if means else None


OURS: Mapping[Dimension, Callable[[Context, Row, System], Said]] = {
    "parallelism": _parallelism,
    "optimization": _optimization,
    "scheduling": _scheduling,
    "topology": _topology,
}


def _schedule(ctx: Context, row: Row) -> tuple[str, ...]:
    words = tables(ctx).systems.scheduling
    return next(w.is_ for w in words if w.word == row.scheduling)


def _wiring(ctx: Context, row: Row) -> tuple[str, ...]:
    words = tables(ctx).systems.topology
    return next(w.is_ for w in words if w.word == row.topology)


# What our cell rests on: a cell that was read in Langer agrees with Langer


def _statements(
    ctx: Context, row: Row, s: System, dimension: Dimension
) -> Iterator[Sourced]:
    """What our file's word rests on; of several schedules, what gives Langer's."""
    if dimension == "optimization":
        because = s.optimizer_location.because if s.optimizer_location else ()
        yield from (use for use in s.uses if use.technique in because)
    elif dimension == "scheduling":
        placed = list(_scheduled(ctx, s))
        wanted = [said for said, column in placed if column in _schedule(ctx, row)]
        yield from wanted or [said for said, _ in placed]
    elif said := (s.parallelism if dimension == "parallelism" else s.topology):
        yield said


def _scheduled(ctx: Context, s: System) -> Iterator[tuple[Sourced, str]]:
    """Each statement that puts the system on the sync axis, and its column."""
    for use in s.uses:
        t = ctx.atlas.techniques[use.technique]
        if t.axis == DOWN:
            yield use, SCHEDULE[t.family]
    for cell in s.cells:
        axis, _, family = cell.family.partition("/")
        if axis == DOWN:
            yield cell, SCHEDULE[family]


def _basis(ctx: Context, said: Sequence[Sourced]) -> Basis:
    """The best that any of the statements rests on."""
    read = [x.source for x in said if x.verified]
    if any(source != tables(ctx).paper for source in read):
        return "elsewhere"
    return "langer" if read else "unread"


# The page


def summary(ctx: Context) -> str:
    """How many cells agree, and on what."""
    cells = [cell for found in compared(ctx) for cell in found.cells]
    by = {v: [c for c in cells if c.verdict == v] for v in get_args(Verdict)}
    bases = {b: [c for c in by["agrees"] if c.basis == b] for b in get_args(Basis)}
    return macro(PARTS, "summary", len(tables(ctx).systems.rows), by, bases)


def table(ctx: Context) -> str:
    """The systems, four pairs of words each, and the column that is not compared."""
    return macro(PARTS, "table", HERE, DIMENSIONS, compared(ctx))


def reasons(ctx: Context, verdict: Verdict) -> str:
    """Every cell of this verdict, with its reason."""
    found = [
        (x, cell, *_cited(ctx, cell.reason))
        for x in compared(ctx)
        for cell in x.cells
        if cell.verdict == verdict and cell.reason
    ]
    return macro(PARTS, "reasons", HERE, found)


def _cited(ctx: Context, reason: Reason) -> tuple[str, str]:
    """The address and the short name of a reason's source."""
    if reason.source in ctx.atlas.papers:
        p = ctx.atlas.papers[reason.source]
        short = f"{p.authors[0].split()[-1]} {p.year}"
        return address.link(HERE, f"papers.md#{slug(reason.source)}"), short
    return reason.source, urlsplit(reason.source).netloc


def words(ctx: Context) -> str:
    """Langer's words, and what we take each to mean."""
    systems = tables(ctx).systems
    return macro(PARTS, "words", systems.scheduling, systems.topology)


# Table 2


@dataclass(frozen=True)
class Raced:
    """What the race saw of a technique that stands for a row of Table 2."""

    name: str
    path: str
    slowed: float  # by the slow worker: how many times as long
    rates: tuple[float, ...]  # the best of each task
    oldest: int | None  # the oldest gradient, in updates


def criteria(ctx: Context) -> str:
    """Table 2, and beside each row what our race says about it."""
    made = tables(ctx).criteria
    race = study(ctx)
    rows = [(row, _raced(ctx, row, race) if race else []) for row in made.rows]
    return macro(PARTS, "criteria", HERE, made.columns, rows, TASKS)


def _raced(ctx: Context, row: Candidate, race: Json) -> list[Raced]:
    found = []
    for name in row.race:
        runs = [race["races"][task][name] for task in TASKS]
        t = ctx.atlas.techniques[runs[0]["technique"]]
        # virtual time: the same in every task
        alone, beside = (runs[0][s]["curve"][-1][1] for s in ("equal", "straggler"))
        rates = tuple(run["equal"]["rate"] for run in runs)
        variant = name.partition(":")[2]
        called = f"{t.name}, {variant}" if variant else t.name
        oldest = runs[0]["equal"]["oldest"]
        found.append(Raced(called, f"{t.path}.md", beside / alone, rates, oldest))
    return found


def raced(ctx: Context) -> str:
    """The setting of the race, in a sentence."""
    race = study(ctx)
    return macro(PARTS, "setting", race["given"], TASKS) if race else ""


# What docs/surveys/langer-table.md may mark, as `{{ name }}`.
PLACES: Mapping[str, Callable[[Context], object]] = {
    "assets": lambda ctx: address.assets(HERE, "terms.css", "studies.css"),
    "where": lambda ctx: tables(ctx).systems.where,
    "summary": summary,
    "table": table,
    "differing": lambda ctx: reasons(ctx, "differs"),
    "open": lambda ctx: reasons(ctx, "open"),
    "words": words,
    "judged": lambda ctx: tables(ctx).criteria.where,
    "criteria": criteria,
    "raced": raced,
}
