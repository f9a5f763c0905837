"""`atlas compare A B`: two to four systems or techniques, differences first."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlas import taxonomy
from atlas.commands import common, names, show
from atlas.commands.common import Json, Wrong
from atlas.commands.system import runs
from atlas.taxonomy import Atlas, System, Technique

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

LEAST, MOST = 2, 4

Names = Annotated[
    list[str],
    typer.Argument(
        help="Two to four systems, or two to four techniques.",
        metavar="NAME NAME...",
        autocompletion=common.complete_any,
    ),
]
AllOption = Annotated[
    bool, typer.Option("--all", help="Also show the rows in which all values agree.")
]


@dataclass(frozen=True)
class Item:
    """One value in a cell, and whether its source was read."""

    text: str
    verified: bool = True


@dataclass(frozen=True)
class Row:
    """What is compared, and the values of each, in the order they were named."""

    title: str
    cells: tuple[tuple[Item, ...], ...]

    @property
    def same(self) -> bool:
        """Whether all have the same values, in whatever order."""
        return len({frozenset(i.text for i in cell) for cell in self.cells}) == 1

    @property
    def shared(self) -> frozenset[str]:
        """The values that all have."""
        first, *rest = (frozenset(i.text for i in cell) for cell in self.cells)
        return first.intersection(*rest)


def compare(name: Names, all_: AllOption = False, json: Json = False) -> None:
    """Compare two to four systems or techniques side by side, differences first.

    Shared values are dimmed. A (?) marks a value that is not verified.

    Examples:

    \b
    atlas compare horovod pytorch-ddp
    atlas compare zero-1 zero-2 zero-3
    atlas compare gpipe one-f-one-b --all
    atlas compare pytorch-ddp pytorch-fsdp2 megatron-lm deepspeed --json
    """
    atlas = taxonomy.load()
    kind, ids = chosen(atlas, name)
    rows = [row for row in _rows(atlas, kind, ids) if any(row.cells)]
    if json:
        common.print_json(_plain(kind, ids, rows))
        return
    different = [row for row in rows if not row.same]
    same = [row for row in rows if row.same]
    console = common.out()
    if different:
        console.print(_table(ids, different))
    else:
        typer.echo("no differences")
    if same and all_:
        console.print(_table(ids, same, "same in all"))
    elif same:
        titles = ", ".join(row.title for row in same)
        typer.echo(f"same in all: {titles} (--all shows them)")
    if any(not i.verified for row in rows for cell in row.cells for i in cell):
        typer.echo("(?) not verified: nobody has checked the source")


def chosen(atlas: Atlas, said: Sequence[str]) -> tuple[str, list[str]]:
    """What is compared: their kind, and their ids."""
    if not LEAST <= len(said) <= MOST:
        raise Wrong(f"got {len(said)}: give two to four systems or techniques")
    found = [names.only(atlas, word, ("technique", "system")) for word in said]
    kinds = {thing.kind: thing.id for thing in found}
    if len(kinds) > 1:
        a, b = kinds["system"], kinds["technique"]
        raise Wrong(f"{a} is a system and {b} is a technique: compare only one kind")
    ids = [thing.id for thing in found]
    for ident in ids:
        if ids.count(ident) > 1:
            raise Wrong(f"{ident} is given twice: give different names")
    return found[0].kind, ids


def _rows(atlas: Atlas, kind: str, ids: list[str]) -> Iterator[Row]:
    told = [
        _system(atlas, atlas.systems[i])
        if kind == "system"
        else _technique(atlas, atlas.techniques[i])
        for i in ids
    ]
    for title in told[0]:
        yield Row(title, tuple(tuple(one[title]) for one in told))


Told = dict[str, list[Item]]


def _system(atlas: Atlas, s: System) -> Told:
    from atlas.views.standing import FORWARD, places, verified

    on = places(atlas, s)
    read, of = verified(s)
    split = s.parallelism
    uses = [atlas.techniques[use.technique] for use in s.uses]
    return {
        "first appeared": _said([str(s.year)]),
        "published": _said([str(s.venue_year)] if s.venue_year else []),
        **{
            axis.name.lower(): [
                Item(p.family.partition("/")[2], p.verified) for p in on[axis.id]
            ]
            for axis in atlas.axes
        },
        "techniques": [Item(u.technique, u.verified) for u in s.uses],
        "splits": [Item(v, split.verified) for v in split.value] if split else [],
        "optimizer": _value(s.optimizer_location),
        "topology": _value(s.topology),
        "hardware": [Item(s.hardware.says, s.hardware.verified)] if s.hardware else [],
        "reported run": (
            [Item(s.reported_run.says, s.reported_run.verified)]
            if s.reported_run
            else []
        ),
        "status": _said([s.status]),
        "made by": _said([s.made_by] if s.made_by else []),
        "license": _said([s.license] if s.license else []),
        "home": _said([s.home] if s.home else []),
        "named by": _said(s.surveys),
        "relations": [
            Item(f"{FORWARD[r.kind]} {r.system}", r.verified) for r in s.relations
        ],
        "also called": _said(s.also_called),
        "papers": _said(s.papers),
        "runs here": _said(t.id for t in uses if runs(atlas, t)),
        "verified": _said([f"{read} of {of} statements"]),
    }


def _technique(atlas: Atlas, t: Technique) -> Told:
    families = {t.axis: t.family, **t.also}
    formulas = [c.formula for c in t.claims if c.formula]
    return {
        "since": _said([str(t.since)]),
        **{
            axis.name.lower(): _said([families[axis.id]] if axis.id in families else [])
            for axis in atlas.axes
        },
        "use it when": _said([t.use_when]),
        "avoid it when": _said([t.avoid_when]),
        "gives": _said([t.pros]),
        "costs": _said([t.cons]),
        "claims": _said(f"{c.says} ({c.kind})" for c in t.claims),
        "formulas": _said("\n".join(show.formula(name)) for name in formulas),
        "proven on": _said(map(str, common.proofs(atlas, t))),
        "exemplar": _said(
            ["written" if common.written(atlas, t) else "not written yet"]
        ),
        "not shown": _said([t.not_shown] if t.not_shown else []),
        "mutants": _said(m.id for m in t.mutants),
        "in production": _said(p.name for p in t.production),
        "used by": _said(s.id for s in atlas.users(t.id)),
        "named by": _said(t.surveys),
        "also called": _said(t.also_called),
        "papers": _said(t.papers),
    }


def _said(values: Iterable[str]) -> list[Item]:
    return [Item(value) for value in values]


def _value(cell: Any) -> list[Item]:
    return [Item(cell.value, cell.verified)] if cell else []


def _plain(kind: str, ids: list[str], rows: list[Row]) -> dict[str, Any]:
    def cell(items: tuple[Item, ...]) -> list[dict[str, Any]]:
        return [{"value": i.text, "verified": i.verified} for i in items]

    ordered = sorted(rows, key=lambda row: row.same)
    return {
        "kind": kind,
        "compared": ids,
        "rows": [
            {
                "row": row.title,
                "same": row.same,
                "values": dict(zip(ids, map(cell, row.cells), strict=True)),
            }
            for row in ordered
        ],
    }


def _table(ids: list[str], rows: list[Row], title: str = "") -> "Table":
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_lines=True)
    made.add_column(title, style="cyan", min_width=9)
    for ident in ids:
        made.add_column(ident, ratio=1, overflow="fold")
    for row in rows:
        made.add_row(row.title, *(_cell(row, cell) for cell in row.cells))
    return made


def _cell(row: Row, items: tuple[Item, ...]) -> "Text":
    """One value a line; those that not all have come first, and stand out."""
    from rich.text import Text

    several = len(items) > 1 and any(" " in i.text for i in items)
    lines = [
        Text(
            f"{'· ' if several else ''}{i.text}{'' if i.verified else ' (?)'}",
            "dim" if i.text in row.shared and not row.same else "",
        )
        for i in sorted(items, key=lambda i: i.text in row.shared)
    ]
    return Text("\n").join(lines) if lines else Text("-", "dim")
