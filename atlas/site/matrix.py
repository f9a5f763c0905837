"""The map: sync strategy by parameter distribution, communication as a facet."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from atlas.site import address
from atlas.site.overview import LADDER, RUNGS, climbed
from atlas.site.templating import macro
from atlas.site.text import listing
from atlas.taxonomy import Axis, Facet, Family, System, Technique
from atlas.views import standing
from atlas.views.context import Context

HERE = "map.md"
PARTS = "map.html.j2"
DOWN, ACROSS, FACET = (
    "sync-strategy",
    "parameter-distribution",
    "communication-pattern",
)
SIGNS = "●○"  # proven on this rung, or not


@dataclass(frozen=True)
class Cell:
    """What stands where a row meets a column."""

    row: Family
    column: Family
    techniques: tuple[Technique, ...]
    systems: tuple[System, ...]

    @property
    def id(self) -> str:
        return f"{self.row.id}.{self.column.id}"

    @property
    def empty(self) -> bool:
        return not self.techniques and not self.systems


def coordinates(t: Technique) -> dict[str, str]:
    """Axis -> family: its home, and where else it says it belongs."""
    return {**t.also, t.axis: t.family}


def families(ctx: Context, s: System) -> dict[str, set[str]]:
    """Axis -> the families that the system's file puts it in."""
    found = standing.places(ctx.atlas, s)
    return {
        axis: {p.family.partition("/")[2] for p in on} for axis, on in found.items()
    }


def cells(ctx: Context) -> list[list[Cell]]:
    """The matrix, row by row."""
    axes = {a.id: a for a in ctx.atlas.axes}
    systems = [(s, families(ctx, s)) for s in standing.by_age(ctx.atlas)]
    techniques = sorted(ctx.atlas.techniques.values(), key=lambda t: (t.since, t.id))
    placed = [(t, coordinates(t)) for t in techniques]
    return [
        [
            Cell(
                row,
                column,
                tuple(
                    t
                    for t, at in placed
                    if (at.get(DOWN), at.get(ACROSS)) == (row.id, column.id)
                ),
                tuple(
                    s
                    for s, on in systems
                    if row.id in on[DOWN] and column.id in on[ACROSS]
                ),
            )
            for column in axes[ACROSS].families
        ]
        for row in axes[DOWN].families
    ]


def _flat(ctx: Context) -> list[Cell]:
    return [c for row in cells(ctx) for c in row]


# Proof


def proof(ctx: Context, techniques: tuple[Technique, ...]) -> str:
    """Which rungs any of the techniques has climbed, as four digits."""
    marks = [climbed(ctx, t) for t in techniques]
    return "".join("1" if any(m[k] == "1" for m in marks) else "0" for k in range(4))


def signs(digits: str) -> str:
    """The four digits as signs."""
    return "".join(SIGNS[0] if d == "1" else SIGNS[1] for d in digits)


def spoken(digits: str) -> str:
    """The four digits in words."""
    found = [RUNGS[b] for b, d in zip(LADDER, digits, strict=True) if d == "1"]
    return f"proven on {listing(found)}" if found else "nothing proven yet"


@dataclass(frozen=True)
class Proof:
    """Which rungs were climbed: as digits, as signs, in words."""

    digits: str
    signs: str
    spoken: str

    @property
    def rungs(self) -> int:
        return self.digits.count("1")


def _proof(digits: str) -> Proof:
    return Proof(digits, signs(digits), spoken(digits))


# Parts of the page


def key(ctx: Context) -> str:
    """The signs, from no rung to all."""
    most = len(LADDER)
    return macro(PARTS, "key", [signs("1" * k + "0" * (most - k)) for k in range(5)])


def filters(ctx: Context) -> str:
    """The families of communication, to choose from."""
    axis = next(a for a in ctx.atlas.axes if a.id == FACET)
    return macro(PARTS, "filters", axis)


def table(ctx: Context) -> str:
    """The matrix itself; a cell with what was proven in it."""
    rows = [[(c, _proof(proof(ctx, c.techniques))) for c in row] for row in cells(ctx)]
    across, down = (_facets(ctx, axis) for axis in (ACROSS, DOWN))
    return macro(PARTS, "table", HERE, rows, across, down)


def _facets(ctx: Context, axis: str) -> list[Facet]:
    """The facets of an axis, in the order of its families."""
    return [f for a in ctx.atlas.axes if a.id == axis for f in a.facets]


@dataclass(frozen=True)
class Entry:
    """A technique in the list of its cell."""

    technique: Technique
    written: bool
    proof: Proof
    communication: str


def lists(ctx: Context) -> str:
    """Every cell that holds something, with all it holds."""
    found = [
        (
            c,
            [_entry(ctx, t) for t in c.techniques],
            [(s, " ".join(sorted(families(ctx, s)[FACET]))) for s in c.systems],
        )
        for c in _flat(ctx)
        if not c.empty
    ]
    return macro(PARTS, "lists", HERE, found)


def _entry(ctx: Context, t: Technique) -> Entry:
    facet = coordinates(t).get(FACET, "")
    return Entry(t, ctx.written(t), _proof(climbed(ctx, t)), facet)


def unplaced(ctx: Context) -> str:
    """What has no place for want of an answer: said, not hidden."""
    found = [*_stray_techniques(ctx), *_stray_systems(ctx)]
    return macro(PARTS, "unplaced", HERE, found)


Stray = tuple[str, str, list[str]]  # page, name, axes that it has no answer on


def _stray_techniques(ctx: Context) -> Iterator[Stray]:
    for t in ctx.atlas.techniques.values():
        if missing := _lacks(ctx.atlas.axes, set(coordinates(t))):
            yield f"{t.path}.md", t.name, missing


def _stray_systems(ctx: Context) -> Iterator[Stray]:
    for s in ctx.atlas.systems.values():
        has = {axis for axis, on in families(ctx, s).items() if on}
        if missing := _lacks(ctx.atlas.axes, has):
            yield f"systems/{s.id}.md", s.name, missing


def _lacks(axes: tuple[Axis, ...], has: set[str]) -> list[str]:
    return [a.name.lower() for a in axes if a.id in {DOWN, ACROSS} - has]


# What docs/map.md may mark, as `{{ name }}`.
PLACES: Mapping[str, Callable[[Context], object]] = {
    "assets": lambda ctx: address.assets(HERE, "views.css", "map.js"),
    "cells": lambda ctx: len(_flat(ctx)),
    "filled": lambda ctx: sum(not c.empty for c in _flat(ctx)),
    "with_systems": lambda ctx: sum(bool(c.systems) for c in _flat(ctx)),
    "rungs": lambda ctx: listing(RUNGS[b] for b in LADDER),
    "key": key,
    "filters": filters,
    "table": table,
    "lists": lists,
    "unplaced": unplaced,
}
