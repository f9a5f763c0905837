"""`atlas run NAME`: run a technique and judge its claims by what was measured."""

import contextlib
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from atlas import measure as measuring
from atlas import record as records
from atlas.arguments import ArgumentError, parsed
from atlas.commands import common
from atlas.commands.common import Json, Wrong
from atlas.commands.table import LABELS, conclusion, ranks_of, table
from atlas.gpus import visible_gpus
from atlas.launch import ROOT, LaunchError
from atlas.taxonomy import Mutant, Technique
from atlas.verdict import Verdict, failed, judge

Name = Annotated[
    str,
    typer.Argument(
        help="A technique.", metavar="NAME", autocompletion=common.complete_technique
    ),
]
Sizes = Annotated[
    list[str] | None,
    typer.Argument(
        help="Sizes of the exemplar, each as SIZE=VALUE.",
        metavar="[SIZE=VALUE]...",
        autocompletion=common.complete_size,
    ),
]
RanksOption = Annotated[
    int | None,
    typer.Option(
        "--ranks", "-n", help="Number of ranks; default: 4, if the technique allows it."
    ),
]
DryOption = Annotated[
    int | None,
    typer.Option(
        help="Count traffic on this many simulated ranks; values mean nothing."
    ),
]
EmulateOption = Annotated[
    bool,
    typer.Option(
        "--emulate-gpu", help="Emulate GPUs, with NCCL's rules enforced on gloo."
    ),
]
MutantOption = Annotated[
    str | None,
    typer.Option(
        help="Run this mutant, a deliberate mistake in the code.",
        metavar="ID",
        autocompletion=common.complete_mutant,
    ),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        help=f"Time limit in seconds; default: {measuring.DEADLINE:g}, or "
        f"{measuring.HANG_DEADLINE:g} for a mutant that hangs.",
        metavar="SECONDS",
        min=0.1,
    ),
]
AllRanksOption = Annotated[
    bool,
    typer.Option("--all-ranks", help="One line per rank instead of one per claim."),
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show tracebacks on failure.")
]


def run(
    name: Name,
    sizes: Sizes = None,
    ranks: RanksOption = None,
    dry: DryOption = None,
    emulate_gpu: EmulateOption = False,
    mutant: MutantOption = None,
    timeout: TimeoutOption = None,
    all_ranks: AllRanksOption = False,
    json: Json = False,
    verbose: VerboseOption = False,
) -> None:
    """Run a technique and show predictions, measurements and verdicts.

    On a machine with GPUs it runs on NCCL; set CUDA_VISIBLE_DEVICES= to run it on
    gloo. The exit code is 1 if a claim fails, also for a mutant.

    Examples:

    \b
    atlas run ring-all-reduce --ranks 4
    atlas run ring-all-reduce --ranks 4 elements=1000
    atlas run ring-all-reduce --dry 1024
    atlas run ring-all-reduce --emulate-gpu --all-ranks
    atlas run top-k-error-feedback --ranks 4 --json
    """
    technique = common.runnable(name)
    try:
        given = parsed(technique, sizes or ())
    except ArgumentError as error:
        raise Wrong(str(error)) from None
    mode, p = _where(technique, ranks, dry, emulate_gpu)
    chosen = _mutant(technique, mutant)
    limit = timeout or measuring.deadline(chosen)
    try:
        found = _measure(technique, chosen, p, mode, limit, given)
    except LaunchError as error:
        _give_up(error, chosen, verbose)
    verdicts = judge(technique, found)
    if json:
        common.print_json(plain(technique, chosen, found, verdicts))
    else:
        show(technique, chosen, found, verdicts, all_ranks)
    if failed(verdicts):
        raise typer.Exit(1)


def _where(
    t: Technique, ranks: int | None, dry: int | None, emulate: bool
) -> tuple[str, int]:
    """The mode, and how many ranks."""
    if dry is not None:
        if ranks is not None or emulate:
            other = f"--ranks {ranks}" if ranks is not None else "--emulate-gpu"
            raise Wrong(f"--dry {dry} and {other}: give only one")
        return "dry", dry
    p = ranks if ranks is not None else max(t.min_ranks, min(4, t.max_ranks or 4))
    if emulate:
        return "emulated", p
    gpus = visible_gpus()
    if ranks is None and t.min_ranks <= gpus < p:
        return "nccl", gpus
    if ranks is None and 0 < gpus < t.min_ranks:
        common.say(f"{t.id} needs {t.min_ranks} GPUs, here are {gpus}: runs on gloo")
        return "gloo", p
    return "nccl" if gpus else "gloo", p


def _mutant(t: Technique, name: str | None) -> Mutant | None:
    if name is None:
        return None
    mutants = {m.id: m for m in t.mutants}
    if name not in mutants:
        has = ", ".join(mutants) or "no mutant"
        raise common.unknown("mutant", name, mutants, f"{t.id} has {has}")
    return mutants[name]


def _measure(
    t: Technique,
    mutant: Mutant | None,
    p: int,
    mode: str,
    limit: float,
    sizes: dict[str, Any],
) -> dict[str, Any]:
    source = measuring.mutated(ROOT, t, mutant) if mutant else None
    text = f"starting ranks and running {t.id} on {p} ({LABELS[mode]})"
    # What the ranks print goes beside the result, not into it.
    with common.waiting(text), contextlib.redirect_stdout(sys.stderr):
        return measuring.measure(t, p, mode=mode, source=source, timeout=limit, **sizes)


def _give_up(error: LaunchError, mutant: Mutant | None, verbose: bool) -> None:
    """The run gave no figures: say why, the cause first."""
    if error.refused:
        raise Wrong(error.summary) from None
    line = f"mutant {mutant.id}: {error.summary}" if mutant else error.summary
    late = error.summary.startswith("no end after")
    if mutant and mutant.deadline and late:
        raise Wrong(f"{line}, as expected of this mutant", 1) from None
    if late:
        line += "; --timeout SECONDS allows more time"
    if verbose:
        line = f"{line}{str(error).removeprefix(error.summary)}"
    elif str(error) != error.summary:
        line += " (--verbose shows where)"
    raise Wrong(line, 1) from None


# What is printed


def plain(
    t: Technique, mutant: Mutant | None, found: dict[str, Any], verdicts: list[Verdict]
) -> dict[str, Any]:
    """A judged run as JSON has it."""
    return {
        "technique": t.id,
        "mutant": mutant.id if mutant else None,
        "mode": found["mode"],
        "label": LABELS[found["mode"]],
        "p": found["p"],
        "ranks": [rank["rank"] for rank in found["ranks"]],
        "given": found["given"],
        "seconds": found["times"]["seconds"],
        "holds": not failed(verdicts),
        "failed": failed(verdicts),
        "claims": [asdict(v) for v in verdicts],
    }


def show(
    t: Technique,
    mutant: Mutant | None,
    found: dict[str, Any],
    verdicts: list[Verdict],
    all_ranks: bool,
) -> None:
    """The table of claims, and what follows from it."""
    from rich.text import Text

    console = common.out()
    title = f"{t.name} on {ranks_of(found['p'])} ({LABELS[found['mode']]})"
    console.print(Text(title, style="bold"))
    if mutant:
        console.print(Text(f"mutant {mutant.id}: {mutant.says}"))
    console.print(table(verdicts, all_ranks))
    style = "bold red" if failed(verdicts) else "green"
    console.print(Text(f"{conclusion(found, verdicts)}", style=style), soft_wrap=True)
    if mutant:
        console.print(Text(_catch(mutant, failed(verdicts))), soft_wrap=True)
    if note := _other_torch(t, found["mode"]):
        common.err().print(Text(note, style="dim"), soft_wrap=True)


def _other_torch(t: Technique, mode: str) -> str:
    """Said where the record on the page was made with another torch than this run."""
    try:
        kept = records.read(ROOT, mode, t.id)
    except records.RecordError:
        return ""
    here = records.versions()["torch"]
    there = kept["versions"]["torch"] if kept else here
    if there == here:
        return ""
    return f"the record of {t.id} was made with torch {there}; this is torch {here}"


def _catch(mutant: Mutant, bad: list[str]) -> str:
    if not bad:
        return "no claim caught the mutant"
    held = [claim for claim in mutant.fails if claim not in bad]
    rest = f"; expected to fail but held: {', '.join(held)}" if held else ""
    return f"caught by {', '.join(bad)}{rest}"
