"""The command line of the mutations: `python -m atlas.mutants`, or `nox -s mutants`."""

import difflib
import os
import time
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from atlas.launch import LaunchError
from atlas.mutants.equivalent import EquivalentError
from atlas.record import RecordError
from atlas.taxonomy import TaxonomyError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.table import Table

    from atlas.mutants.mutations import Mutation
    from atlas.mutants.study import Case
    from atlas.taxonomy import Atlas, Technique

TechniqueOption = Annotated[
    list[str] | None,
    typer.Option("--technique", help="This one only; may be repeated.", metavar="ID"),
]
SampleOption = Annotated[
    int | None,
    typer.Option(min=1, help="Try so many, spread over the techniques; keep nothing."),
]
SeedOption = Annotated[int, typer.Option(help="Which ones a sample takes.")]
JobsOption = Annotated[int, typer.Option(min=1, help="How many at a time.")]
#: Two for each core: a mutation that hangs waits, and computes nothing.
JOBS = 2 * (os.cpu_count() or 1)
ListOption = Annotated[bool, typer.Option("--list", help="List them and run nothing.")]


def main(
    technique: TechniqueOption = None,
    sample: SampleOption = None,
    seed: SeedOption = 0,
    jobs: JobsOption = JOBS,
    show: ListOption = False,
) -> None:
    """Put small mistakes into the exemplars and see whether a claim notices.

    Examples:

    \b
    python -m atlas.mutants
    python -m atlas.mutants --technique gpipe --technique zero-1
    python -m atlas.mutants --sample 200 --seed 7
    python -m atlas.mutants --technique gpipe --list
    """
    try:
        holes = _mutants(technique or [], sample, seed, jobs, show)
    except LaunchError as error:
        _stop(error.summary, 1)
    except (EquivalentError, RecordError, TaxonomyError) as error:
        _stop(str(error), 1)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    raise typer.Exit(1 if holes else 0)


def _mutants(
    names: list[str], sample: int | None, seed: int, jobs: int, show: bool
) -> bool:
    from atlas import taxonomy
    from atlas.mutants import mutations, study

    atlas = taxonomy.load()
    every = study.everything(atlas.root, _chosen(atlas, names))
    if sample is not None:
        every = mutations.chosen(every, sample, seed)
    if show:
        for name, m in every:
            typer.echo(f"{name} {m.id} {m.kind}: {m.diff}")
        return False
    start = time.monotonic()
    cases = _tried(atlas.root, every, jobs)
    rate = len(cases) / (time.monotonic() - start)
    return _told(atlas.root, cases, rate, kept=sample is None)


def _chosen(atlas: "Atlas", names: list[str]) -> "list[Technique]":
    from atlas.mutants.study import written

    known = {t.id: t for t in written(atlas)}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            hint = f": did you mean {near[0]}?" if near else ""
            _stop(f'no exemplar "{name}"{hint}', 2)
    return [t for t in known.values() if t.id in names or not names]


def _tried(
    root: "Path", chosen: "Sequence[tuple[str, Mutation]]", jobs: int
) -> "list[Case]":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    from atlas.mutants import study

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        honest = len({name for name, _ in chosen})
        task = bar.add_task("", total=honest + len(chosen))

        def progress(text: str) -> None:
            bar.update(task, description=text, advance=1)

        return list(study.tried(root, chosen, jobs, progress))


def _told(root: "Path", cases: "list[Case]", rate: float, *, kept: bool) -> bool:
    """The table, and what survived; whether there are holes."""
    from rich.console import Console

    from atlas.mutants import equivalent, study

    broken = {c.technique: c.outcome.said for c in cases if c.broken}
    cases = [c for c in cases if not c.broken]
    Console(highlight=False).print(table(cases))
    for said in broken.values():
        typer.secho(said, err=True, fg=typer.colors.RED)
    for case in cases:
        if case.wrongly_listed:
            said = f"{case.technique} {case.mutation.id}: {case.outcome.said}"
            typer.echo(f"listed as equivalent, yet noticed: {said}")
    survived = [c for c in cases if c.survived]
    if survived:
        typer.echo(
            f"\nsurvived, {len(survived)}; list what is equivalent, with a reason:"
        )
        typer.echo(equivalent.draft((c.technique, c.mutation) for c in survived))
    typer.echo(f"{len(cases)} mutations, {rate:.2f} a second")
    if kept:
        typer.echo(f"kept in {study.keep(root, cases).relative_to(root)}")
    return bool(broken) or any(c.survived or c.wrongly_listed for c in cases)


def table(cases: "list[Case]") -> "Table":
    """One line a technique."""
    from rich.table import Table

    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    made.add_column("technique", no_wrap=True)
    for name in ("mutants", "killed", "equivalent", "survived"):
        made.add_column(name, justify="right", no_wrap=True)
    for name in dict.fromkeys(c.technique for c in cases):
        mine = [c for c in cases if c.technique == name]
        killed = sum(c.outcome.killed for c in mine)
        survived = sum(c.survived for c in mine)
        alike = len(mine) - killed - survived
        row = (len(mine), killed, alike, survived)
        made.add_row(name, *map(str, row))
    return made


def _stop(line: str, code: int) -> NoReturn:
    typer.secho(line, err=True, fg=typer.colors.RED)
    raise typer.Exit(code)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app(prog_name="python -m atlas.mutants")
