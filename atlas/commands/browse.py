"""`atlas list` and `atlas stats`: what the atlas holds, and what of it is proven."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlas import knowledge, record
from atlas.commands import common
from atlas.commands.common import Json
from atlas.knowledge import Atlas, Axis, Technique

if TYPE_CHECKING:
    from rich.table import Table

AxisOption = Annotated[
    str | None,
    typer.Option(
        help="Only this axis.", metavar="AXIS", autocompletion=common.complete_axis
    ),
]
FamilyOption = Annotated[
    str | None,
    typer.Option(
        help="Only this family.",
        metavar="FAMILY",
        autocompletion=common.complete_family,
    ),
]
TextOption = Annotated[
    str | None,
    typer.Option(help="Only where this text occurs, in any case.", metavar="TEXT"),
]


def list_techniques(
    axis: AxisOption = None,
    family: FamilyOption = None,
    text: TextOption = None,
    json: Json = False,
) -> None:
    """List the techniques, and what is proven of each, and where.

    After each backend stand the rank counts at which its claims were seen to hold.

    Examples:

    \b
    atlas list
    atlas list --axis sync-strategy
    atlas list --family sharded --json
    atlas list --text pipeline
    """
    atlas = knowledge.load()
    _complain(atlas, axis, family)
    found = [t for t in atlas.techniques.values() if _fits(t, axis, family, text)]
    if json:
        common.print_json([_plain(atlas, t) for t in found])
    elif not found:
        typer.echo("no technique fits; atlas list shows all")
    else:
        for a in atlas.axes:
            width = max(len(t.id) for t in found)
            _print_axis(atlas, a, [t for t in found if t.axis == a.id], width)


def _complain(atlas: Atlas, axis: str | None, family: str | None) -> None:
    axes = {a.id: a for a in atlas.axes}
    if axis is not None and axis not in axes:
        raise common.unknown("axis", axis, axes, f"there are {', '.join(axes)}")
    inside = [a for a in atlas.axes if axis in (None, a.id)]
    families = [f.id for a in inside for f in a.families]
    if family is not None and family not in families:
        where = f" in {axis}" if axis else ""
        otherwise = f"there are {', '.join(families)}"
        raise common.unknown(f"family{where}", family, families, otherwise)


def _fits(t: Technique, axis: str | None, family: str | None, text: str | None) -> bool:
    words = (t.id, t.name, t.summary, t.use_when, t.avoid_when, *t.also_called)
    return (
        axis in (None, t.axis)
        and family in (None, t.family)
        and (text is None or text.casefold() in "\n".join(words).casefold())
    )


def _plain(atlas: Atlas, t: Technique) -> dict[str, Any]:
    return {
        "id": t.id,
        "axis": t.axis,
        "family": t.family,
        "name": t.name,
        "summary": t.summary,
        "exemplar": str(t.exemplar) if common.written(atlas, t) else None,
        "proven": {p.backend: p.plain() for p in common.proofs(atlas, t)},
    }


def _print_axis(atlas: Atlas, axis: Axis, found: list[Technique], width: int) -> None:
    from rich.text import Text

    if not found:
        return
    console = common.out()
    title = Text(f"{axis.id}  ", style="bold")
    console.print(title.append(axis.question, style="not bold italic"))
    console.print(_table(atlas, axis, found, width))


def _table(atlas: Atlas, axis: Axis, found: list[Technique], width: int) -> "Table":
    """Two columns, so that the sentences have room on 80."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, min_width=width + 4)
    table.add_column()
    for family in axis.families:
        members = [t for t in found if t.family == family.id]
        if members:
            table.add_row(Text(f"  {family.id}", style="dim"))
        for t in members:
            about = Text(f"{t.summary}\n").append(proven(atlas, t), "green")
            table.add_row(f"    [cyan]{t.id}[/]", about)
    return table


def proven(atlas: Atlas, t: Technique) -> str:
    """What is proven where, in one line."""
    if not common.written(atlas, t):
        return "exemplar not written yet"
    return " · ".join(map(str, common.proofs(atlas, t))) or "not recorded yet"


def stats(json: Json = False) -> None:
    """Count what the atlas holds, and what of it is proven.

    Examples:

    \b
    atlas stats
    atlas stats --json
    """
    counted = count(knowledge.load())
    if json:
        common.print_json(counted)
        return
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", style="bold")
    table.add_column()
    for figure, what in _lines(counted):
        table.add_row(figure, what)
    common.out().print(table)


def count(atlas: Atlas) -> dict[str, Any]:
    """The figures of the atlas."""
    from atlas.oracle import FORMULAS

    techniques = list(atlas.techniques.values())
    proofs = {t.id: common.proofs(atlas, t) for t in techniques}
    every = [(t, proof) for t, found in proofs.items() for proof in found]
    return {
        "axes": len(atlas.axes),
        "families": len(atlas.families),
        "families_covered": len({(t.axis, t.family) for t in techniques}),
        "techniques": len(techniques),
        "exemplars": sum(common.written(atlas, t) for t in techniques),
        "records": {m: sum(p.backend == m for _, p in every) for m in record.MODES},
        "stale": [f"{p.backend}/{t}" for t, p in every if p.stale],
        "claims": sum(len(t.claims) for t in techniques),
        "mutants": sum(len(t.mutants) for t in techniques),
        "formulas": len(FORMULAS),
        "systems": len(atlas.systems),
        "surveys": len(atlas.surveys),
        "papers": len(atlas.papers),
    }


def _lines(c: dict[str, Any]) -> list[tuple[str, str]]:
    covered = f"families, {c['families_covered']} of them with a technique"
    written = f"techniques, {c['exemplars']} of them with an exemplar"
    records = ", ".join(f"{n} {m}" for m, n in c["records"].items())
    stale = f"records of older source: {', '.join(c['stale'])}"
    return [
        (str(c["axes"]), "axes"),
        (str(c["families"]), covered),
        (str(c["techniques"]), written),
        (str(sum(c["records"].values())), f"records: {records}"),
        (str(len(c["stale"])), stale if c["stale"] else "records of older source"),
        *((str(c[k]), k) for k in ("claims", "mutants", "formulas")),
        *((str(c[k]), k) for k in ("systems", "surveys", "papers")),
    ]
