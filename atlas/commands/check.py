"""The command `atlas check`: is the reader's own code right?"""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from atlas.check.checking import DEADLINE, STEPS, CheckError, Result, check_script
from atlas.commands import common
from atlas.commands.common import Json, Wrong
from atlas.views.check import screen

What = Annotated[
    str, typer.Argument(help="A script that torchrun could start.", metavar="SCRIPT")
]
RanksOption = Annotated[
    int, typer.Option("--ranks", "-n", help="Number of ranks to compare with one.")
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
    ranks: RanksOption = 4,
    one: OneOption = "",
    many: ManyOption = "",
    steps: StepsOption = STEPS,
    emulate_gpu: EmulateOption = False,
    timeout: TimeoutOption = DEADLINE,
    json: Json = False,
) -> None:
    """Check your own training script: do p ranks do what one process does?

    The script runs unchanged, on one process and on the ranks, and must see the same
    samples in each step: give each run its own batch size. Weights and gradients are
    compared at every optimizer step. How far they may differ is measured: one process
    runs again with its numbers moved by one rounding. The exit code is 1 if they
    differ.

    Examples:

    \b
    atlas check train.py --ranks 4 --one "--batch 32" --many "--batch 8"
    atlas check train.py --ranks 2 --steps 10 --json
    atlas check train_gpu.py --ranks 4 --emulate-gpu
    """
    found = _checked(
        what, ranks, shlex.split(one), shlex.split(many), steps, emulate_gpu, timeout
    )
    if json:
        common.print_json({**asdict(found), "holds": found.holds})
    else:
        _print(found)
    if not found.holds:
        raise typer.Exit(1)


def _checked(
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


def _print(found: Result) -> None:
    from rich.table import Table
    from rich.text import Text

    shown, console = screen(found), common.out()
    style = "green" if shown.holds else "bold red"
    console.print(Text(shown.verdict, style=style), soft_wrap=True)
    grid = Table.grid(padding=(0, 2))
    for label, text in shown.lines:
        grid.add_row(Text(label, style="dim"), Text(text))
    console.print(grid)
