"""What a process asks of its system: to die with its parent, to show its stacks."""

import ctypes
import faulthandler
import os
import signal
import sys
import threading
import traceback
from typing import TextIO

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Be killed when the process `parent` dies, however it dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)


def stacks_on_signal(file: TextIO) -> None:
    """On SIGUSR1 write every thread's stack; works inside a blocked collective.

    A thread of its own writes them, when no other one is in the middle of a step of
    the interpreter. Written by the signal's handler, they may end the process: it may
    have come while a frame was half made. That way is left for SIGUSR2, for a process
    that hangs in native code which keeps all Python threads from running.
    """
    faulthandler.enable(file)
    faulthandler.register(signal.SIGUSR2, file=file, all_threads=True)
    if threading.current_thread() is not threading.main_thread():
        faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
        return  # only a main thread may set Python's own handlers
    heard, told = os.pipe()
    os.set_blocking(told, False)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    writer = threading.Thread(target=_write_stacks, args=(heard, file), daemon=True)
    writer.start()


def _write_stacks(heard: int, file: TextIO) -> None:
    """Whenever SIGUSR1 is heard of."""
    while signals := os.read(heard, 1024):
        if signal.SIGUSR1 in signals:
            os.write(file.fileno(), stacks().encode())


def stacks() -> str:
    """What every other thread is doing."""
    own = threading.get_ident()
    names = {t.ident: t.name for t in threading.enumerate()}
    return "".join(
        f"{names.get(ident, ident)} (most recent call last):\n"
        + "".join(traceback.format_stack(frame))
        for ident, frame in sys._current_frames().items()
        if ident != own
    )


def is_stopped(pid: int) -> bool:
    """Whether the process stands still (SIGSTOP, or a debugger)."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False
