"""The oracle's communication term on links of known speed, with a command line.

    python3 -m atlas.planner.accuracy.shaped --quick
    python3 -m atlas.planner.accuracy.shaped

Nodes are network namespaces on this machine, joined by links that tc shapes to 50,
100 and 500 Mbit/s; see `atlas.planner.accuracy.nodes`.
"""

import os
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from atlas.launch import LaunchError
from atlas.planner.accuracy.exchanges import EXCHANGES
from atlas.record import RecordError

if TYPE_CHECKING:
    from rich.table import Table

    from atlas.planner.accuracy.shaped_study import Case

QUICK: dict[str, Any] = {"rates": (100_000_000,), "sizes": (1_000_000,)}

QuickOption = Annotated[
    bool, typer.Option("--quick", help="100 Mbit/s and 1 MB: half a minute.")
]
OnlyOption = Annotated[
    list[str] | None,
    typer.Option("--only", help="This exchange only; may be repeated.", metavar="NAME"),
]
WriteOption = Annotated[
    bool, typer.Option("--write/--no-write", help="Keep a whole study's figures.")
]


def main(
    quick: QuickOption = False, only: OnlyOption = None, write: WriteOption = True
) -> None:
    """Time exchanges on links of known speed beside what the oracle says.

    Every rank is a node with a network of its own, on this machine; needs Linux,
    iproute2 and root, or `unshare --user --map-root-user` before the command.
    About ten minutes; only the whole study is kept.

    Examples:

    \b
    python3 -m atlas.planner.accuracy.shaped --quick
    python3 -m atlas.planner.accuracy.shaped --quick --only all_reduce --only send
    python3 -m atlas.planner.accuracy.shaped
    """
    from atlas.planner.accuracy.nodes import missing

    _known(only or [])
    if lacking := missing():
        _stop(lacking, 1)
    try:
        _study(quick, only or [], write)
    except LaunchError as error:
        _stop(error.summary, 1)
    except RecordError as error:
        _stop(str(error), 1)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _known(only: list[str]) -> None:
    for name in only:
        if name not in EXCHANGES:
            _stop(f'no exchange "{name}": expected one of {", ".join(EXCHANGES)}', 2)


def _study(quick: bool, only: list[str], write: bool) -> None:
    from rich.console import Console

    from atlas import taxonomy
    from atlas.planner.accuracy import shaped_study as study

    whole = not quick and not only
    parts: dict[str, list[Case]] = {
        "rows": study.cases(
            exchanges=only or tuple(EXCHANGES), **(QUICK if quick else {})
        )
    }
    if whole:
        parts["swaps"] = study.swaps()
    root = taxonomy.find_root()
    before = os.getloadavg()[0]
    found = _measured(parts)
    out = Console(highlight=False)
    for rows in found.values():
        out.print(table(rows))
    for name, errors in study.summary(found["rows"]).items():
        if name == "judged":
            out.print(verdict(errors, study.GOAL), soft_wrap=True)
    if whole and write:
        kept = study.keep(root, found, (before, os.getloadavg()[0]))
        out.print(f"kept in {kept.relative_to(root)}")


def _measured(parts: "dict[str, list[Case]]") -> dict[str, list[Any]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Remaining

    from atlas.planner.accuracy import shaped_study as study

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    bar = Progress(*columns, Remaining(), console=Console(stderr=True), transient=True)
    done = 0.0
    expected = 0.0
    with bar:
        total = sum(case.seconds for cases in parts.values() for case in cases)
        task = bar.add_task("", total=total)

        def progress(text: str, seconds: float) -> None:
            nonlocal done, expected
            done, expected = done + expected, seconds
            bar.update(task, description=text, completed=done)

        return {kind: study.measure(cases, progress) for kind, cases in parts.items()}


def table(rows: list[Any]) -> "Table":
    """One line a row; wire is the busiest node's, over what was expected."""
    from rich.table import Table

    from atlas.planner.accuracy.shaped_study import took_turns, wire_ratios

    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    made.add_column("exchange", no_wrap=True)
    for name in ("nodes", "Mbit/s", "MB", "ms", "said", "error", "wire"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("", no_wrap=True)
    for r in rows:
        made.add_row(
            r["exchange"],
            str(r["nodes"]),
            f"{r['rate'] / 1e6:g}",
            f"{r['bytes'] / 1e6:g}",
            f"{r['seconds'] * 1e3:.1f}",
            f"{r['predicted'] * 1e3:.1f}",
            f"{r['error']:+.1%}",
            f"{max(wire_ratios(r)):.3f}",
            "took turns" if took_turns(r) else "",
        )
    return made


def verdict(errors: dict[str, Any], goal: float) -> str:
    """The contract in one line."""
    held = "held" if errors["median"] <= goal else "not held"
    return (
        f"gloo: median error {errors['median']:.2%} over {errors['rows']} rows "
        f"(worst {errors['worst']:.0%}, accuracy {errors['accuracy']:.1%}; by the "
        f"formulas of their names {errors['named_median']:.1%}); "
        f"at most {goal:.0%} was promised: {held}"
    )


def _stop(line: str, code: int) -> NoReturn:
    typer.secho(line, err=True, fg=typer.colors.RED)
    raise typer.Exit(code)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app(prog_name="python3 -m atlas.planner.accuracy.shaped")
