"""Langer's grid: where the optimizer runs, by how its steps are scheduled."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from atlas.site import address
from atlas.site.matrix import DOWN, coordinates, families
from atlas.site.templating import macro
from atlas.taxonomy import System, Technique
from atlas.views import standing
from atlas.views.context import Context

HERE = "grid.md"
PARTS = "grid.html.j2"
ROWS = ("central", "per-worker")
COLUMNS = ("synchronous", "bounded", "asynchronous")
# How each family of the sync axis schedules; the page says why.
SCHEDULE = {
    "synchronous": "synchronous",
    "bounded-staleness": "bounded",
    "asynchronous": "asynchronous",
    "periodic": "synchronous",
    "consensus": "synchronous",
    "pipeline-flush": "synchronous",
    "pipeline-stale": "bounded",
    "layer-local": "asynchronous",
    "elastic": "synchronous",
}


def rows_of(s: System) -> tuple[str, ...]:
    """Where a system's optimizer runs, by the techniques it uses; either means both."""
    where = s.optimizer_location
    if where is None:
        return ()
    return ROWS if where.value == "either" else (where.value,)


def columns_of(ctx: Context, s: System) -> list[str]:
    """How a system schedules, from its families on the sync axis."""
    found = {SCHEDULE[f] for f in families(ctx, s)[DOWN]}
    return [c for c in COLUMNS if c in found]


def techniques(ctx: Context, row: str, column: str) -> list[Technique]:
    """The techniques of a cell, oldest first."""
    found = [
        t
        for t in ctx.atlas.techniques.values()
        if t.optimizer == row and SCHEDULE.get(coordinates(t).get(DOWN, "")) == column
    ]
    return sorted(found, key=lambda t: (t.since, t.id))


def systems(ctx: Context, row: str, column: str) -> list[System]:
    """The systems of a cell, oldest first."""
    return [
        s
        for s in standing.by_age(ctx.atlas)
        if row in rows_of(s) and column in columns_of(ctx, s)
    ]


@dataclass(frozen=True)
class Cell:
    """What stands where a row meets a column."""

    row: str
    column: str
    techniques: list[Technique]
    systems: list[System]


def table(ctx: Context) -> str:
    """The six cells, with all that each holds."""
    rows = [[_cell(ctx, row, column) for column in COLUMNS] for row in ROWS]
    return macro(PARTS, "table", HERE, rows)


def _cell(ctx: Context, row: str, column: str) -> Cell:
    return Cell(row, column, techniques(ctx, row, column), systems(ctx, row, column))


def unplaced(ctx: Context) -> str:
    """Systems whose file does not say where the optimizer runs, or how it waits."""
    left = [
        s
        for s in standing.by_age(ctx.atlas)
        if not rows_of(s) or not columns_of(ctx, s)
    ]
    return macro(PARTS, "unplaced", HERE, left)


# What docs/grid.md may mark, as `{{ name }}`.
PLACES: Mapping[str, Callable[[Context], object]] = {
    "assets": lambda ctx: address.assets(HERE, "views.css"),
    "table": table,
    "unplaced": unplaced,
}
