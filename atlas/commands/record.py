"""`atlas record`: run techniques in their modes and save the measurements."""

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from atlas import record as records
from atlas import taxonomy
from atlas.classify import study
from atlas.commands import common
from atlas.commands.common import Json, Wrong
from atlas.determinism import study as determinism
from atlas.launch import LaunchError
from atlas.taxonomy import Atlas, Technique

if TYPE_CHECKING:
    from rich.progress import Progress

Pair = tuple[Technique, str]
#: What any machine with torch can record.
USUAL = ("gloo", "dry")

Names = Annotated[
    list[str] | None,
    typer.Argument(
        help="Techniques.",
        metavar="[NAME]...",
        autocompletion=common.complete_technique,
    ),
]
AllOption = Annotated[
    bool, typer.Option("--all", help="All techniques that have an exemplar.")
]
ModeOption = Annotated[
    str | None,
    typer.Option(
        help=f"Comma-separated: {','.join(records.MODES)}; default: {','.join(USUAL)}.",
        metavar="MODES",
        autocompletion=lambda: list(records.MODES),
    ),
]


def record(
    names: Names = None,
    all: AllOption = False,
    mode: ModeOption = None,
    json: Json = False,
) -> None:
    """Run techniques and save the measurements in measurements/.

    If a claim of a technique fails, nothing is written for that technique.

    Examples:

    \b
    atlas record ring-all-reduce
    atlas record ring-all-reduce zero-3 --mode gloo,emulated
    atlas record --all --mode dry
    """
    atlas = taxonomy.load(common.writable_root("atlas record"))
    pairs = _pairs(atlas, _chosen(atlas, names or [], all), mode)
    for backend in {backend for _, backend in pairs}:
        _check_writable(atlas, backend)
    written: list[str] = []
    failures: list[str] = []
    with _progress(len(pairs)) as (bar, task):
        for technique, backend in pairs:
            try:
                written += _record(atlas, technique, backend, bar, task)
            except (LaunchError, records.RecordError) as error:
                failures.append(_line(technique, backend, error))
            bar.advance(task)
    stale = [s for t in {t.id: t for t, _ in pairs}.values() for s in _stale(atlas, t)]
    if json:
        common.print_json({"written": written, "failed": failures, "stale": stale})
    else:
        _print(written, stale)
    for line in failures:
        common.say(line)
    if failures:
        raise typer.Exit(1)


def _chosen(atlas: Atlas, names: list[str], every: bool) -> list[Technique]:
    if every == bool(names):
        both = f"{' '.join(names)} and --all: give only one"
        raise Wrong(both if every else "give technique names or --all")
    if every:
        names = [t.id for t in atlas.techniques.values() if common.written(atlas, t)]
    return [common.runnable(name) for name in dict.fromkeys(names)]


def _pairs(atlas: Atlas, techniques: list[Technique], mode: str | None) -> list[Pair]:
    """What to record; a technique that is never counted dry is not asked to be."""
    if mode is None:
        return [(t, m) for t in techniques for m in USUAL if m != "dry" or t.dry]
    modes = list(dict.fromkeys(mode.split(",")))
    for m in modes:
        if m not in records.MODES:
            there = f"there are {', '.join(records.MODES)}"
            raise common.unknown("mode", m, records.MODES, there)
    return [(t, m) for t in techniques for m in modes]


def _check_writable(atlas: Atlas, backend: str) -> None:
    """Before minutes of measuring, not after."""
    folder = records.path_of(atlas.root, backend, "any").parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        place = folder.relative_to(atlas.root)
        raise Wrong(f"{place} cannot be written: {error.strerror}") from None


@contextlib.contextmanager
def _progress(total: int) -> Iterator[tuple["Progress", "TaskID"]]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    console = common.err()
    columns = (BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
    text = TextColumn("{task.description}", markup=False)
    with Progress(
        *columns,
        text,
        console=console,
        transient=True,
        disable=not console.is_terminal,
        redirect_stdout=False,
    ) as bar:
        yield bar, bar.add_task("starting ranks", total=total)


def _record(
    atlas: Atlas, t: Technique, backend: str, bar: "Progress", task: "TaskID"
) -> list[str]:
    """What was written: the record, and of a run on gloo where it stands."""

    def tell(text: str) -> None:
        bar.update(task, description=text)

    with contextlib.redirect_stdout(sys.stderr):  # what the ranks print
        made = records.record(atlas.root, t, backend, tell)
        written = [records.write(atlas.root, made)]
        if backend == "gloo" and t in study.written(atlas):
            tell(f"placing {t.id}")
            found = study.place(t, atlas.root)
            written.append(study.keep(atlas.root, t.id, found))
        if backend == "gloo":
            tell(f"comparing bits of {t.id}")
            same = determinism.study(t, atlas.root)
            written.append(determinism.keep(atlas.root, t.id, same))
    return [str(path.relative_to(atlas.root)) for path in written]


def _line(t: Technique, backend: str, error: Exception) -> str:
    if isinstance(error, LaunchError):
        return f"{t.id} ({backend}): {error.summary}; nothing was written"
    return str(error)


def _stale(atlas: Atlas, t: Technique) -> list[str]:
    """Records of other modes that this exemplar has outgrown."""
    return [f"{t.id} {p.backend}" for p in common.proofs(atlas, t) if p.stale]


def _print(written: list[str], stale: list[str]) -> None:
    for path in written:
        typer.echo(f"wrote {path}")
    for name in stale:
        technique, backend = name.split()
        again = f"atlas record {technique} --mode {backend}"
        typer.echo(f"the {backend} record is outdated: {again}")


if TYPE_CHECKING:
    from rich.progress import TaskID
