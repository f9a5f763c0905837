"""The command line of the benches: `python -m atlas.bench`, or `nox -s bench`."""

import difflib
import itertools
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from atlas.launch import LaunchError
from atlas.record import RecordError

if TYPE_CHECKING:
    from rich.table import Table

    from atlas.bench.pair import Bench

OnlyOption = Annotated[
    list[str] | None,
    typer.Option("--only", help="This technique only; may be repeated.", metavar="ID"),
]
RanksOption = Annotated[
    int, typer.Option("--ranks", "-n", min=2, max=64, help="How many gloo ranks.")
]
RepeatsOption = Annotated[
    int, typer.Option(min=1, help="Timed repetitions of each side, after a warm-up.")
]
WriteOption = Annotated[
    bool, typer.Option("--write/--no-write", help="Keep the figures in measurements/.")
]


def main(
    only: OnlyOption = None,
    ranks: RanksOption = 4,
    repeats: RepeatsOption = 15,
    write: WriteOption = True,
) -> None:
    """Time each exemplar beside the production code that does the same.

    Both are first checked to compute the same values, then take turns on the
    same ranks; the ratio is ours over theirs, of medians.

    Examples:

    \b
    python -m atlas.bench
    python -m atlas.bench --only zero-3 --only one-f-one-b --repeats 31
    python -m atlas.bench --ranks 2 --no-write
    """
    try:
        _bench(only or [], ranks, repeats, write)
    except LaunchError as error:
        _stop(error.summary, 2 if error.refused else 1)
    except RecordError as error:
        _stop(str(error), 1)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _bench(only: list[str], ranks: int, repeats: int, write: bool) -> None:
    from atlas import taxonomy
    from atlas.bench import study

    root = taxonomy.find_root()
    chosen = _chosen(study.benches(), only)
    if write:
        study.check_writable(root)
    runs = _measured(chosen, ranks, repeats)
    from rich.console import Console

    Console(highlight=False).print(table(runs))
    if write:
        typer.echo(f"kept in {study.keep(root, runs).relative_to(root)}")


def _chosen(benches: "dict[str, Bench]", only: list[str]) -> "list[Bench]":
    for name in only:
        if name not in benches:
            near = difflib.get_close_matches(name, benches, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}?" if near else f"there are {_list(benches)}"
            _stop(f'no production code is timed beside "{name}": {hint}', 2)
    return [b for name, b in benches.items() if name in only or not only]


def _list(benches: "dict[str, Bench]") -> str:
    return ", ".join(benches)


def _measured(chosen: "list[Bench]", ranks: int, repeats: int) -> dict[str, Any]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    from atlas.bench import study

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=sum(len(b.cases) for b in chosen))
        begun = itertools.count()

        def progress(text: str) -> None:
            bar.update(task, description=text, completed=next(begun))

        return study.study(chosen, ranks, repeats, progress)


def table(runs: dict[str, Any]) -> "Table":
    """One line a case; bytes are what all ranks together must send."""
    from rich.table import Table

    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("technique", "case"):
        made.add_column(name, no_wrap=True)
    for name in ("ours ms", "theirs ms", "ratio", "MB", "theirs MB"):
        made.add_column(name, justify="right", no_wrap=True)
    for technique, run in runs.items():
        for case in run["sizes"]:
            made.add_row(
                technique,
                case["label"],
                f"{case['ours_seconds'] * 1e3:.2f}",
                f"{case['theirs_seconds'] * 1e3:.2f}",
                f"{case['ratio']:.2f}",
                f"{case['ours_moved']['wire'] / 1e6:.3f}",
                f"{case['theirs_moved']['wire'] / 1e6:.3f}",
            )
    return made


def _stop(line: str, code: int) -> NoReturn:
    typer.secho(line, err=True, fg=typer.colors.RED)
    raise typer.Exit(code)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app(prog_name="python -m atlas.bench")
