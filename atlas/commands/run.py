"""`atlas run NAME`: run a technique; predicted, measured and verdict of every claim."""

import contextlib
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from atlas import knowledge, record
from atlas.commands import common
from atlas.commands.common import Json, Wrong
from atlas.commands.table import LABELS, conclusion, ranks_of, table
from atlas.knowledge import Atlas, Mutant, Technique
from atlas.launch import LaunchError, cuda_present
from atlas.verdict import Verdict, failed, judge

Name = Annotated[
    str,
    typer.Argument(
        help="A technique.", metavar="NAME", autocompletion=common.complete_technique
    ),
]
RanksOption = Annotated[
    int | None,
    typer.Option("--ranks", "-n", help="How many ranks; 4 where it allows that many."),
]
DryOption = Annotated[
    int | None,
    typer.Option(help="Count on this many pretended ranks: values mean nothing."),
]
EmulateOption = Annotated[
    bool,
    typer.Option("--emulate-gpu", help="On pretended GPUs, and a strict NCCL on gloo."),
]
MutantOption = Annotated[
    str | None,
    typer.Option(
        help="Make this mistake in it.",
        metavar="ID",
        autocompletion=common.complete_mutant,
    ),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        help=f"Seconds it may take; {record.DEADLINE:g}, and "
        f"{record.HANG_DEADLINE:g} for a mutant that hangs.",
        metavar="SECONDS",
        min=0.1,
    ),
]
AllRanksOption = Annotated[
    bool, typer.Option("--all-ranks", help="One line a rank, not one a claim.")
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Tracebacks, when it fails.")
]


def run(
    name: Name,
    ranks: RanksOption = None,
    dry: DryOption = None,
    emulate_gpu: EmulateOption = False,
    mutant: MutantOption = None,
    timeout: TimeoutOption = None,
    all_ranks: AllRanksOption = False,
    json: Json = False,
    verbose: VerboseOption = False,
) -> None:
    """Run a technique: what was predicted, what was measured, the verdict.

    On a machine with GPUs it runs on NCCL; with CUDA_VISIBLE_DEVICES= before the
    command, on gloo. Exit code 1: a claim failed, of a mutant too.

    Examples:

    \b
    atlas run ring-all-reduce --ranks 4
    atlas run ring-all-reduce --dry 1024
    atlas run ring-all-reduce --emulate-gpu --all-ranks
    atlas run top-k-error-feedback --ranks 4 --json
    """
    atlas = knowledge.load()
    technique = common.runnable(atlas, name)
    mode, p = _where(technique, ranks, dry, emulate_gpu)
    chosen = _mutant(technique, mutant)
    limit = timeout or record.deadline(chosen)
    try:
        found = _measure(atlas, technique, chosen, p, mode, limit)
    except LaunchError as error:
        _give_up(error, chosen, verbose)
    verdicts = judge(technique, found)
    if json:
        common.print_json(_plain(technique, chosen, found, verdicts))
    else:
        _print(technique, chosen, found, verdicts, all_ranks)
    if failed(verdicts):
        raise typer.Exit(1)


def _where(
    t: Technique, ranks: int | None, dry: int | None, emulate: bool
) -> tuple[str, int]:
    """The mode, and how many ranks."""
    if dry is not None:
        if ranks is not None or emulate:
            other = f"--ranks {ranks}" if ranks is not None else "--emulate-gpu"
            raise Wrong(f"--dry {dry} and {other}: give one of them")
        return "dry", dry
    p = ranks if ranks is not None else max(t.min_ranks, min(4, t.max_ranks or 4))
    if emulate:
        return "emulated", p
    return "nccl" if cuda_present() else "gloo", p


def _mutant(t: Technique, name: str | None) -> Mutant | None:
    if name is None:
        return None
    mutants = {m.id: m for m in t.mutants}
    if name not in mutants:
        has = ", ".join(mutants) or "no mutant"
        raise common.unknown("mutant", name, mutants, f"{t.id} has {has}")
    return mutants[name]


def _measure(
    atlas: Atlas, t: Technique, mutant: Mutant | None, p: int, mode: str, limit: float
) -> dict[str, Any]:
    source = record.mutated(atlas.root, t, mutant) if mutant else None
    text = f"starting ranks and running {t.id} on {p} ({LABELS[mode]})"
    # What the ranks print goes beside the result, not into it.
    with common.waiting(text), contextlib.redirect_stdout(sys.stderr):
        return record.measure(t, p, mode=mode, source=source, timeout=limit)


def _give_up(error: LaunchError, mutant: Mutant | None, verbose: bool) -> None:
    """The run gave no figures: say why, the cause first."""
    if error.refused:
        raise Wrong(error.summary) from None
    line = f"mutant {mutant.id}: {error.summary}" if mutant else error.summary
    late = error.summary.startswith("no end after")
    if mutant and mutant.deadline and late:
        raise Wrong(f"{line}; that is how it is known", 1) from None
    if late:
        line += "; --timeout SECONDS lets it run for longer"
    if verbose:
        line = f"{line}{str(error).removeprefix(error.summary)}"
    elif str(error) != error.summary:
        line += " (--verbose shows where)"
    raise Wrong(line, 1) from None


# What is printed


def _plain(
    t: Technique, mutant: Mutant | None, found: dict[str, Any], verdicts: list[Verdict]
) -> dict[str, Any]:
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


def _print(
    t: Technique,
    mutant: Mutant | None,
    found: dict[str, Any],
    verdicts: list[Verdict],
    all_ranks: bool,
) -> None:
    from rich.text import Text

    console = common.out()
    title = f"{t.name} on {ranks_of(found['p'])} ({LABELS[found['mode']]})"
    console.print(Text(title, style="bold"))
    if mutant:
        console.print(Text(f"with the mutant {mutant.id}: {mutant.says}"))
    console.print(table(verdicts, all_ranks))
    style = "bold red" if failed(verdicts) else "green"
    console.print(Text(f"{conclusion(found, verdicts)}", style=style), soft_wrap=True)
    if mutant:
        console.print(Text(_catch(mutant, failed(verdicts))), soft_wrap=True)


def _catch(mutant: Mutant, bad: list[str]) -> str:
    if not bad:
        return "no claim noticed the mutant"
    held = [claim for claim in mutant.fails if claim not in bad]
    rest = f"; expected to fail but held: {', '.join(held)}" if held else ""
    return f"caught by {', '.join(bad)}{rest}"
