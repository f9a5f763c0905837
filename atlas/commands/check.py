"""The command `atlas check`: is the reader's own code right?"""

import ast
import contextlib
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from atlas.check.checking import DEADLINE, STEPS, CheckError, Result, check_script
from atlas.check.parts import Kept, check_part
from atlas.commands import common
from atlas.commands.common import Json, Wrong
from atlas.launch import LaunchError
from atlas.taxonomy import find_root
from atlas.views.check import Screen, explained, part_screen, screen

#: What the contracts are called; the ranks know the rest.
NAMES = (
    "all-reduce",
    "broadcast",
    "reduce-scatter",
    "all-gather",
    "all-to-all",
    "data-parallel",
    "sharded-optimizer",
    "fully-sharded",
    "column-row",
    "vocabulary-parallel-loss",
    "attention",
    "pipeline",
    "parameter-server",
    "checkpoint",
    "pipeline-schedule",
    "mixing-matrix",
    "compressor",
)


def _complete(incomplete: str) -> list[str]:
    return [name for name in NAMES if name.startswith(incomplete)]


What = Annotated[
    str,
    typer.Argument(
        help="A script that torchrun could start; or a part, as MODULE:NAME or "
        "FILE.py:NAME, with --contract.",
        metavar="SCRIPT|PART",
    ),
]
RanksOption = Annotated[
    int | None,
    typer.Option(
        "--ranks",
        "-n",
        help="Number of ranks; default: 4 for a script, 1 to 4 for a part.",
    ),
]
ContractOption = Annotated[
    str | None,
    typer.Option(
        help=f"What the part must do: {', '.join(NAMES)}.",
        metavar="NAME",
        autocompletion=_complete,
    ),
]
WithOption = Annotated[
    list[str] | None,
    typer.Option(
        "--with", help="An option of the part, such as bucket=50.", metavar="NAME=VALUE"
    ),
]
OneOption = Annotated[
    str,
    typer.Option(
        "--one",
        help="Arguments of the script on one process, as one string.",
        metavar="ARGUMENTS",
    ),
]
ManyOption = Annotated[
    str,
    typer.Option(
        "--many",
        help="Arguments of the script on the ranks, as one string.",
        metavar="ARGUMENTS",
    ),
]
StepsOption = Annotated[
    int, typer.Option(help="Optimizer steps to compare.", min=1, metavar="STEPS")
]
EmulateOption = Annotated[
    bool,
    typer.Option(
        "--emulate-gpu", help="Emulate GPUs, with NCCL's rules enforced on gloo."
    ),
]
TimeoutOption = Annotated[
    float,
    typer.Option(help="Time limit of each run.", metavar="SECONDS", min=0.1),
]


def check(
    what: What,
    ranks: RanksOption = None,
    one: OneOption = "",
    many: ManyOption = "",
    steps: StepsOption = STEPS,
    contract: ContractOption = None,
    given: WithOption = None,
    emulate_gpu: EmulateOption = False,
    timeout: TimeoutOption = DEADLINE,
    json: Json = False,
) -> None:
    """Check your own code: do p ranks do what one process does?

    A script runs unchanged, on one process and on the ranks, and must see the same
    samples in each step: give each run its own batch size. Weights and gradients are
    compared at every optimizer step. How far they may differ is measured: one process
    runs again with its numbers moved by one rounding.

    A part, such as a wrapper or an all-reduce, is held against a contract.
    The exit code is 1 if they differ or the contract is broken.

    Examples:

    \b
    atlas check train.py --ranks 4 --one "--batch 32" --many "--batch 8"
    atlas check train.py --ranks 2 --steps 10 --json
    atlas check train_gpu.py --ranks 4 --emulate-gpu
    atlas check mymodule:MyDDP --contract data-parallel
    atlas check parts.py:ring --contract all-reduce --ranks 3
    """
    if contract is not None:
        counts = [ranks] if ranks is not None else []
        _show_part(_part(what, contract, _options(given), counts, emulate_gpu), json)
        return
    if ":" in what and not Path(what).exists():
        raise Wrong(f"{what} is a part: --contract says what it must do")
    found = _script(
        what,
        ranks if ranks is not None else 4,
        _words("--one", one),
        _words("--many", many),
        steps,
        emulate_gpu,
        timeout,
    )
    if json:
        common.print_json({**asdict(found), "holds": found.holds})
    else:
        _print(screen(found, explained(find_root())))
    if not found.holds:
        raise typer.Exit(1)


def _words(option: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise Wrong(f"{option} {text}: {error}") from None


def _options(given: list[str] | None) -> dict[str, Any]:
    """NAME=VALUE, the value as Python would read it, or else as text."""
    found: dict[str, Any] = {}
    for word in given or ():
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise Wrong(f"--with {word}: write it as NAME=VALUE")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[name] = value
    return found


def _script(
    what: str,
    ranks: int,
    one: list[str],
    many: list[str],
    steps: int,
    emulate: bool,
    timeout: float,
) -> Result:
    with common.waiting(f"running {what} on one process and on {ranks} ranks"):
        try:
            return check_script(
                Path(what),
                ranks=ranks,
                one=one,
                many=many,
                steps=steps,
                timeout=timeout,
                emulate=emulate,
            )
        except CheckError as error:
            raise Wrong(str(error)) from None


def _part(
    what: str, contract: str, options: dict[str, Any], ranks: list[int], emulate: bool
) -> Kept:
    with (
        common.waiting(f"holding {what} against {contract}"),
        contextlib.redirect_stdout(sys.stderr),
    ):
        try:
            return check_part(
                what, contract, options=options, ranks=ranks, emulate=emulate
            )
        except (CheckError, LaunchError) as error:
            raise Wrong(str(error)) from None


def _show_part(found: Kept, json: bool) -> None:
    if json:
        common.print_json({**asdict(found), "holds": found.holds})
    else:
        _print(part_screen(found))
    if not found.holds:
        raise typer.Exit(1)


def _print(shown: Screen) -> None:
    from rich.table import Table
    from rich.text import Text

    console = common.out()
    style = "green" if shown.holds else "bold red"
    console.print(Text(shown.verdict, style=style), soft_wrap=True)
    grid = Table.grid(padding=(0, 2))
    for label, text in shown.lines:
        grid.add_row(Text(label, style="dim"), Text(text))
    console.print(grid)
