"""What a process asks of its system: to die with its parent, to show its stacks."""

import ctypes
import faulthandler
import os
import signal
import sys
from typing import TextIO

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Be killed when the process `parent` dies, however it dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)


def stacks_on_signal(file: TextIO) -> None:
    """On SIGUSR1 write every thread's stack; works inside a blocked collective."""
    faulthandler.enable(file)
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)


def is_stopped(pid: int) -> bool:
    """Whether the process stands still (SIGSTOP, or a debugger)."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False
