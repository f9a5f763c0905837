"""What every test leaves behind: nothing, and a test that does not is a failure."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

# Before torch is imported: its threads would fight with the ranks for the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples on every run, however busy the machine.
settings.register_profile("atlas", deadline=None, derandomize=True)
settings.load_profile("atlas")

#: How long the system may take to take away a process that was killed.
SWEEP = 2.0


@pytest.fixture(scope="session", autouse=True)
def _own_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Our folders apart from those of other runs on this machine."""
    before = os.environ.get("TMPDIR")
    folder = str(tmp_path_factory.mktemp("temporary"))
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    yield
    tempfile.tempdir = None
    if before is None:
        del os.environ["TMPDIR"]
    else:
        os.environ["TMPDIR"] = before


@pytest.fixture(autouse=True)
def _nothing_is_left(_own_temporary_folder: None) -> Iterator[None]:
    """No process but the rank servers, and no folder, outlives its test."""
    before = set(children())
    yield
    wait_until(lambda: not strays(before) and not folders(), SWEEP)
    found = strays(before)
    for process in found:
        process.kill()
    assert not found, f"left running: {found}"
    assert not folders(), f"left behind: {folders()}"


def children() -> list[psutil.Process]:
    """All processes below this one."""
    return psutil.Process().children(recursive=True)


def strays(before: set[psutil.Process]) -> list[psutil.Process]:
    """The live ones that are new and not a rank server of this process."""
    return [p for p in children() if p not in before and alive(p) and not is_server(p)]


def alive(process: psutil.Process) -> bool:
    """Whether it still runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_server(process: psutil.Process) -> bool:
    """Whether this is a rank server, kept for the next launch."""
    try:
        ours = process.ppid() == os.getpid()
        return ours and process.cmdline()[1:4] == ["-m", "atlas.ranks", "server"]
    except psutil.NoSuchProcess:
        return False


def folders() -> list[Path]:
    """Folders of launches."""
    return list(Path(tempfile.gettempdir()).glob("atlas-*"))


def wait_until(holds: Callable[[], object], seconds: float) -> bool:
    """Look again and again until it holds or the time is up; whether it holds."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
