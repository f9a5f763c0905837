"""`atlas list`: techniques and what is proven about each, or systems."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlas import taxonomy
from atlas.commands import common, filters
from atlas.commands.common import Json, Wrong
from atlas.taxonomy import Atlas, Axis, System, Technique

if TYPE_CHECKING:
    from rich.table import Table

WIDE = 120  # columns that a terminal needs for all that a table of systems can say

SystemsOption = Annotated[
    bool | None,
    typer.Option(
        "--systems/--techniques",
        help="What to list; default: techniques, or systems if a filter needs them.",
        show_default=False,
    ),
]
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
    typer.Option(
        help="Only entries with this text, in any case; aliases count.",
        metavar="TEXT",
        autocompletion=lambda: [],
    ),
]
YearOption = Annotated[
    str | None,
    typer.Option(
        help="First published in these years: 2019, 2018.., ..2016 or 2014..2016.",
        metavar="YEARS",
        autocompletion=filters.complete_year,
    ),
]
SurveyOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Only entries named by this survey; repeatable.",
        metavar="SURVEY",
        autocompletion=filters.complete_survey,
    ),
]
UsesOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Systems that use this technique; repeatable.",
        metavar="TECHNIQUE",
        autocompletion=common.complete_technique,
    ),
]
ParallelismOption = Annotated[
    list[str] | None,
    typer.Option(
        help=f"Systems that split by {', '.join(filters.PARALLELISM)}; repeatable.",
        metavar="KIND",
        autocompletion=filters.complete(filters.PARALLELISM),
    ),
]
OptimizerOption = Annotated[
    str | None,
    typer.Option(
        help="Systems whose optimizer is central or per-worker; 'either' matches both.",
        metavar="WHERE",
        autocompletion=filters.complete(filters.OPTIMIZER),
    ),
]
TopologyOption = Annotated[
    str | None,
    typer.Option(
        help=f"Systems with this topology: {', '.join(filters.TOPOLOGY)}.",
        metavar="SHAPE",
        autocompletion=filters.complete(filters.TOPOLOGY),
    ),
]
WithoutOption = Annotated[
    str | None,
    typer.Option(
        "--without-exemplar",
        help="Techniques of this axis that nobody has written an exemplar for yet.",
        metavar="AXIS",
        autocompletion=common.complete_axis,
    ),
]
StatusOption = Annotated[
    str | None,
    typer.Option(
        help=f"Systems with this status: {', '.join(filters.STATUS)}.",
        metavar="STATUS",
        autocompletion=filters.complete(filters.STATUS),
    ),
]


def list_(
    systems: SystemsOption = None,
    axis: AxisOption = None,
    family: FamilyOption = None,
    text: TextOption = None,
    year: YearOption = None,
    survey: SurveyOption = None,
    uses: UsesOption = None,
    parallelism: ParallelismOption = None,
    optimizer: OptimizerOption = None,
    topology: TopologyOption = None,
    status: StatusOption = None,
    without_exemplar: WithoutOption = None,
    json: Json = False,
) -> None:
    """List techniques and what is proven about each, or list systems.

    Each backend is followed by the rank counts at which all claims of the technique
    held. An entry must match every filter. With --techniques, a system filter keeps
    the techniques that matching systems use: --techniques --uses zero-1 lists the
    techniques used together with zero-1.

    Examples:

    \b
    atlas list
    atlas list --axis sync-strategy
    atlas list --family sharded --json
    atlas list --text pipeline
    atlas list --systems --year ..2014
    atlas list --uses ring-all-reduce --year 2018..
    atlas list --parallelism tensor --parallelism pipeline --status active
    atlas list --techniques --uses zero-1
    atlas list --without-exemplar sync-strategy
    """
    atlas = taxonomy.load()
    asked = filters.check(
        atlas,
        axis=axis,
        family=family,
        text=text,
        year=year,
        survey=survey or (),
        uses=uses or (),
        parallelism=parallelism or (),
        optimizer=optimizer,
        topology=topology,
        status=status,
        without_exemplar=without_exemplar,
    )
    if systems and without_exemplar:
        raise Wrong("--systems have no exemplars: leave out --without-exemplar")
    if systems is None:
        systems = asked.only_systems_have and not without_exemplar
    if systems:
        _systems(atlas, asked.systems(atlas), axis, json)
    else:
        _techniques(atlas, asked.techniques(atlas), without_exemplar, json)


# Techniques


def _techniques(
    atlas: Atlas, found: list[Technique], without: str | None, json: bool
) -> None:
    if json:
        common.print_json([_plain(atlas, t) for t in found])
    elif not found and without:
        typer.echo(f"no technique of {without} that matches lacks an exemplar")
    elif not found:
        typer.echo("no technique matches; atlas list shows all")
    else:
        for a in atlas.axes:
            width = max(len(t.id) for t in found)
            _print_axis(atlas, a, [t for t in found if t.axis == a.id], width)


def _plain(atlas: Atlas, t: Technique) -> dict[str, Any]:
    return {
        "id": t.id,
        "axis": t.axis,
        "family": t.family,
        "name": t.name,
        "summary": t.summary,
        "since": t.since,
        "also_called": list(t.also_called),
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
    named = {facet.id: facet.name.lower() for facet in axis.facets}
    for family in axis.families:
        members = [t for t in found if t.family == family.id]
        if members:
            of = Text(f"  {named[family.facet]}: ", style="dim")
            table.add_row(of.append(family.id))
        for t in members:
            about = Text(f"{t.summary}\n").append(proven(atlas, t), "green")
            table.add_row(f"    [cyan]{t.id}[/]", about)
    return table


def proven(atlas: Atlas, t: Technique) -> str:
    """What is proven where, in one line."""
    if not common.written(atlas, t):
        return "exemplar not written yet"
    return " · ".join(map(str, common.proofs(atlas, t))) or "not recorded yet"


# Systems


def _systems(atlas: Atlas, found: list[System], axis: str | None, json: bool) -> None:
    if json:
        common.print_json([_plain_system(atlas, s) for s in found])
    elif not found:
        typer.echo("no system matches; atlas list --systems shows all")
    else:
        console = common.out()
        console.print(_systems_table(atlas, found, axis, console.width))
        many = "1 system" if len(found) == 1 else f"{len(found)} systems"
        typer.echo(f"{many}; the classification is ours; (?) means not verified")


def _plain_system(atlas: Atlas, s: System) -> dict[str, Any]:
    from atlas.views.standing import places

    return {
        "id": s.id,
        "name": s.name,
        "summary": s.summary,
        "year": s.year,
        "status": s.status,
        "families": {
            axis: [{"family": p.family, "verified": p.verified} for p in found]
            for axis, found in places(atlas, s).items()
        },
        "uses": [{"technique": u.technique, "verified": u.verified} for u in s.uses],
        "parallelism": list(s.parallelism.value) if s.parallelism else [],
        "optimizer": s.optimizer_location.value if s.optimizer_location else None,
        "topology": s.topology.value if s.topology else None,
        "surveys": list(s.surveys),
        "also_called": list(s.also_called),
    }


def _systems_table(
    atlas: Atlas, found: list[System], axis: str | None, width: int
) -> "Table":
    """On a narrow terminal without the columns that a filter can ask for."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("system", style="cyan", no_wrap=True)
    table.add_column("year")
    table.add_column("splits")
    table.add_column(f"{axis} families" if axis else "techniques", ratio=1)
    for name in ("optimizer", "topology", "status") if width >= WIDE else ():
        table.add_column(name)
    for s in found:
        middle = _families(atlas, s, axis) if axis else _uses(s)
        row = [s.id, str(s.year), _words(s.parallelism), middle]
        if width >= WIDE:
            row += [_words(s.optimizer_location), _words(s.topology), s.status]
        table.add_row(*row)
    return table


def _uses(s: System) -> str:
    return ", ".join(_marked(u.technique, u.verified) for u in s.uses)


def _families(atlas: Atlas, s: System, axis: str) -> str:
    """The families on one axis, each with the techniques that put the system there."""
    from atlas.views.standing import places

    found = []
    for place in places(atlas, s)[axis]:
        family = _marked(place.family.partition("/")[2], place.verified)
        through = ", ".join(place.techniques)
        found.append(f"{family} ({through})" if through else family)
    return ", ".join(found)


def _words(cell: Any) -> str:
    if cell is None:
        return ""
    values: Iterable[str] = [cell.value] if isinstance(cell.value, str) else cell.value
    return _marked(", ".join(values), cell.verified)


def _marked(text: str, verified: bool) -> str:
    return text if verified else f"{text} (?)"
