"""The command line of the compositions: `python -m atlas.compose`."""

from typing import Annotated, NoReturn

import typer

from atlas import taxonomy
from atlas.compose import study
from atlas.record import RecordError
from atlas.taxonomy import TaxonomyError
from atlas.views import composition as view

NamesArgument = Annotated[
    list[str] | None,
    typer.Argument(help="Two techniques of the table: run this pair, keep nothing."),
]
AgainOption = Annotated[
    bool, typer.Option("--again", help="Run what is kept of today's source, too.")
]


def main(names: NamesArgument = None, again: AgainOption = False) -> None:
    """Run pairs of techniques together, and compare a step with one process.

    Without names: every pair that is missing or of an older source. What is done is
    kept, so it can be interrupted.
    """
    try:
        failed = _one(names) if names else _all(again)
    except (RecordError, TaxonomyError) as error:
        _stop(str(error), 1)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if failed:
        _stop(failed, 1)


def _one(names: list[str]) -> str:
    """Run one pair; what is wrong with it, if anything."""
    for name in names:
        if name not in view.ENTRIES:
            _stop(f'no technique "{name}" here: {", ".join(view.ENTRIES)}', 2)
    if len(set(names)) != 2:
        _stop(f"{' '.join(names)}: give two different techniques", 2)
    first, second = sorted(names, key=list(view.ENTRIES).index)
    pair = first, second
    if pair in view.REFUSED:
        _stop(f"{view.key(pair)}: refused: {view.REFUSED[pair]}", 2)
    found = study.run(pair)
    box = " x ".join(f"{axis} {length}" for axis, length in found["box"].items())
    typer.echo(f"{view.key(pair)}, {found['ranks']} ranks: {box}")
    for figure in study.FIGURES:
        if figure in found:
            typer.echo(f"{figure}: {found[figure]:.3g} of what rounding may do")
    return str(found.get("failed", ""))


def _all(again: bool) -> str:
    """Run what is missing; which pairs failed, if any."""
    from rich.console import Console
    from rich.progress import track

    root = taxonomy.find_root()
    made = study.begun(root)
    if again:
        made["cells"] = {}
    todo, console = study.missing(made), Console(stderr=True)
    for kept in track(
        study.study(made), "pairs", total=len(todo), console=console, transient=True
    ):
        study.keep(root, kept)
    typer.echo(f"wrote {view.PLACE}")
    failed = {key: c["failed"] for key, c in made["cells"].items() if "failed" in c}
    return "\n".join(f"{key}: {why}" for key, why in failed.items())


def _stop(line: str, code: int) -> NoReturn:
    typer.secho(line, err=True, fg=typer.colors.RED)
    raise typer.Exit(code)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app(prog_name="python -m atlas.compose")
