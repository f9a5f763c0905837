"""The process behind `launch`: imports torch once, then forks ranks in milliseconds.

    launcher  --- control socket --->  server  --- fork --->  rank 0 ... p-1
        ^------------------- one result socket a rank --------------'

The server is single-threaded and computes nothing, so that a fork of it is
clean. It ends its ranks and itself as soon as the control socket closes,
which the kernel does however the launcher dies; in the middle of an import
the kernel ends it too; the ranks ask the kernel to be killed when the server
dies. A process that has initialized CUDA may not be forked. The server never
does, and a trial fork asks torch whether an import has: then, as where
ATLAS_SPAWN asks for it, each rank is started as a fresh process.
"""

import contextlib
import fcntl
import gc
import importlib
import os
import pickle
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from atlas.process import die_with_parent, stacks_on_signal

PRELOAD = ("torch", "torch.distributed", "cloudpickle", "exemplars.runtime")
#: Seconds to import, and not every rank does. What one rank had to import itself,
#: the server imports before it forks the next ones.
HEAVY = (
    "torch._dynamo",
    "torch.fx.experimental.symbolic_shapes",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.pipelining",
    "torch.distributed.optim",
    "sklearn.datasets",
    "exemplars.workload",
    "atlas.record",
)
#: A word in a source that tells of such an import: a hint, so that the first do not
#: all have to.
HINTS = {
    "digits": "sklearn.datasets",
    "optim": "torch._dynamo",
    "cnns": "torch._dynamo",
    "DistributedDataParallel": "torch._dynamo",
}


@dataclass(frozen=True)
class Job:
    """What one rank is told by the launcher."""

    rank: int
    size: int
    local_rank: int
    work: bytes  # cloudpickle of (function, arguments)
    folder: str  # rendezvous, output and stacks
    timeout: float  # of the process group
    path: list[str]  # where the launcher finds its modules
    dry: bool = False
    join: bool = True  # the group, before the work
    env: dict[str, str] = field(default_factory=dict)


def send(sock: socket.socket, message: Any, fds: list[int] | None = None) -> None:
    """One message, with open files beside it."""
    data = pickle.dumps(message)
    if fds:
        socket.send_fds(sock, [struct.pack("!Q", len(data))], fds)
    else:
        sock.sendall(struct.pack("!Q", len(data)))
    sock.sendall(data)


def receive(sock: socket.socket, most_fds: int = 0) -> tuple[Any, list[int]]:
    """The next message and the files that came with it; EOFError at the end."""
    fds: list[int] = []
    if most_fds:
        head, fds, _, _ = socket.recv_fds(sock, 8, most_fds)
    else:
        head = sock.recv(8, socket.MSG_WAITALL)
    if len(head) < 8:
        raise EOFError
    (size,) = struct.unpack("!Q", head)
    data = bytearray()
    while len(data) < size:
        part = sock.recv(min(size - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return pickle.loads(data), fds  # noqa: S301 - from our own launcher or rank


def serve(control: socket.socket, life: int, *, warm: bool, emulate: bool) -> None:
    """Start ranks on request until the launcher is gone, which closes `life`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher answers Ctrl-C
    if warm:
        with _watched(life):
            _preload(emulate)
        warm = _may_fork()
    wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    alive: dict[int, int] = {}  # pid -> place in the launch
    folder = ""
    send(control, "ready")
    while True:
        ready, _, _ = select.select([control.fileno(), wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            _reap(control, alive)
        if control.fileno() in ready:
            try:
                (order, what), fds = receive(control, most_fds=64)
            except (EOFError, OSError):
                break
            if order == "ping":
                send(control, "here")
            elif order == "import":
                if warm:
                    with _watched(life):
                        _import(what)
                    warm = _may_fork()
                send(control, "imported")
            elif order == "start":
                folder = what
                started = [_start(i, fds, control, warm) for i in range(len(fds))]
                alive.update({pid: i for i, pid in enumerate(started)})
                for fd in fds:
                    os.close(fd)
                send(control, ("started", started))
            else:
                _kill(alive)
    _kill(alive)
    for pid in alive:
        os.waitpid(pid, 0)
    shutil.rmtree(folder, ignore_errors=True)  # the launcher could not, if killed
    os._exit(0)


@contextlib.contextmanager
def _watched(life: int) -> Iterator[None]:
    """End with the launcher at once, whatever an import is doing then.

    Nobody ever writes to this pipe, so that its only news is the launcher's end. The
    kernel signals it, and nobody handles the signal: Python would do so only when a
    call into C returns. (Linux; elsewhere the end is seen afterwards.) The socket of
    orders will not do: the kernel wakes us to read an order before it signals it.
    """
    flags = fcntl.fcntl(life, fcntl.F_GETFL)
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETFL, flags | os.O_ASYNC)
    if select.select([life], [], [], 0)[0]:  # it went before we watched
        os._exit(0)
    try:
        yield
    finally:
        fcntl.fcntl(life, fcntl.F_SETFL, flags)


def _preload(emulate: bool) -> None:
    if emulate:
        from atlas import emulate as emulation

        emulation.activate()
    _import(PRELOAD)


def _import(names: Iterable[str]) -> None:
    """What is not here yet; some may be missing on this machine."""
    new = [name for name in names if name not in sys.modules]
    for name in new:
        with contextlib.suppress(ImportError):  # a rank that needs it will say so
            importlib.import_module(name)
    if new:
        gc.collect()
        gc.freeze()  # what all ranks share is never copied by their collectors


def _may_fork() -> bool:
    """Whether a fork of this process could use CUDA: a trial child asks torch."""
    import torch

    pid = os.fork()
    if not pid:
        os._exit(int(torch.cuda._is_in_bad_fork()))
    return os.waitpid(pid, 0)[1] == 0


def _reap(control: socket.socket, alive: dict[int, int]) -> None:
    for pid in list(alive):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            _end_group(pid)
            code = os.waitstatus_to_exitcode(status)
            send(control, ("exit", alive.pop(pid), code))


def _kill(alive: dict[int, int]) -> None:
    for pid in alive:
        _end_group(pid)


def _end_group(pid: int) -> None:
    """A rank and what it has started: they share a process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _start(i: int, fds: list[int], control: socket.socket, warm: bool) -> int:
    server = os.getpid()
    if not warm:
        command = [sys.executable, "-m", "atlas.ranks", "rank", str(fds[i])]
        child = subprocess.Popen(
            [*command, str(server)], pass_fds=[fds[i]], process_group=0
        )
        child.returncode = 0  # so that subprocess leaves the reaping to us
        return child.pid
    pid = os.fork()
    if pid:
        with contextlib.suppress(OSError):  # the child may have been quicker, or ended
            os.setpgid(pid, pid)
        return pid
    try:
        os.setpgid(0, 0)
        die_with_parent(server)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        for other in fds[:i] + fds[i + 1 :]:
            os.close(other)
        _rank(socket.socket(fileno=fds[i]))
    finally:
        os._exit(70)  # a rank never returns into the server


def _rank(result: socket.socket) -> None:
    """One rank's whole life: hear the job, do it, answer, leave."""
    job, _ = receive(result)
    assert isinstance(job, Job)
    os.environ.update(job.env)
    sys.path[:] = job.path
    out = os.open(f"{job.folder}/out.{job.rank}", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # said is said
    with open(f"{job.folder}/stacks.{job.rank}", "w") as stacks:
        stacks_on_signal(stacks)
        before = set(sys.modules)
        code, answer = _work(job)
        needed = [name for name in HEAVY if name in sys.modules.keys() - before]
        sys.stdout.flush()
        sys.stderr.flush()
        send(result, (answer, needed))
        os._exit(code)  # quicker than the interpreter's own way out, and enough


def _work(job: Job) -> tuple[int, tuple[str, Any]]:
    import cloudpickle

    from exemplars import runtime

    try:
        function, arguments = cloudpickle.loads(job.work)
        if not job.join:
            return 0, ("value", cloudpickle.dumps(function(*arguments)))
        with runtime.join(
            rank=job.rank,
            size=job.size,
            local_rank=job.local_rank,
            rendezvous=f"file://{job.folder}/rendezvous",
            timeout=job.timeout,
            dry=job.dry,
        ) as w:
            value = cloudpickle.dumps(function(w, *arguments))
    except BaseException as error:
        trace = traceback.format_exc()
        return 1, ("error", (type(error).__name__, str(error), trace))
    return 0, ("value", value)


def main(arguments: list[str]) -> None:
    """`server FD LIFE warm|cold real|emulated`, or `rank FD SERVER-PID`."""
    if arguments[0] == "server":
        control, life = socket.socket(fileno=int(arguments[1])), int(arguments[2])
        warm, emulate = arguments[3] == "warm", arguments[4] == "emulated"
        serve(control, life, warm=warm, emulate=emulate)
    else:
        die_with_parent(int(arguments[2]))
        _rank(socket.socket(fileno=int(arguments[1])))


if __name__ == "__main__":
    # Pickled messages name atlas.ranks.Job: be that module, not a second copy.
    importlib.import_module("atlas.ranks").main(sys.argv[1:])
