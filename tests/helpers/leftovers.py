"""Processes and folders that a test may have left behind."""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil


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
