"""The command line of the study of determinism: `python -m atlas.determinism`."""

from typing import Annotated, NoReturn

import typer

from atlas import taxonomy
from atlas.determinism import kept, study
from atlas.launch import LaunchError
from atlas.record import RecordError
from atlas.taxonomy import Atlas, TaxonomyError, Technique

TechniqueOption = Annotated[
    list[str] | None,
    typer.Option("--technique", help="This one only; may be repeated.", metavar="ID"),
]


def main(technique: TechniqueOption = None) -> None:
    """Run exemplars and compare bits across ranks, runs and numbers of ranks.

    Without a name: every exemplar whose answers are missing or of an older source.
    What is done is kept, so it can be interrupted.
    """
    try:
        atlas = taxonomy.load()
        for done in _studied(atlas, _chosen(atlas, technique or [])):
            typer.echo(f"wrote {done}")
    except LaunchError as error:
        _stop(error.summary, 1)
    except (RecordError, TaxonomyError) as error:
        _stop(str(error), 1)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _chosen(atlas: Atlas, names: list[str]) -> list[Technique]:
    if not names:
        return list(kept.missing(atlas))
    known = {t.id: t for t in kept.written(atlas)}
    for name in names:
        if name not in known:
            _stop(f'no exemplar "{name}"', 2)
    return [known[name] for name in dict.fromkeys(names)]


def _studied(atlas: Atlas, todo: list[Technique]) -> list[str]:
    from rich.console import Console
    from rich.progress import track

    made = []
    console = Console(stderr=True)
    for t in track(todo, "runs", console=console, transient=True):
        path = study.keep(atlas.root, t.id, study.study(t, atlas.root))
        made.append(str(path.relative_to(atlas.root)))
    return made


def _stop(line: str, code: int) -> NoReturn:
    typer.secho(line, err=True, fg=typer.colors.RED)
    raise typer.Exit(code)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app(prog_name="python -m atlas.determinism")
