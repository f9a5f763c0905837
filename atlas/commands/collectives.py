"""`atlas collectives`: time every collective beside gloo's own."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlas import taxonomy
from atlas.commands import common
from atlas.commands.common import Json, Wrong
from atlas.launch import LaunchError
from atlas.views.collectives import COLLECTIVES, KINDS, PLACE, of_kind

if TYPE_CHECKING:
    from rich.table import Table

    from atlas.collectives.study import Plan

KindOption = Annotated[
    str | None,
    typer.Option(
        help=f"One kind only: {', '.join(KINDS)}.",
        autocompletion=lambda: list(KINDS),
    ),
]
RanksOption = Annotated[
    list[int] | None,
    typer.Option("--ranks", "-n", min=2, max=16, help="How many ranks; repeatable."),
]
LargestOption = Annotated[
    int, typer.Option(min=2**12, max=2**26, help="The largest tensor, in bytes.")
]
NodesOption = Annotated[
    bool,
    typer.Option(
        "--nodes/--no-nodes",
        help="Also on two nodes with a shaped link between them; needs root.",
    ),
]
WriteOption = Annotated[
    bool,
    typer.Option(
        "--write", help="Save the whole study; one that was broken off goes on."
    ),
]
AgainOption = Annotated[
    bool,
    typer.Option("--again", help="With --write: measure what is saved again, too."),
]
MinutesOption = Annotated[
    float | None,
    typer.Option(help="With --write: begin nothing new after so many.", min=0.1),
]


def collectives(
    kind: KindOption = None,
    ranks: RanksOption = None,
    largest: LargestOption = 2**26,
    nodes: NodesOption = False,
    write: WriteOption = False,
    again: AgainOption = False,
    minutes: MinutesOption = None,
    json: Json = False,
) -> None:
    """Time every collective of the atlas beside gloo's own.

    All collectives of a size take turns on the same ranks. With --write, everything
    is timed, on two nodes too; what was already saved and has not changed is not
    timed again.

    Examples:

    \b
    atlas collectives --kind all-reduce --ranks 2 --largest 1048576
    atlas collectives --kind broadcast --nodes
    atlas collectives --write --minutes 3
    """
    from atlas.collectives import study

    narrowed = kind or ranks or nodes or largest != 2**26
    if write and narrowed:
        raise Wrong("--write saves only the whole study: omit the other options", 2)
    if (minutes is not None or again) and not write:
        raise Wrong("--minutes and --again go with --write", 2)
    if write:
        common.writable_root("atlas collectives --write")
    if write or nodes:
        _check_nodes()
    plan = study.Plan() if write else _plan(kind, ranks, largest, nodes)
    try:
        made = _kept(plan, minutes, again) if write else _measured(plan)
    except LaunchError as error:
        raise Wrong(error.summary, 1) from None
    if json:
        common.print_json(made)
        return
    for p in made.get("cells", {}):
        common.out().print(table(f"{p} ranks", made["cells"][p]))
    if made.get("shaped"):
        common.out().print(table("two nodes", made["shaped"]))


def _check_nodes() -> None:
    from atlas.collectives.study import missing

    if lacking := missing():
        raise Wrong(lacking, 1)


def _plan(
    kind: str | None, ranks: list[int] | None, largest: int, nodes: bool
) -> "Plan":
    from atlas.collectives import study

    if kind is not None and kind not in KINDS:
        raise common.unknown("kind of collective", kind, KINDS, ", ".join(KINDS))
    return study.Plan(
        names=tuple(of_kind(kind) if kind else COLLECTIVES),
        ranks=tuple(ranks or study.RANKS),
        sizes=tuple(n for n in study.SIZES if n <= largest),
        shaped=tuple(n for n in study.SHAPED_SIZES if n <= largest and nodes),
    )


def _measured(plan: "Plan") -> dict[str, Any]:
    """The plan, of which nothing is kept."""
    from atlas.collectives import study

    made: dict[str, Any] = {}
    with common.bar(len(plan.units(made))) as progress:
        for _ in study.study(plan, made, progress):
            pass
    return made


def _kept(plan: "Plan", minutes: float | None, again: bool) -> dict[str, Any]:
    """What was still missing, as far as there is time, written after each launch."""
    from atlas.collectives import study

    root = taxonomy.find_root()
    made = study.fresh(root) if again else study.begun(root)
    end = time.monotonic() + 60 * minutes if minutes else float("inf")
    with common.bar(len(plan.units(made))) as progress:
        for _ in study.study(plan, made, progress):
            study.keep(root, made)
            if time.monotonic() > end:
                break
    left = len(plan.units(made))
    then = f"; {left} launches are left: run it again" if left else ""
    common.err().print(f"wrote {PLACE}{then}")
    return made


def table(title: str, cells: dict[str, dict[str, Any]]) -> "Table":
    """Milliseconds: a line for each collective, a column for each size."""
    from rich import box
    from rich.table import Table

    from atlas.collectives.study import said

    sizes = sorted(cells, key=int)
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    made.add_column("ms", no_wrap=True)
    for n in sizes:
        made.add_column(said(int(n)), justify="right")
    for name in cells[sizes[0]]:
        seen = [cells[n].get(name) for n in sizes]
        made.add_row(
            name, *(f"{row['median'] * 1e3:.3g}" if row else "" for row in seen)
        )
    return made
