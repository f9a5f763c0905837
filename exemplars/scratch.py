"""A folder that is gone when the run is, whatever ends it.

    with scratch() as folder:
        (folder / "state").write_bytes(state)

`with` removes it, and so would an exception. SIGKILL runs no such code: so a process
beside this one waits for the end of a pipe that nobody writes to. The kernel closes
it when the last process that could write to it is gone, and the folder is removed
then. That process is there before the folder is.

`shared(w)` is one folder for all ranks, in which each finds the files of the others:
on one machine, or where TMPDIR is on a file system that all machines share.
"""

import os
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from atlas.meter import unseen
from exemplars.runtime import World

__all__ = ["scratch", "shared"]

#: Its standard input is the pipe; a signal to everyone does not end it early.
_SWEEP = 'trap "" INT TERM HUP; read -r nothing; rm -rf -- "$1"'


@contextmanager
def scratch() -> Iterator[Path]:
    """A new folder on this machine, for this process and those it forks."""
    folder = Path(tempfile.gettempdir(), f"atlas-{uuid.uuid4().hex}")
    sweeper = subprocess.Popen(
        ["sh", "-c", _SWEEP, "sh", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        #: Not of this process's group, which a launcher kills as a whole.
        start_new_session=True,
    )
    assert sweeper.stdin is not None
    try:
        os.mkdir(folder, 0o700)
        yield folder
    finally:
        sweeper.stdin.close()
        sweeper.wait()


@contextmanager
def shared(w: World) -> Iterator[Path]:
    """A new folder of rank 0 that all ranks see, gone when the last one leaves."""
    with scratch() as own, unseen():
        name = torch.zeros(256, dtype=torch.uint8, device=w.device)
        if w.rank == 0:
            said = list(os.fsencode(own))
            name[: len(said)] = torch.tensor(said, dtype=torch.uint8)
        dist.broadcast(name, 0)
        folder = Path(os.fsdecode(bytes(name.cpu().numpy()).rstrip(b"\0")))
        seen = folder.is_dir()
        w.require(seen, f"{folder} is not seen by all ranks: set TMPDIR")
        yield folder
        dist.barrier()
