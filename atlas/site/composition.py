"""What composes: a cell for every pair of techniques, as it was found."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from atlas.site import address
from atlas.site.templating import macro
from atlas.views import composition as view
from atlas.views.composition import ENTRIES, Entry, Pair
from atlas.views.context import Context, Json

HERE = "composition.md"
PARTS = "composition.html.j2"
#: By state: its letter, and what it says.
STATES = {
    "proven": ("P", "proven: run, and equal to one process"),
    "refused": ("R", "refused: the two exclude one another"),
    "untried": ("·", "not tried"),
    "failed": ("F", "run, and not equal to one process"),
}


@dataclass(frozen=True)
class Named:
    """A technique of the table, and its page, if it has one."""

    id: str
    entry: Entry
    path: str


@dataclass(frozen=True)
class Cell:
    """What is known of two techniques together."""

    first: Named
    second: Named
    state: str
    why: str = ""
    found: Json | None = None

    @property
    def id(self) -> str:
        """Its anchor."""
        return f"{self.first.id}--{self.second.id}"

    @property
    def letter(self) -> str:
        """Its state in the table."""
        return STATES[self.state][0]

    @property
    def spoken(self) -> str:
        """For those who hear the table."""
        says = STATES[self.state][1].split(":", maxsplit=1)[0]
        return f"{self.second.entry.name} and {self.first.entry.name}: {says}"

    @property
    def says(self) -> str:
        """In one line: on which ranks and how near, or why not."""
        if self.found is None:
            return self.why
        box = " × ".join(f"{axis} {n}" for axis, n in self.found["box"].items())
        ranks = f"{self.found['ranks']} ranks, {box}"
        if self.state == "failed":
            return f"{ranks}: {self.why}"
        worst = max(self.found[k] for k in ("gradient", "norm", "update"))
        return f"{ranks}; at most {100 * worst:.2g} % of what rounding may do"


@dataclass(frozen=True)
class Row:
    """A technique with all that stand before it in the table."""

    id: str
    entry: Entry
    path: str
    cells: Sequence[Cell]


def cell(ctx: Context, made: Json, pair: Pair) -> Cell:
    """What is known of a pair."""
    first, second = (named(ctx, name) for name in pair)
    if pair in view.REFUSED:
        return Cell(first, second, "refused", view.REFUSED[pair])
    found = made["cells"].get(view.key(pair))
    if found is None:
        return Cell(first, second, "untried", "not tried")
    if "failed" in found:
        return Cell(first, second, "failed", found["failed"], found)
    return Cell(first, second, "proven", found=found)


def named(ctx: Context, name: str) -> Named:
    """A technique of the table, with the page of what it uses."""
    entry = ENTRIES[name]
    technique = ctx.atlas.techniques.get(entry.technique)
    return Named(name, entry, f"{technique.path}.md" if technique else "")


def study(ctx: Context) -> Json:
    """The kept study; without one, nothing has been tried."""
    return view.study(ctx.root) or {"cells": {}}


def rows(ctx: Context) -> list[Row]:
    """The lower half of the table."""
    made, names = study(ctx), list(ENTRIES)
    found = []
    for i, name in enumerate(names):
        own = named(ctx, name)
        cells = [cell(ctx, made, (before, name)) for before in names[:i]]
        found.append(Row(own.id, own.entry, own.path, cells))
    return found


def cells(ctx: Context) -> list[Cell]:
    """All of them, row by row."""
    return [c for row in rows(ctx) for c in row.cells]


def summary(ctx: Context) -> str:
    """How many pairs there are, and how many of them are what."""
    found = cells(ctx)
    counts = Counter(c.state for c in found)
    return macro(PARTS, "summary", len(found), {s: counts[s] for s in STATES})


def key(ctx: Context) -> str:
    """The letters that are in the table."""
    there = {c.state for c in cells(ctx)}
    return macro(PARTS, "key", [(s, *STATES[s]) for s in STATES if s in there])


def reasons(ctx: Context) -> str:
    """The pairs that exclude one another."""
    return macro(PARTS, "reasons", [c for c in cells(ctx) if c.state == "refused"])


def recorded(ctx: Context) -> str:
    """When, on what, and whether anything has changed since."""
    made = view.study(ctx.root)
    if made is None:
        return "*Not run yet: `python -m atlas.compose` does it.*"
    facts = {
        "date": made["recorded"],
        "torch": made["versions"]["torch"],
        "stale": made["sources"] != view.sources(ctx.root),
    }
    return macro(PARTS, "recorded", facts)


# What docs/composition.md may mark, as `{{ name }}`.
PLACES: Mapping[str, Callable[[Context], object]] = {
    "assets": lambda ctx: address.assets(HERE, "views.css"),
    "techniques": lambda ctx: len(ENTRIES),
    "summary": summary,
    "key": key,
    "table": lambda ctx: macro(PARTS, "table", rows(ctx)),
    "recorded": recorded,
    "model": lambda ctx: view.MODEL.says,
    "slack": lambda ctx: view.SLACK["float64"],
    "half_slack": lambda ctx: view.SLACK["float16"],
    "reasons": reasons,
    "lists": lambda ctx: macro(PARTS, "lists", HERE, rows(ctx)),
}
