"""Where a framework calls a function on every rank, and there is no script.

    with metered("/shared/run"):
        train()

    atlas meter --from /shared/run

Each rank writes into the folder, which all can see; Ray Train is such a framework.
"""

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from atlas import launchers
from atlas.yours.run import Ran, Rank
from atlas.yours.script import End, Here, Script, ScriptError


@contextlib.contextmanager
def metered(folder: str | Path, *, script: str = "") -> Iterator[None]:
    """Write down what this rank communicates inside the block."""
    ended: list[End] = []
    with _watched(Path(folder), Script(Path(script or sys.argv[0])), ended):
        try:
            yield
        except BaseException as error:
            ended.append(End("raised", 1, type(error).__name__, str(error)))
            raise
        ended.append(End("returned"))


@contextlib.contextmanager
def _watched(folder: Path, script: Script, ended: list[End]) -> Iterator[None]:
    """A journal while the block runs, and then a file that says how it ended."""
    from atlas.meter.journal import Journal
    from atlas.yours.steps import steps

    rank, ranks = whose()
    path = folder / f"journal.{rank}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.touch(exist_ok=False)
    except FileExistsError:
        raise ScriptError(f"{folder} holds another run: name a new folder") from None
    except OSError as error:
        raise ScriptError(f"cannot write {path}: {error.strerror}") from None
    start = time.monotonic()
    journal = Journal(path)
    try:
        with steps(Here(rank, ranks, folder, journal)):
            yield
    finally:
        journal.close()
        _write(folder, rank, ranks, script, time.monotonic() - start, ended)


def _write(
    folder: Path,
    rank: int,
    ranks: int,
    script: Script,
    seconds: float,
    ended: list[End],
) -> None:
    end = ended[0] if ended else End("unfinished")
    told = {
        "rank": rank,
        "ranks": ranks,
        "script": str(script.path),
        "arguments": list(script.arguments),
        "seconds": seconds,
        "host": socket.gethostname(),
        "end": asdict(end),
    }
    part = folder / f"end.{rank}.part"
    part.write_text(json.dumps(told), encoding="utf-8")
    part.rename(folder / f"end.{rank}")


def whose() -> tuple[int, int]:
    """This process's rank, and how many there are."""
    import torch.distributed as dist

    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    try:
        said = launchers.found()
    except launchers.LauncherError as wrong:
        raise ScriptError(str(wrong)) from None
    if said is None:
        raise ScriptError("no launcher started this process as a rank")
    os.environ.update(said)
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def read(folder: Path) -> Ran:
    """The run that a folder holds, once all of its ranks have ended."""
    ends = [_read(path) for path in folder.glob("end.*") if path.suffix != ".part"]
    if not ends:
        at = " yet" if any(folder.glob("journal.*")) else ""
        raise ScriptError(f"{folder} holds no rank of a run that has ended{at}")
    ends.sort(key=lambda e: int(e["rank"]))
    size = ends[0]["ranks"]
    missing = sorted(set(range(size)) - {e["rank"] for e in ends})
    if missing:
        raise ScriptError(f"{folder}: ranks {missing} of {size} have not ended")
    journals = tuple(_lines(folder / f"journal.{r}") for r in range(size))
    script = Script(Path(ends[0]["script"]), tuple(ends[0]["arguments"]))
    ranks = tuple(Rank(e["rank"], End(**e["end"])) for e in ends)
    return Ran(script, ranks, max(e["seconds"] for e in ends), journals)


def hosts(folder: Path) -> dict[str, int]:
    """How many ranks each host had."""
    found: dict[str, int] = {}
    for path in sorted(folder.glob("end.*")):
        host = _read(path)["host"]
        found[host] = found.get(host, 0) + 1
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        End(**found["end"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ScriptError(f"{path} was not written by `metered`") from None
    assert isinstance(found, dict)
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    """What a rank wrote down; its last line may be half a line."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]
