"""`atlas compressors NAME...`: the same gradients through several compressors."""

from math import inf
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlas import taxonomy
from atlas.commands import common
from atlas.commands.common import Json, Wrong
from atlas.launch import LaunchError
from atlas.views import compressors as view

if TYPE_CHECKING:
    from rich.table import Table

    from atlas.compressors.study import Job

Names = Annotated[
    list[str] | None,
    typer.Argument(
        help="Compressors; default: all. --list shows their names.",
        metavar="[NAME]...",
    ),
]
PartOption = Annotated[
    list[str] | None,
    typer.Option(help=f"{', '.join(view.PARTS)}; repeatable; default: all."),
]
AgainOption = Annotated[
    bool, typer.Option("--again", help="Measure what is up to date too.")
]
WriteOption = Annotated[
    bool, typer.Option("--write", help="Save each part in measurements/studies/.")
]
ListOption = Annotated[bool, typer.Option("--list", help="List the compressors.")]


def compressors(
    names: Names = None,
    part: PartOption = None,
    again: AgainOption = False,
    write: WriteOption = False,
    list_: ListOption = False,
    json: Json = False,
) -> None:
    """Send the same recorded gradients through several compressors.

    Shows the study that is kept. With --write, first measures what is missing in it
    or older than its exemplar, part by part, and saves each part when it is complete;
    it can be stopped and started again. The part `wires` needs Linux, iproute2 and
    root, or `unshare --user --map-root-user` before the command.

    Examples:

    \b
    atlas compressors
    atlas compressors powersgd --part values --write
    atlas compressors --write
    """
    atlas = taxonomy.load()
    known = {t.id: t for t in view.written(atlas)}
    if list_:
        typer.echo("\n".join(known))
        return
    for name in names or []:
        if name not in known:
            otherwise = "atlas compressors --list shows them"
            raise common.unknown("compressor", name, known, otherwise)
    for name in part or []:
        if name not in view.PARTS:
            expected = ", ".join(view.PARTS)
            raise common.unknown("part", name, view.PARTS, expected)
    if again and not write:
        raise Wrong("--again measures, and needs --write to save it")
    if write:
        from atlas.compressors import study

        chosen = [known[name] for name in names or known]
        jobs = study.jobs(chosen, part or view.PARTS)
        _measure(jobs if again else study.due(atlas.root, jobs))
    rows = view.rows(atlas.root, atlas)
    shown = [r for r in rows if not names or not r.technique or r.technique.id in names]
    if json:
        common.print_json([_plain(row) for row in shown])
        return
    for task in view.TASKS:
        common.out().print(table(task, shown))


def _measure(jobs: "list[Job]") -> None:
    from atlas.compressors import study

    root = common.writable_root("atlas compressors --write")
    if any(job.part == "wires" for job in jobs) and (lacking := study.lacking()):
        raise Wrong(f"{lacking} (or leave out the part wires with --part)", 1)
    with common.bar(len(jobs)) as progress:
        for job in jobs:
            progress(f"{job.name}, {job.part}")
            try:
                found = study.measure(root, job)
            except LaunchError as error:
                what = f"{job.name}, {job.part}: {error.summary}"
                raise Wrong(f"{what}; the parts before it are saved", 1) from None
            study.keep(root, job, found)


def table(task: str, rows: list[view.Row]) -> "Table":
    """One line a compressor."""
    from rich import box
    from rich.table import Table

    made = Table(
        title=f"{task}: per rank and step",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    made.add_column("compressor", no_wrap=True)
    for heading in ("kB", "error", "after", "ms", "loss", "Mbit/s"):
        made.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        made.add_row(_id(row), *_cells(row.tasks[task]))
    made.caption = (
        "kB: sent by one of 4 ranks; error: relative, of the first step, and after "
        "16 steps; ms: to encode and decode on 2 ranks; Mbit/s: the link on which it "
        "breaks even, on 2 ranks"
    )
    return made


def _id(row: view.Row) -> str:
    return row.technique.id if row.technique else view.PLAIN


def _cells(f: view.Figures) -> list[str]:
    def said(value: Any, text: str) -> str:
        return "" if value is None else text.format(value)

    even = f.pays.get(view.RANKS[0])
    return [
        said(f.wire and f.wire / 1e3, "{:.1f}"),
        said(f.first, "{:.3f}"),
        said(f.after, "{:.3f}"),
        said(f.cost and f.cost.both * 1e3, "{:.2f}"),
        said(f.loss and f.loss["mean"], "{:.3f}"),
        "" if even in (None, 0.0) else "any" if even == inf else f"{even / 1e6:.0f}",
    ]


def _plain(row: view.Row) -> dict[str, Any]:
    from dataclasses import asdict

    tasks = {task: asdict(figures) for task, figures in row.tasks.items()}
    parts = {"stale": row.stale, "missing": row.missing}
    return {"compressor": _id(row), "tasks": tasks, **parts}
