"""`torchrun ... -m atlas.meter train.py`: the same report, under any launcher.

    torchrun --nnodes 2 --nproc-per-node 8 ... -m atlas.meter train.py --epochs 1

The launcher makes the ranks, on as many machines as it likes; each runs the script
unchanged and writes down what it communicates. When its script has ended, a rank
hands its notes to rank 0 by the store that the script's own group was made with:
no port is asked for, no file system shared. Rank 0 prints the report. What ends a
run that hangs is here the launcher, or the backend's own timeout.
"""

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from atlas import launchers
from atlas.commands.common import Wrong
from atlas.commands.meter import finish, read

#: How long rank 0 waits for the notes of another rank, whose script has ended too.
PATIENCE = timedelta(seconds=60)


def arguments(given: list[str]) -> argparse.Namespace:
    """What stands before the script is ours, the rest is the script's."""
    parser = argparse.ArgumentParser(
        prog="torchrun ... -m atlas.meter",
        description="Run SCRIPT, unchanged, on the ranks that a launcher made; rank 0 "
        "shows what it sends from which line. `atlas meter SCRIPT` makes the ranks "
        "itself, on this machine, and says who is guilty if they hang.",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a replay")
    parser.add_argument(
        "--expect", type=Path, metavar="FILE", help="fail if calls or bytes differ"
    )
    parser.add_argument(
        "--write-expected", type=Path, metavar="FILE", help="write that file"
    )
    parser.add_argument("script", type=Path, metavar="SCRIPT")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="ARGUMENT")
    return parser.parse_args(given)


def place() -> tuple[int, int]:
    """This process among all: its rank, and how many there are."""
    try:
        said = launchers.found()
    except launchers.LauncherError as wrong:
        raise Wrong(str(wrong)) from None
    if said is None:
        here = "on this machine: atlas meter SCRIPT"
        raise Wrong(f"no launcher started this process; {here}")
    os.environ.update(said)  # the script asks for RANK, whoever started it
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def main(given: list[str]) -> None:
    """Run the script on this rank; on rank 0, report."""
    asked = arguments(given)
    rank, ranks = place()
    expected = read(asked.expect) if asked.expect and rank == 0 else None
    made = _metered(asked, rank, ranks)
    if made is not None:
        finish(
            made, asked.json, asked.html, expected, asked.expect, asked.write_expected
        )


def _metered(asked: argparse.Namespace, rank: int, ranks: int) -> dict[str, Any] | None:
    """The report on rank 0, None elsewhere."""
    from atlas.meter.journal import Journal
    from atlas.yours import Here, Ran, Script, ScriptError
    from atlas.yours.events import events
    from atlas.yours.place import give, main_module
    from atlas.yours.report import report
    from atlas.yours.script import execute
    from atlas.yours.steps import steps

    script = Script(asked.script, tuple(asked.rest))
    try:
        script.check()
    except ScriptError as error:
        raise Wrong(str(error)) from None
    give(script)
    start = time.monotonic()
    with _folder() as folder:
        kept = folder / "journal"
        journal = Journal(kept)
        with steps(Here(rank, ranks, folder, journal)):
            end = execute(script, main_module(script))
        journal.close()
        if not end.well:
            raise Wrong(f"{end.trace}rank {rank} of {script.path}: {end.line}", 1)
        if journal.store is None:
            never = "it never made a process group, or never used it"
            raise Wrong(f"{script.path} communicated nothing: {never}", 1)
        journals = _gathered(journal.store, kept.read_bytes(), rank, ranks)
    if journals is None:
        return None
    ran = Ran(script, (), time.monotonic() - start, journals)
    return report(ran) | {"events": events(ran.journals)}


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Not tempfile's own, which the exit functions of the script's end would remove."""
    folder = tempfile.mkdtemp(prefix="atlas-")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _gathered(
    store: Any, own: bytes, rank: int, ranks: int
) -> tuple[list[dict[str, Any]], ...] | None:
    """The notes of all ranks, on rank 0."""
    store.set(f"atlas/notes/{rank}", zlib.compress(own))
    if rank:
        return None
    journals = []
    for r in range(ranks):
        try:
            store.wait([f"atlas/notes/{r}"], PATIENCE)
        except RuntimeError:
            late = f"rank {r} left no notes within {PATIENCE.seconds} s"
            raise Wrong(f"{late}: did its script end before the others'?", 1) from None
        text = zlib.decompress(store.get(f"atlas/notes/{r}")).decode()
        journals.append([json.loads(line) for line in text.splitlines()])
    return tuple(journals)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Wrong as wrong:
        print(wrong, file=sys.stderr)
        sys.exit(wrong.code)
