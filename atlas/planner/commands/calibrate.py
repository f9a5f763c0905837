"""`atlas calibrate`: measure the collectives and matrix products of this machine."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlas.commands import common
from atlas.commands.common import Json, Wrong
from atlas.gpus import visible_gpus
from atlas.launch import MOST_RANKS, LaunchError
from atlas.planner.units import seconds

if TYPE_CHECKING:
    from rich.table import Table

RanksOption = Annotated[
    list[int] | None,
    typer.Option(
        "--ranks",
        "-n",
        min=2,
        max=MOST_RANKS,
        help="Ranks per group; repeatable. Default: 2 and the number of cores.",
    ),
]
OutOption = Annotated[
    Path, typer.Option("--out", "-o", help="The file to write.", dir_okay=False)
]
QuickOption = Annotated[
    bool,
    typer.Option("--quick", help="Three sizes and few repetitions; takes seconds."),
]


def calibrate(
    ranks: RanksOption = None,
    out: OutOption = Path("machine.json"),
    quick: QuickOption = False,
    json: Json = False,
) -> None:
    """Measure this machine and describe it as a cluster for the oracle.

    Measures the latency and bandwidth of every collective at each number of ranks,
    matrix products, copies and the fixed overhead of a step, and reports how well each
    linear fit matches the data. Close other programs first: they would distort the
    measurements.

    Examples:

    \b
    atlas calibrate
    atlas calibrate --ranks 2 --ranks 4 --out box.json
    atlas predict --cluster machine.json --model resnet-50 --batch 8
      --strategy "Data(2)" --optimizer momentum
    """
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise Wrong(f"measuring needs torch: {common.install('run')}")
    _check(out)
    from atlas.planner.calibrate import machine, measure

    numbers = sorted(set(ranks or [2, max(2, visible_gpus() or os.cpu_count() or 2)]))
    sizes = measure.QUICK if quick else measure.Sizes()
    with common.bar(1 + len(numbers)) as progress:
        try:
            found = machine.calibrate(numbers, sizes, progress)
        except LaunchError as error:
            line = f"{error.summary}; nothing was written"
            raise Wrong(line, 2 if error.refused else 1) from None
    made = machine.assembled(found)
    machine.keep(out, made)
    if json:
        common.print_json(made)
        return
    for table in _tables(made):
        common.out().print(table)
    _warn(made, numbers)
    common.out().print(f"wrote {out}: atlas predict --cluster {out} ...")


def _check(out: Path) -> None:
    """Told before a minute of measuring, not after."""
    if out.suffix not in (".json", ".yaml", ".yml"):
        raise Wrong(f"--out {out}: expected a name that ends in .json")
    folder = out.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise Wrong(f"--out {out}: {folder} is not a writable folder")


def _tables(made: dict[str, Any]) -> "list[Table]":
    from rich import box
    from rich.table import Table

    def table(title: str, *columns: str) -> Table:
        found = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
        found.add_column(columns[0])
        for name in columns[1:]:
            found.add_column(name, justify="right")
        return found

    links = table("Collectives", "collective", "ranks", "latency", "bandwidth")
    for level in made["levels"]:
        for op, link in level["links"].items():
            if op != "any":
                rate = f"{link['bandwidth'] / 1e9:.2f} GB/s"
                links.add_row(op, str(level["size"]), seconds(link["alpha"]), rate)
    device, parts = made["device"], table("One process", "what", "measured")
    for kind, flops in device["flops"].items():
        parts.add_row(f"matrix products, {kind}", f"{flops / 1e9:.1f} GFLOP/s")
    parts.add_row("half that rate at", f"{device['half'] / 1e6:.3g} MFLOP")
    parts.add_row("copies", f"{device['bandwidth'] / 1e9:.2f} GB/s")
    parts.add_row("overhead per kernel", seconds(device["overhead"]))
    parts.add_row("overhead per step", seconds(device["step"]))
    fits = table("Quality of fit", "what", "points", "mean error", "measured / fitted")
    for row in made["calibration"]["fitted"]:
        span = f"{row['low']:.2f} to {row['high']:.2f}"
        fits.add_row(row["what"], str(row["points"]), f"{row['error']:.1%}", span)
    return [links, parts, fits]


def _warn(made: dict[str, Any], numbers: list[int]) -> None:
    cores = made["calibration"]["cores"]
    if made["calibration"]["backend"] == "gloo" and max(numbers) > cores:
        common.say(
            f"{max(numbers)} ranks on {cores} cores: their times reflect the "
            "scheduler more than the network"
        )
    busy = os.getloadavg()[0] - max(numbers)
    if busy > 1:
        common.say(f"about {busy:.0f} other processes were running: measure again")
