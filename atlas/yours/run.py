"""Runs a script on N supervised ranks; whatever it does, nothing of it stays."""

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from atlas import launch as launching
from atlas.launch import LaunchError
from atlas.yours.hang import Line, Verdict, judge, proven
from atlas.yours.script import End, Here, Script, ScriptError, Watch

#: How long the others get to say what they saw, once one rank has failed.
GRACE = 1.0
#: Seconds without any communication after which one asks whether waiting can help.
STILL = 0.5
#: Seconds without any communication after which a run is taken to hang.
TIMEOUT = 300.0
Tell = Callable[[int, str], None]


@dataclass(frozen=True)
class Rank:
    """One rank of a run: how its script ended, and what was brought back."""

    rank: int
    end: End
    value: Any = None
    stack: str = ""


@dataclass(frozen=True)
class Ran:
    """A run that is over; `stopped` says why we ended it, if we did."""

    script: Script
    ranks: tuple[Rank, ...]
    seconds: float
    journals: tuple[list[Line], ...]
    stopped: str = ""
    verdict: Verdict | None = None

    @property
    def well(self) -> bool:
        """Whether every rank came to its end."""
        return all(rank.end.well for rank in self.ranks)

    @property
    def cause(self) -> Rank | None:
        """The rank that failed of itself, before those that only lost it."""
        bad = [r for r in self.ranks if not r.end.well and r.end.kind != "unfinished"]
        return min(bad, key=lambda r: (r.end.echo, r.rank), default=None)


def run(
    script: Script,
    ranks: int,
    *,
    watch: Sequence[Watch] = (),
    timeout: float = TIMEOUT,
    emulate: bool = False,
    tell: Tell | None = None,
) -> Ran:
    """Run the script on so many ranks of this machine, each watched.

    If every rank comes to its end, the watchers' values come back as `value`, a list
    with one for each. `tell` is called with each line that a rank prints.
    """
    script.check()
    with _folder() as folder:
        follow = _Follow(folder, ranks, timeout, tell)
        start = time.monotonic()
        values: list[Any] = [None] * ranks
        try:
            values = launching.launch(
                _on_a_rank,
                ranks,
                script,
                tuple(watch),
                ranks,
                str(folder),
                timeout=_FOREVER,
                emulate=emulate,
                env={**os.environ, **_like_torchrun(ranks)},
                needs=script.needs,
                join=False,
                look=follow.look,
            )
        except LaunchError as error:
            if error.refused or not follow.ranks or follow.answered:
                raise ScriptError(str(error)) from None
        finally:
            follow.end()
        seconds = time.monotonic() - start
        made = tuple(follow.collect(values))
        journals = tuple(follow.journal(r) for r in range(ranks))
        ends = [r.end for r in made]
        verdict = judge(journals, ends, [r.stack for r in made])
        return Ran(script, made, seconds, journals, follow.stopped, verdict)


_FOREVER = 10.0**8


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    folder = tempfile.mkdtemp(prefix="atlas-")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _like_torchrun(ranks: int) -> dict[str, str]:
    """What torchrun sets beside the ranks, which the launcher sets."""
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",  # nobody listens there: the ranks meet by a file
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(ranks),
        "TORCHELASTIC_RUN_ID": "atlas",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


@dataclass
class _Follow:
    """Looks on from the launcher: what is printed, whether it still goes on."""

    folder: Path
    size: int
    timeout: float
    tell: Tell | None
    ranks: list[launching.Rank] = field(default_factory=list)
    stopped: str = ""
    failed: float = 0.0  # when a rank first did
    asked: float = 0.0  # when it was last asked whether waiting can help
    progress: tuple[int, float] = (0, 0.0)  # bytes of journals, and since when
    shown: dict[int, int] = field(default_factory=dict)
    stacks: dict[int, str] = field(default_factory=dict)

    def look(self, ranks: list[launching.Rank]) -> bool:
        """Whether to end the run."""
        self.ranks = ranks
        self.show()
        now = time.monotonic()
        ends = [self.ended(r) for r in range(self.size)]
        if any(e is not None and not e.well for e in ends) or self.deaths():
            self.failed = self.failed or now
        journals = sum(p.stat().st_size for p in self.folder.glob("journal.*"))
        if journals != self.progress[0] or not self.progress[1]:
            self.progress = (journals, now)
        if self.failed and now > self.failed + GRACE:
            self.stopped = "failed"
        elif now > self.progress[1] + self.timeout:
            self.stopped = "late"
        elif not self.failed and now > max(self.progress[1], self.asked) + STILL:
            self.asked = now
            if self.is_proven():
                self.stopped = "stuck"
        if self.stopped:
            self.ask_for_stacks()
        return bool(self.stopped)

    @property
    def answered(self) -> bool:
        """Whether a rank failed in our own code, around the script."""
        return any(r.answer and r.answer[0] == "error" for r in self.ranks)

    def journal(self, rank: int) -> list[Line]:
        """What a rank wrote down; its last line may be half a line."""
        try:
            text = (self.folder / f"journal.{rank}").read_text()
        except OSError:
            return []
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def is_proven(self) -> bool:
        """Whether no waiting can help any more."""
        ends = [self.ended(r) or self.fate(r) for r in range(self.size)]
        return proven([self.journal(r) for r in range(self.size)], ends)

    def deaths(self) -> list[int]:
        """Ranks that are gone and left no word."""
        gone = [r.rank for r in self.ranks if r.code is not None]
        return [r for r in gone if self.ended(r) is None]

    def ended(self, rank: int) -> End | None:
        """What a rank wrote of its own end."""
        try:
            return End(**json.loads((self.folder / f"end.{rank}").read_text()))
        except OSError:
            return None

    def show(self) -> None:
        """Pass on the lines that ranks have printed since the last look."""
        if self.tell is None:
            return
        for rank in range(self.size):
            with contextlib.suppress(OSError), self.out(rank).open("rb") as file:
                file.seek(self.shown.get(rank, 0))
                lines, _, _ = file.read().rpartition(b"\n")
                self.shown[rank] = self.shown.get(rank, 0) + len(lines)
                for line in lines.decode(errors="replace").splitlines():
                    if line:
                        self.tell(rank, line)

    def out(self, rank: int) -> Path:
        return self.folder / f"out.{rank}"

    def ask_for_stacks(self) -> None:
        """Of those that are still at work."""
        waiting = {r.rank: r for r in self.ranks if r.code is None}
        for rank in waiting.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank.pid, signal.SIGUSR1)
        end = time.monotonic() + 1.0
        while waiting and time.monotonic() < end:
            for number in list(waiting):
                with contextlib.suppress(OSError):
                    if text := (self.folder / f"stacks.{number}").read_text():
                        self.stacks[number] = text
                        del waiting[number]
            time.sleep(0.02)

    def end(self) -> None:
        """End what the ranks have started themselves, and show their last words."""
        for rank in self.ranks:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(rank.pid, signal.SIGKILL)
        self.show()

    def collect(self, values: Sequence[Any]) -> Iterator[Rank]:
        """What became of each rank."""
        for rank, value in enumerate(values):
            end = self.ended(rank) or self.fate(rank)
            yield Rank(rank, end, value, self.stacks.get(rank, ""))

    def fate(self, rank: int) -> End:
        """Of a rank that left no word."""
        known = next((r for r in self.ranks if r.rank == rank), None)
        if known is None or known.cut or known.code is None:
            return End("unfinished")
        if known.code < 0:
            name = signal.Signals(-known.code).name
            return End("killed", known.code, message=f"was killed by {name}")
        return End("killed", known.code, message=f"left at once with {known.code}")


# On a rank


def _on_a_rank(
    script: Script, watch: tuple[Watch, ...], ranks: int, folder: str
) -> list[Any]:
    """The script under its watchers; how it ended goes to a file."""
    from atlas.meter.journal import Journal
    from atlas.process import stacks_on_signal
    from atlas.yours.place import prepare
    from atlas.yours.script import execute

    rank = int(os.environ["RANK"])
    journal = Journal(Path(folder) / f"journal.{rank}")
    here = Here(rank, ranks, Path(folder), journal)
    out = os.open(here.folder / f"out.{here.rank}", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    with (here.folder / f"stacks.{here.rank}").open("w") as stacks:
        stacks_on_signal(stacks)
        names = prepare(script, here.folder)
        with contextlib.ExitStack() as open_:
            found = [open_.enter_context(w(here)) for w in watch]
            end = execute(script, names)
        journal.close()
        sys.stdout.flush()
        sys.stderr.flush()
        part = here.folder / f"end.{here.rank}.part"
        part.write_text(json.dumps(asdict(end)))
        part.rename(here.folder / f"end.{here.rank}")
        return [value() for value in found] if end.well else []
