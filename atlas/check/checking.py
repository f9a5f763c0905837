"""Checks a script: runs it on one process, perturbed, and on ranks; compares.

check_script(Path("train.py"), ranks=4, one=["--batch", "32"], many=["--batch", "8"])
"""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atlas.launch import launch
from atlas.yours import Here, Ran, Script, ScriptError, run

if TYPE_CHECKING:
    from atlas.check.capture import Capture

#: Steps that are compared, unless told otherwise.
STEPS = 4
#: Seconds that each run of the script may take.
DEADLINE = 120.0
#: One perturbed run may be lucky; two rarely are.
SEEDS = (1, 2)
#: Seconds between two looks for the ranks that are still at work.
GLANCE = 0.01
#: What the comparison imports, so that it is imported once.
NEEDS = ("atlas.check.diagnosis",)


class CheckError(Exception):
    """The check cannot be made; the first line says why, a traceback may follow."""


@dataclass(frozen=True)
class Result:
    """What a check of a script found, as plain values."""

    script: str
    ranks: int
    steps: int
    tensors: int
    unmatched: tuple[str, ...]
    share: float  # the largest distance, as a share of what is allowed
    difference: dict[str, Any] | None
    bug: str | None
    says: str | None

    @property
    def holds(self) -> bool:
        """Whether p ranks did what one process does."""
        return self.difference is None


@dataclass(frozen=True)
class Order:
    """What is run: a script with arguments, for so many steps."""

    script: Path
    arguments: tuple[str, ...] = ()
    steps: int = STEPS
    timeout: float = DEADLINE
    emulate: bool = False


def check_script(
    script: Path,
    *,
    ranks: int,
    one: Sequence[str] = (),
    many: Sequence[str] = (),
    steps: int = STEPS,
    timeout: float = DEADLINE,
    emulate: bool = False,
) -> Result:
    """Run it, compare, and say what was found."""
    alone = Order(script, tuple(one), steps, timeout, emulate)
    spread = Order(script, tuple(many), steps, timeout, emulate)
    with folder() as place:
        reference(alone, place / "one")
        captured(spread, place / "many", ranks)
        return compared(place / "one", place / "many", script.name)


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder of ours, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="atlas-") as made:
        yield Path(made)


def reference(order: Order, place: Path) -> None:
    """One process, and the same moved by a rounding."""
    captured(order, place, 1)
    for seed in SEEDS:
        captured(order, place / f"moved-{seed}", 1, seed)


def captured(order: Order, place: Path, ranks: int, seed: int | None = None) -> None:
    """Run the script on ranks; each leaves what it captured in the folder."""
    place.mkdir(parents=True, exist_ok=True)
    name, where = order.script.name, "one process" if ranks == 1 else f"{ranks} ranks"
    try:
        ran = run(
            Script(order.script, order.arguments),
            ranks,
            watch=[_recording(str(place), order.steps, seed)],
            timeout=order.timeout,
            emulate=order.emulate,
        )
    except ScriptError as error:
        raise CheckError(str(error)) from None
    if not ran.well:
        raise CheckError(_failure(ran, name, where, order))
    if any(rank.value == [0] for rank in ran.ranks):
        raise CheckError(
            f"{name} ended on {where} before an optimizer of torch.optim made a step: "
            "there is nothing to compare"
        )


def _failure(ran: Ran, name: str, where: str, order: Order) -> str:
    """Why it did not come to its end; the user's own traceback where it is theirs."""
    cause = ran.cause
    if cause is None:
        at = "\n".join(f"--- rank {r.rank}\n{r.stack}" for r in ran.ranks)
        return f"{name} on {where}: no end after {order.timeout:g} s\n{at}".rstrip()
    end = cause.end
    if end.kind == "refused":
        return end.line
    on = f" (rank {cause.rank})" if len(ran.ranks) > 1 else ""
    if end.no_gpu and not order.emulate:
        return f"{name} needs a GPU ({end.line}): --emulate-gpu runs it on a stand-in"
    return f"{name} fails on {where}{on}: {end.line}\n{end.trace}".rstrip()


def compared(one: Path, many: Path, script: str) -> Result:
    """Compare what was captured; on a rank, where torch is imported already."""
    (found,) = launch(_compare, 1, str(one), str(many), script, needs=NEEDS, join=False)
    if isinstance(found, str):
        raise CheckError(f"{script}: {found}")
    assert isinstance(found, Result)
    return found


# On a rank


def _recording(place: str, steps: int, seed: int | None) -> Callable[[Here], Any]:
    """A watcher that leaves a capture in a file, and brings back its steps."""

    @contextlib.contextmanager
    def watch(here: Here) -> Iterator[Callable[[], int]]:
        from atlas.check.capture import Recorder

        seed_everything(here.rank)
        recorder = Recorder(here.rank, steps, seed)
        with recorder.watching():
            yield lambda: keep(here, recorder.capture)

    def keep(here: Here, capture: "Capture") -> int:
        import torch

        torch.save(capture, Path(place) / f"rank.{here.rank}")
        _leave_together(here)
        return len(capture.steps)

    return watch


def _leave_together(here: Here) -> None:
    """A rank that ended at once could cut the connections of the others."""
    (here.folder / f"done.{here.rank}").touch()
    end = time.monotonic() + DEADLINE
    while len(list(here.folder.glob("done.*"))) < here.ranks and time.monotonic() < end:
        time.sleep(GLANCE)


def seed_everything(rank: int) -> None:
    """A script that does not seed itself still starts alike on rank 0 of any number.

    Other ranks get other seeds: a script that forgets to share the weights of rank 0
    must not be right by our help.
    """
    import random

    import numpy
    import torch

    torch.manual_seed(1234 + rank)
    random.seed(1234 + rank)
    numpy.random.seed(1234 + rank)


def _compare(one: str, many: str, script: str) -> "Result | str":
    from atlas.check.compare import (
        NoYardstick,
        Runs,
        first_difference,
        require_yardstick,
        worst_share,
    )
    from atlas.check.diagnosis import Evidence, diagnose

    moved = [read(Path(one) / f"moved-{seed}")[0] for seed in SEEDS]
    runs = Runs(read(Path(one))[0], moved, read(Path(many)))
    if not any(runs.names):
        return "no weight of the ranks has a counterpart on one process"
    try:
        require_yardstick(runs)
    except NoYardstick as error:
        return str(error)
    first = first_difference(runs)
    found = diagnose(Evidence(runs, first)) if first else None
    return Result(
        script,
        len(runs.many),
        runs.steps,
        len(runs.shapes) - len(runs.unmatched),
        tuple(runs.unmatched),
        worst_share(runs) if first is None else float("inf"),
        asdict(first) if first else None,
        found.bug if found else None,
        found.says if found else None,
    )


def read(place: Path) -> "list[Capture]":
    """The captures of a run, in rank order."""
    import torch

    from atlas.check.capture import Capture, Piece, Step

    files = sorted(place.glob("rank.*"), key=lambda f: int(f.suffix[1:]))
    with torch.serialization.safe_globals([Capture, Step, Piece]):
        return [torch.load(f, weights_only=True) for f in files]
