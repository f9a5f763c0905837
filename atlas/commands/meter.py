"""`atlas meter train.py`: what a script of the reader's sends, and from which line."""

import json as encoding
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from atlas.commands import common
from atlas.commands.common import Wrong
from atlas.gpus import visible_gpus

Given = Annotated[
    list[str] | None,
    typer.Argument(
        help="A script for torchrun, and what is given to it.",
        metavar="SCRIPT [ARGUMENT]...",
    ),
]
RanksOption = Annotated[
    int, typer.Option("--ranks", "-n", help="Number of ranks.", min=1)
]
TimeoutOption = Annotated[
    float,
    typer.Option(
        help="End the run, and say who is guilty, after this long without any "
        "communication.",
        metavar="SECONDS",
        min=0.1,
    ),
]
JsonOption = Annotated[
    Path | None,
    typer.Option("--json", help="Write the report to FILE.", metavar="FILE"),
]
HtmlOption = Annotated[
    Path | None,
    typer.Option(help="Write one HTML file with a replay of the run.", metavar="FILE"),
]
ExpectOption = Annotated[
    Path | None,
    typer.Option(
        help="Fail if calls or bytes of any line differ from this file.", metavar="FILE"
    ),
]
WriteOption = Annotated[
    Path | None,
    typer.Option(help="Write the file that --expect compares with.", metavar="FILE"),
]
CompareOption = Annotated[
    bool, typer.Option("--compare", help="Compare two reports written with --json.")
]
FromOption = Annotated[
    Path | None,
    typer.Option(
        "--from",
        help="Report what ranks inside `with metered(FOLDER)` wrote there.",
        metavar="FOLDER",
    ),
]
EmulateOption = Annotated[
    bool,
    typer.Option(
        "--emulate-gpu", help="Emulate GPUs, with NCCL's rules enforced on gloo."
    ),
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Do not show what the script prints.")
]


def meter(
    given: Given = None,
    ranks: RanksOption = 4,
    timeout: TimeoutOption = 300.0,
    json: JsonOption = None,
    html: HtmlOption = None,
    expect: ExpectOption = None,
    write_expected: WriteOption = None,
    compare: CompareOption = False,
    from_: FromOption = None,
    emulate_gpu: EmulateOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run any torchrun script, unchanged, and show what it sends from which line.

    Everything after SCRIPT is given to the script. If it hangs, the run is ended, and
    the answer is who waits for whom and which rank is guilty.

    Examples:

    \b
    atlas meter train.py --epochs 1
    atlas meter --ranks 8 --timeout 60 train.py
    atlas meter --json run.json train.py
    atlas meter --html run.html train.py
    atlas meter --compare before.json after.json
    atlas meter --write-expected bytes.json train.py
    atlas meter --expect bytes.json train.py
    atlas meter --from run
    """
    if compare:
        _compare(given or [])
        return
    if from_ and given:
        raise Wrong(f"--from {from_} and {given[0]}: give only one")
    if not given and not from_:
        raise Wrong("which script? atlas meter train.py")
    expected = read(expect) if expect else None
    if from_:
        made = _collected(from_)
    else:
        made = _metered(given or [], ranks, timeout, emulate_gpu, quiet)
    finish(made, json, html, expected, expect, write_expected)


def finish(
    made: dict[str, Any],
    json: Path | None,
    html: Path | None,
    expected: dict[str, Any] | None,
    expect: Path | None,
    write_expected: Path | None,
) -> None:
    """Show a report, write what is to be written, hold it to what was expected."""
    _print(made)
    events = made.pop("events")
    if json:
        _write(json, made)
    if html:
        _page(made | {"events": events}, html)
    _hold(made, expected, expect, write_expected)


def _metered(
    given: list[str], ranks: int, timeout: float, emulate: bool, quiet: bool
) -> dict[str, Any]:
    from atlas.yours import Script, ScriptError, run
    from atlas.yours.events import events
    from atlas.yours.report import report
    from atlas.yours.steps import steps

    script = Script(Path(given[0]), tuple(given[1:]))
    tell = None if quiet else _tell
    try:
        ran = run(
            script, ranks, watch=[steps], timeout=timeout, emulate=emulate, tell=tell
        )
    except ScriptError as error:
        raise Wrong(str(error)) from None
    if not ran.well:
        raise _trouble(ran, timeout)
    made = report(ran) | {"events": events(ran.journals)}
    if not made["backend"]:
        raise Wrong(
            f"{script.path} communicated nothing: it never made a process group, or "
            "never used it",
            1,
        )
    return made


def _collected(folder: Path) -> dict[str, Any]:
    """The report of functions that some other program ran as ranks."""
    from atlas.yours import ScriptError, elsewhere
    from atlas.yours.events import events
    from atlas.yours.report import report

    try:
        ran = elsewhere.read(folder)
        hosts = elsewhere.hosts(folder)
    except ScriptError as error:
        raise Wrong(str(error)) from None
    if not ran.well:
        raise _trouble(ran, 0.0)
    typer.echo(", ".join(f"{host} ({n})" for host, n in hosts.items()), err=True)
    return report(ran) | {"events": events(ran.journals)}


def _tell(rank: int, line: str) -> None:
    typer.echo(f"[rank {rank}] {line}", err=True)


def _trouble(ran: Any, timeout: float) -> Wrong:
    """What to say of a run that gave no figures, the cause first."""
    from atlas.views.metered import hang

    cause = ran.cause
    path = ran.script.path
    if cause is not None and cause.end.kind == "refused":
        return Wrong(cause.end.message)
    if cause is not None and cause.end.no_gpu and not visible_gpus():
        first = cause.end.line
        return Wrong(
            f"{path} needs a GPU, and this machine has none ({first}); "
            "--emulate-gpu runs it on a stand-in",
            1,
        )
    own = cause is not None and not cause.end.echo
    if own and (ran.verdict is None or ran.verdict.kind in ("error", "dead")):
        assert cause is not None
        trace = cause.end.trace or f"{cause.end.line}\n"
        return Wrong(f"{trace}{path} failed on rank {cause.rank}: {cause.end.line}", 1)
    why = f" after {timeout:g} s without communication" if ran.stopped == "late" else ""
    if ran.verdict is None:
        return Wrong(f"{path} did not end{why}", 1)
    return Wrong("\n".join([f"{path} hangs{why}", *hang(ran.verdict)]), 1)


def _print(made: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    from atlas.views.metered import rows, summary

    console = common.out()
    title = f"{made['script']} on {made['ranks']} ranks ({made['backend']})"
    console.print(Text(title, style="bold"))
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("operation")
    table.add_column("called by", overflow="fold")
    for name in ("calls", "a step", "payload", "must send", "waited"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows(made):
        table.add_row(
            row.op,
            row.site,
            row.calls,
            row.per_step,
            row.payload,
            row.wire,
            row.wait,
        )
    console.print(table)
    for line in [*summary(made), *_like(made)]:
        console.print(Text(line), soft_wrap=True)


def _like(made: dict[str, Any]) -> list[str]:
    """What of the atlas it is like; nothing outside a checkout."""
    from atlas import taxonomy
    from atlas.views.nearest import advice, nearest

    try:
        root = taxonomy.find_root()
    except taxonomy.TaxonomyError:
        return advice(made)
    near = [f"like {n.technique}, but: {n.differs}" for n in nearest(made, root)]
    return [*near, *advice(made)]


# Files


def read(path: Path) -> dict[str, Any]:
    """A report, or an expectation, from a file."""
    from atlas.yours.report import FORMAT

    try:
        found = encoding.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Wrong(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise Wrong(f"{path} is not JSON") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise Wrong(f"{path} was not written by this version of atlas meter")
    return found


def _write(path: Path, value: dict[str, Any]) -> None:
    try:
        path.write_text(encoding.dumps(value, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise Wrong(f"cannot write {path}: {error.strerror}") from None


def _page(made: dict[str, Any], path: Path) -> None:
    """Pages are made by the site, which commands do not import."""
    if find_spec("jinja2") is None:
        raise Wrong(f"--html needs jinja2: {common.install('docs')}")
    with tempfile.TemporaryDirectory(prefix="atlas-") as folder:
        report = Path(folder) / "run.json"
        _write(report, made)
        command = [sys.executable, "-m", "atlas.site.metered", str(report), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Wrong(f"cannot write {path}: {done.stderr.strip().splitlines()[-1]}")


def _hold(
    made: dict[str, Any],
    expected: dict[str, Any] | None,
    name: Path | None,
    write_expected: Path | None,
) -> None:
    from atlas.yours.report import changes, expectation

    if write_expected:
        _write(write_expected, expectation(made))
    if expected is None:
        return
    found = changes(expected, made)
    if found:
        raise Wrong("\n".join([f"not as {name} says:", *found]), 1)
    typer.echo(f"as {name} says")  # a path is not to be folded


def _compare(given: list[str]) -> None:
    from atlas.yours.report import changes

    if len(given) != 2:
        raise Wrong("--compare needs two files: before.json after.json")
    found = changes(*(read(Path(name)) for name in given))
    for line in found or ["the same calls and bytes from every line"]:
        typer.echo(line)
