"""`atlas accuracy`: compare the oracle's predictions with steps measured here."""

from typing import Annotated, Any

import typer

from atlas.commands import common
from atlas.commands.common import Json, Wrong
from atlas.launch import LaunchError

NetOption = Annotated[
    list[str] | None,
    typer.Option("--network", help="Only this network; repeatable."),
]
StrategyOption = Annotated[
    list[str] | None,
    typer.Option("--strategy", help="Only this strategy; repeatable."),
]
PublishedOption = Annotated[
    bool,
    typer.Option(
        "--published", help="Judge by runs that others published; measures nothing."
    ),
]
WriteOption = Annotated[
    bool, typer.Option("--write/--no-write", help="Save the study in measurements/.")
]


def accuracy(
    network: NetOption = None,
    strategy: StrategyOption = None,
    published: PublishedOption = False,
    write: WriteOption = True,
    json: Json = False,
) -> None:
    """Predict and measure ParaDL's strategies on six networks (about 40 minutes).

    With --published: hold the oracle against runs that others published on GPUs
    (seconds).

    Close other programs first: they would distort the measurements. A partial study
    (--network, --strategy) is shown but not saved.

    Examples:

    \b
    atlas accuracy
    atlas accuracy --network small-vgg --strategy data --strategy filter
    atlas accuracy --published
    """
    if published:
        if network or strategy:
            raise Wrong("--published with --network or --strategy: give one of them")
        _published(json)
        return
    rows, told = _measured(network or [], strategy or [], write)
    if json:
        common.print_json({"rows": rows, "summary": told})
    else:
        _show(rows, told)


def _measured(nets: list[str], cases: list[str], write: bool) -> tuple[Any, Any]:
    from atlas.planner.accuracy import study
    from atlas.planner.accuracy.networks import NETWORKS

    for kind, names, known in (
        ("network", nets, list(NETWORKS)),
        ("strategy", cases, list(study.CASES)),
    ):
        for name in names:
            if name not in known:
                raise common.unknown(kind, name, known, f"there are {', '.join(known)}")
    keep = write and not (nets or cases)
    root = common.writable_root("atlas accuracy (without --no-write)") if keep else None
    chosen = nets or list(NETWORKS), cases or list(study.CASES)
    try:
        with common.bar(study.parts(*chosen)) as progress:
            rows = study.study(*chosen, progress)
    except LaunchError as error:
        raise Wrong(f"{error.summary}; nothing was saved", 1) from None
    if root:
        common.say(f"wrote {study.keep(root, rows).relative_to(root)}")
    return rows, study.summary(rows)


def _show(rows: list[dict[str, Any]], told: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table

    from atlas.planner.units import seconds

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("network", "strategy"):
        table.add_column(name)
    for name in ("predicted", "measured", "accuracy"):
        table.add_column(name, justify="right")
    for row in rows:
        times = seconds(row["predicted"]), seconds(row["measured"])
        table.add_row(row["network"], row["strategy"], *times, f"{row['accuracy']:.1%}")
    out = common.out()
    out.print(table)
    for name, found in told["strategies"].items():
        out.print(f"{name}: mean {found['mean']:.1%}, worst {found['worst']:.1%}")
    if told["mean"] is not None:
        out.print(f"on two ranks: mean {told['mean']:.1%}")


# Published runs


def _published(as_json: bool) -> None:
    from atlas import taxonomy
    from atlas.planner.accuracy import published_view as published

    shown = published.view(taxonomy.find_root())
    if as_json:
        common.print_json(published.plain(shown))
        return
    from rich import box
    from rich.table import Table

    out = common.out()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(published.HEADS):
        table.add_column(name, justify="left" if i == 0 else "right")
    for line in shown.lines:
        table.add_row(*line.cells)
    out.print(table)
    for says in (*shown.goals, *shown.notes):
        out.print(f"- {says}")
    out.print("\n[bold]The worst row of each set[/bold]: predicted over measured")
    for line in shown.lines:
        out.print(f"- {line.set}: {line.worst}", markup=False)
