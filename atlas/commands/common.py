"""What the commands share: names, completion, JSON, proofs, waiting."""

import contextlib
import difflib
import json
import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlas import record, taxonomy
from atlas.taxonomy import Atlas, Technique

if TYPE_CHECKING:
    from rich.console import Console

#: What takes longer than this says that it is at work.
PATIENCE = 0.5


class Wrong(Exception):
    """What was asked cannot be done; the message is the one line to print."""

    def __init__(self, line: str, code: int = 2):
        super().__init__(line)
        self.code = code


def out() -> "Console":
    """Where results go."""
    from rich.console import Console

    return Console(highlight=False)


def err() -> "Console":
    """Where progress goes."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def say(line: str) -> None:
    """One line of trouble."""
    typer.secho(line, err=True, fg=typer.colors.RED)


def print_json(value: Any) -> None:
    """Plain JSON, which knows no infinity: such a number becomes a string."""
    sys.stdout.write(json.dumps(_finite(value), indent=1, ensure_ascii=False) + "\n")


def _finite(value: Any) -> Any:
    match value:
        case dict():
            return {k: _finite(v) for k, v in value.items()}
        case list() | tuple():
            return [_finite(v) for v in value]
        case float() if not math.isfinite(value):
            return str(value)
    return value


# Names


def near(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """The known names that this one was probably meant to be, the best first."""
    word, known = name.casefold(), sorted(known)
    inside = [k for k in known if word and (word in k or k in word)]
    close = difflib.get_close_matches(word[:80], known, n=most, cutoff=0.5)
    return list(dict.fromkeys([*close, *inside]))[:most]


def unknown(kind: str, name: str, known: Iterable[str], otherwise: str) -> Wrong:
    """One line: what was asked for, and what was probably meant."""
    found = near(name, known)
    hint = f"did you mean {' or '.join(found)}?" if found else otherwise
    return Wrong(f'there is no {kind} "{name}": {hint}')


def technique_named(atlas: Atlas, name: str) -> Technique:
    """The technique of this id."""
    if name in atlas.techniques:
        return atlas.techniques[name]
    if name in atlas.systems:
        raise Wrong(f"{name} is a system, not a technique: atlas show {name}")
    raise unknown("technique", name, atlas.techniques, "atlas list shows all")


def written(atlas: Atlas, technique: Technique) -> bool:
    """Whether the technique has an exemplar."""
    return (atlas.root / technique.exemplar).is_file()


def runnable(name: str) -> Technique:
    """The technique of this id, if it can be run here at all; reads its file alone."""
    from importlib.util import find_spec

    from atlas.launch import ROOT

    root = taxonomy.find_root()
    technique = taxonomy.technique(name, root)
    if technique is None:
        technique = technique_named(taxonomy.load(root), name)
    if not (root / technique.exemplar).is_file():
        raise Wrong(f"{name} has no exemplar yet ({technique.exemplar})")
    if find_spec("torch") is None:
        raise Wrong(f"running {name} needs torch: {install('run')}")
    if root.resolve() != ROOT:
        raise Wrong(
            f"this atlas is installed from {ROOT}; to use this folder, run pip install "
            f"-e {root.resolve()}"
        )
    return technique


def install(group: str) -> str:
    """The line that installs what is missing, as this atlas was installed."""
    if taxonomy.installed(taxonomy.find_root()):
        return f'pip install "ddl-atlas[{group}]"'
    return f'pip install -c constraints.txt -e ".[{group}]"'


def writable_root(what: str) -> Path:
    """The root, where it is a checkout: before the work, not after."""
    root = taxonomy.find_root()
    if taxonomy.installed(root):
        raise Wrong(
            f"{what} writes into a checkout, and this atlas is installed in {root}: "
            "clone the repository and run it there"
        )
    return root


# Completion: reads names of files, and parses none


def _technique_files() -> list[Path]:
    try:
        root = taxonomy.find_root()
    except taxonomy.TaxonomyError:
        return []
    return sorted((root / "taxonomy" / "techniques").glob("*/*/*.yaml"))


def complete_technique(incomplete: str) -> list[str]:
    """Techniques that begin like this."""
    return [p.stem for p in _technique_files() if p.stem.startswith(incomplete)]


def complete_any(incomplete: str) -> list[str]:
    """Techniques and systems that begin like this."""
    files = _technique_files()
    if files:
        files += sorted(files[0].parents[3].glob("systems/*.yaml"))
    return [p.stem for p in files if p.stem.startswith(incomplete)]


def _axes() -> tuple[taxonomy.Axis, ...]:
    try:
        return taxonomy.load().axes
    except taxonomy.TaxonomyError:
        return ()


def complete_axis(incomplete: str) -> list[tuple[str, str]]:
    """Axes that begin like this, each with its question."""
    return [(a.id, a.question) for a in _axes() if a.id.startswith(incomplete)]


def complete_family(incomplete: str) -> list[tuple[str, str]]:
    """Families that begin like this, each with its sentence."""
    families = [f for a in _axes() for f in a.families]
    return [(f.id, f.summary) for f in families if f.id.startswith(incomplete)]


def complete_place(incomplete: str) -> list[str]:
    """AXIS/FAMILY/ of a new technique; in a family, names without an exemplar yet."""
    try:
        atlas = taxonomy.load()
    except taxonomy.TaxonomyError:
        return []
    if incomplete.count("/") < 2:
        places = [f"{path}/" for path in atlas.families]
    else:
        places = [t.path for t in atlas.techniques.values() if not written(atlas, t)]
    return [place for place in places if place.startswith(incomplete)]


def complete_mutant(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Mutants of the technique that stands on the line already."""
    try:
        technique = taxonomy.technique(ctx.params.get("name") or "")
    except taxonomy.TaxonomyError:
        return []
    mutants = technique.mutants if technique else ()
    return [(m.id, m.says) for m in mutants if m.id.startswith(incomplete)]


def complete_size(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Sizes of the technique that stands on the line already."""
    from atlas.arguments import arguments

    technique = taxonomy.technique(ctx.params.get("name") or "")
    if technique is None or not (taxonomy.find_root() / technique.exemplar).is_file():
        return []
    return [
        (f"{a.name}=", f"{a.kind}, default {a.default}")
        for a in arguments(technique).values()
        if a.name.startswith(incomplete)
    ]


Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


# Proofs


@dataclass(frozen=True)
class Proof:
    """What one record proves: on how many ranks, when, on which torch."""

    backend: str
    ranks: tuple[int, ...]
    recorded: str
    torch: str
    stale: bool

    def __str__(self) -> str:
        counts = " ".join(map(str, self.ranks))
        older = " (older source)" if self.stale else ""
        return f"{self.backend} {counts}{older}"

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def proofs(atlas: Atlas, technique: Technique) -> list[Proof]:
    """What is proven of a technique, backend by backend."""
    found = []
    for backend in record.MODES if written(atlas, technique) else ():
        kept = record.read(atlas.root, backend, technique.id)
        if kept is not None:
            found.append(
                Proof(
                    backend,
                    tuple(run["p"] for run in kept["runs"]),
                    kept["recorded"],
                    kept["versions"]["torch"],
                    record.stale(atlas.root, technique, kept),
                )
            )
    return found


# Waiting


@contextlib.contextmanager
def waiting(text: str) -> Iterator[None]:
    """Say on a terminal what is going on, once it takes more than a moment."""
    console = err()
    if not console.is_terminal:
        yield
        return
    status = console.status(text)
    timer = threading.Timer(PATIENCE, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()


@contextlib.contextmanager
def bar(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on a terminal, told of each of so many parts; elsewhere nothing."""
    from rich import progress as rich

    columns = (rich.BarColumn(), rich.MofNCompleteColumn(), rich.TimeRemainingColumn())
    words, console = rich.TextColumn("{task.description}"), err()
    quiet = not console.is_terminal
    with rich.Progress(
        *columns, words, console=console, transient=True, disable=quiet
    ) as shown:
        task, starting = shown.add_task("", total=total), [True]

        def begin(text: str) -> None:
            shown.update(task, description=text, advance=0 if starting else 1)
            starting.clear()

        yield begin
