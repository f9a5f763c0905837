"""`atlas race NAME...`: train strategies on the same samples and compare them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlas.commands import common
from atlas.commands.common import Json, Wrong
from atlas.launch import LaunchError
from atlas.race import NAMES
from atlas.views.race import said

if TYPE_CHECKING:
    from rich.table import Table

    from atlas.race.courses import Name
    from atlas.race.study import Plan

Names = Annotated[
    list[str] | None,
    typer.Argument(
        help="Strategies; default: all. --list shows their names.",
        metavar="[NAME]...",
        autocompletion=lambda: list(NAMES),
    ),
]
TaskOption = Annotated[
    str | None, typer.Option(help="digits or characters; default: both.")
]
SeedsOption = Annotated[int, typer.Option(min=1, max=9, help="Number of seeds.")]
StepsOption = Annotated[
    int | None,
    typer.Option(
        min=8, max=900, help="Number of steps, each of four ranks with 8 samples."
    ),
]
RateOption = Annotated[
    list[float] | None,
    typer.Option(help="A learning rate of the grid; repeatable.", min=1e-6, max=100),
]
StragglerOption = Annotated[
    bool | None,
    typer.Option(
        "--straggler/--no-straggler",
        help="Only with rank 1 three times slower, or only without; default: both.",
    ),
]
SweepOption = Annotated[
    bool,
    typer.Option(
        "--sweep", help="Sweep the batch size instead; report steps and compute."
    ),
]
WriteOption = Annotated[
    bool, typer.Option("--write", help="Save the study in measurements/studies/.")
]
ListOption = Annotated[bool, typer.Option("--list", help="List the strategies.")]


def race(
    names: Names = None,
    task: TaskOption = None,
    seeds: SeedsOption = 3,
    steps: StepsOption = None,
    rate: RateOption = None,
    straggler: StragglerOption = None,
    sweep: SweepOption = False,
    write: WriteOption = False,
    list_: ListOption = False,
    json: Json = False,
) -> None:
    """Train several strategies on the same samples and compare them.

    The race uses four ranks. Each strategy runs at its best learning rate on one
    grid. Losses are means over seeds. Time is virtual: one step takes one second, and
    messages are free.

    Examples:

    \b
    atlas race bsp-synchronous-sgd downpour --task digits
    atlas race local-parallelism:greedy local-parallelism:chunked --seeds 1
    atlas race --sweep --task digits
    atlas race --write
    atlas race vertical-sync --write
    """
    from atlas.race import study
    from atlas.race import sweep as sweeps

    if list_:
        typer.echo("\n".join(NAMES))
        return
    plan = _plan(names or [], task, seeds, steps, rate, straggler)
    narrowed = task or steps or rate or seeds != 3 or straggler is not None
    if write and narrowed:
        raise Wrong("--write saves races of the whole study: omit other options", 2)
    root = common.writable_root("atlas race --write") if write else None
    rates = plan.grid if rate else sweeps.RATES
    #: Of some strategies, only what is new is raced and kept.
    chosen = {t: rates for t in plan.tasks} if sweep or (write and not names) else {}
    try:
        made, swept = _measured(plan, chosen, races=not sweep)
    except LaunchError as error:
        raise Wrong(f"{error.summary}; nothing was saved", 1) from None
    if root:
        common.say(f"wrote {study.keep(root, plan, made, swept).relative_to(root)}")
    if json:
        common.print_json({"races": made, "sweep": swept})
        return
    for name, entries in made.items():
        for table in _tables(name, entries):
            common.out().print(table)
    for found in (swept or {}).values():
        common.out().print(_sweep_table(found))


def _plan(
    names: list[str],
    task: str | None,
    seeds: int,
    steps: int | None,
    rate: list[float] | None,
    straggler: bool | None,
) -> "Plan":
    from atlas.race import study
    from atlas.race.strategies import ENTRIES

    for name in names:
        if name not in ENTRIES:
            otherwise = "atlas race --list shows them"
            raise common.unknown("strategy in a race", name, ENTRIES, otherwise)
    if task is not None and task not in study.TASKS:
        raise common.unknown("task", task, study.TASKS, "digits or characters")
    return study.Plan(
        entries=tuple(ENTRIES[n] for n in names or ENTRIES),
        tasks=tuple(t for t in study.TASKS if task in (None, t)),
        seeds=tuple(range(1, seeds + 1)),
        grid=tuple(sorted(rate)) if rate else study.GRID,
        steps=steps,
        stragglers=(False, True) if straggler is None else (straggler,),
    )


def _measured(
    plan: "Plan", swept: dict["Name", tuple[float, ...]], *, races: bool
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The races, if wanted, and the sweeps, by task the rates to try."""
    from atlas.race import study
    from atlas.race import sweep as sweeps

    each = len(sweeps.METHODS) * len(sweeps.SHARES)
    total = plan.total * races + sum(each * len(rates) for rates in swept.values())
    with common.bar(total) as progress:
        made = study.race(plan, progress) if races else {}
        found: dict[str, Any] = {}
        for task, grid in swept.items():
            found[task] = sweeps.sweep(task, progress, grid=grid)
    return made, found or None


def _plain_table(title: str, *headings: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    table.add_column(headings[0], no_wrap=True)
    for heading in headings[1:]:
        table.add_column(heading, justify="right")
    return table


def _tables(task: str, entries: dict[str, Any]) -> Iterator["Table"]:
    """One with equal ranks, one with a straggler."""
    from atlas.race.courses import SLOWDOWN

    slow = f"rank 1 is {SLOWDOWN} times slower"
    titles = {"equal": "equal ranks", "straggler": slow}
    for key, words in titles.items():
        found = [(name, e, e[key]) for name, e in entries.items() if key in e]
        if not found:
            continue
        headings = ("strategy", "rate", "loss", "time", "stale", "MB", "KB")
        table = _plain_table(f"{task}, {words}: after the same samples", *headings)
        for name, entry, r in found:
            age = "" if r["staleness"] is None else f"{r['staleness']:.2f}"
            age = f"{r['alone']} steps" if r["alone"] else age
            _, at, loss, *_ = r["curve"][-1]
            figures = [f"{r['rate']:g}", said(loss), f"{at:.0f}", age]
            figures += [f"{r['bytes'] / 1e6:.1f}", f"{entry['peak'] / 1e3:.0f}"]
            table.add_row(name, *figures)
        table.caption = (
            "time: virtual seconds; stale: gradient staleness in updates (mean), or "
            "steps between synchronizations; MB: sent by all ranks; KB: peak memory "
            "of a rank"
        )
        yield table


def _sweep_table(found: dict[str, Any]) -> "Table":
    title = f"{found['task']}: steps to a loss of {found['target']:g}"
    headings = ("batch", "rate", "steps", "serial", "compute")
    table = _plain_table(title, "strategy", *headings)
    for name, points in found["points"].items():
        for p in points:
            if p["steps"] is None:
                told = ["", f"more than {found['most']}", "", ""]
            else:
                told = [f"{p['rate']:g}", f"{p['steps']:g}", f"{p['serial']:g}"]
                told.append(f"{p['compute']:g}")
            table.add_row(name, str(p["batch"]), *told)
    return table
