"""Runs a function on N supervised ranks, in a fraction of a second.

    def hello(w):
        return w.rank

    launch(hello, 4)               # [0, 1, 2, 3]

The launcher imports no torch and asks no device. Its first call starts a
server that does (`atlas.ranks`); after that, four gloo ranks are up in about
a tenth of a second, each a fresh process. Whatever ends a run, nothing of it
stays: not a rank, not a file. When it fails, the rank that caused it comes
first, and the ones that only lost their peer come after; at the deadline the
message holds every rank's stack.
"""

import atexit
import contextlib
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atlas import ranks as server_side
from atlas.process import is_stopped
from atlas.ranks import Job

ROOT = Path(__file__).resolve().parent.parent
MOST_RANKS = 64
#: How long the others get to say what they saw, once one rank has failed.
GRACE = 1.0
#: How often somebody who looks on is asked whether to go on.
LOOK = 0.1
#: Seconds in which the rank server answers, however busy the machine; it only forks.
PATIENCE = 30.0
#: And in which it imports torch, from a cold disk too.
IMPORTING = 600.0
#: A rank that only lost its peer says one of these: it is not the cause.
ECHOES = ("closed by peer", "reset by peer", "Broken pipe", "Connection refused")
#: Else torch would ask CUDA itself whether it is there, and no rank could be forked.
_NVML = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
#: Ranks of one machine talk over loopback: gloo would listen wherever the host's name
#: leads, for anyone to connect.
_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"}
_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
#: Some virtual machines announce AMX tiles that do not work; a bfloat16 matmul
#: would then end the process with SIGILL.
_ONEDNN = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}


class LaunchError(Exception):
    """A run failed; the first line says which rank and why."""

    def __init__(self, summary: str, details: str = "", refused: bool = False):
        super().__init__(f"{summary}\n{details}".rstrip())
        self.summary = summary
        self.refused = refused


@dataclass
class Rank:
    """What the launcher knows of one rank."""

    rank: int
    pid: int
    answer: tuple[str, Any] | None = None
    code: int | None = None
    hung: bool = False
    cut: bool = False  # ended by us, when it was over: neither cause nor echo

    @property
    def failed(self) -> bool:
        """Ended of itself, and not with a value."""
        if self.answer is not None:
            return self.answer[0] == "error"
        return self.code is not None and not self.cut

    @property
    def guilt(self) -> int:
        """Sorts the causes before the consequences."""
        if self.hung:
            return 0
        if self.answer is None:
            return 1
        kind, message, _ = self.answer[1]
        echo = any(e in message for e in ECHOES) or "Timed out" in message
        return 3 if echo or kind == "DistBackendError" else 2

    @property
    def line(self) -> str:
        """What became of this rank, in one line."""
        if self.hung:
            return f"rank {self.rank} is stopped (process {self.pid})"
        if self.cut and self.answer is None:
            return f"rank {self.rank} was still at work"
        if self.answer is None:
            return f"rank {self.rank} {_end(self.code)}"
        kind, message, _ = self.answer[1]
        return f"rank {self.rank}: {kind}: {message.splitlines()[0] if message else ''}"


Look = Callable[[list[Rank]], bool]


def _end(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"died with exit code {code}"


def launch(
    fn: Callable[..., Any],
    ranks: int,
    *args: Any,
    timeout: float = 60.0,
    group_timeout: float | None = None,
    dry: bool = False,
    emulate: bool = False,
    env: dict[str, str] | None = None,
    needs: Iterable[str] = (),
    join: bool = True,
    look: Look | None = None,
) -> list[Any]:
    """Call fn(w, *args) on every rank; the values, in rank order.

    With `dry`, ranks 0, 1 and p-1 of a pretended world of p run, each alone:
    counts are right there, values mean nothing. `needs` names modules that every
    rank would have to import: they are imported once. Without `join`, the ranks are
    in no group yet, and fn(*args) is called. `look` is called every tenth of a
    second, and ends the run by saying so.
    """
    import cloudpickle

    _validate(ranks, dry)
    places = sorted({0, min(1, ranks - 1), ranks - 1}) if dry else list(range(ranks))
    work = cloudpickle.dumps((fn, args))
    with _server(emulate, needs) as server, _folder() as folder:
        jobs = [
            Job(
                rank=rank,
                size=ranks,
                local_rank=rank if not dry else 0,
                work=work,
                folder=folder,
                timeout=group_timeout or timeout,
                path=[str(ROOT), *(p or os.getcwd() for p in sys.path)],
                dry=dry,
                join=join,
                env={**_environment(rank, ranks), **(env or {})},
            )
            for rank in places
        ]
        return _Run(server, jobs, timeout, look).values()


def _validate(ranks: int, dry: bool) -> None:
    if ranks < 1:
        raise LaunchError(f"{ranks} ranks: at least 1 is needed", refused=True)
    if ranks > MOST_RANKS and not dry:
        raise LaunchError(
            f"{ranks} ranks: at most {MOST_RANKS} run on one machine; "
            f"a dry run (--dry {ranks}) counts any number",
            refused=True,
        )


def _environment(rank: int, size: int) -> dict[str, str]:
    """What torchrun would have set."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
    }


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="atlas-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Run:
    """One launch: starts the ranks, hears them, ends them."""

    def __init__(
        self, server: "_Server", jobs: list[Job], timeout: float, look: Look | None
    ):
        self.server, self.jobs, self.timeout, self.look = server, jobs, timeout, look
        self.folder = Path(jobs[0].folder)

    def values(self) -> list[Any]:
        import cloudpickle

        pairs = [socket.socketpair() for _ in self.jobs]
        with contextlib.ExitStack() as left:
            ours = [left.enter_context(mine) for mine, _ in pairs]
            left.callback(self.end)
            self.start(pairs)
            self.supervise(ours)
        if any(r.answer is None or r.failed for r in self.ranks):
            raise self.failure()
        self.show_output()
        return [cloudpickle.loads(r.answer[1]) for r in self.ranks]  # type: ignore[index]

    def start(self, pairs: list[tuple[socket.socket, socket.socket]]) -> None:
        self.ranks: list[Rank] = []
        self.server.tell("start", str(self.folder), [b.fileno() for _, b in pairs])
        for _, theirs in pairs:
            theirs.close()
        kind, pids = self.server.hear()
        assert kind == "started", kind
        self.ranks = [Rank(j.rank, pid) for j, pid in zip(self.jobs, pids, strict=True)]
        for (sock, _), job in zip(pairs, self.jobs, strict=True):
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                server_side.send(sock, job)  # a rank killed at once hears nothing

    def supervise(self, socks: list[socket.socket]) -> None:
        """Until all have ended, one has failed, or the time is up."""
        end = time.monotonic() + self.timeout
        self.late = False
        with selectors.DefaultSelector() as selector:
            selector.register(self.server.control, selectors.EVENT_READ, None)
            for rank, sock in zip(self.ranks, socks, strict=True):
                selector.register(sock, selectors.EVENT_READ, rank)
            failed = False
            while any(r.code is None for r in self.ranks):
                left = max(0.0, end - time.monotonic())
                ready = selector.select(min(left, LOOK) if self.look else left)
                if self.look and self.look(self.ranks):
                    break
                if not ready and time.monotonic() < end:
                    continue
                if not ready:
                    self.late = not failed
                    break
                for key, _ in ready:
                    self.hear(selector, key, end)
                if not failed and any(r.failed for r in self.ranks):
                    failed = True
                    end = min(end, time.monotonic() + GRACE)
        self.find_stopped()
        if self.late:
            self.ask_for_stacks()

    def hear(
        self, selector: selectors.BaseSelector, key: selectors.SelectorKey, end: float
    ) -> None:
        if key.data is None:
            _, place, code = self.server.hear()
            self.ranks[place].code = code
            return
        assert isinstance(key.fileobj, socket.socket)
        try:
            # A rank may stop in the middle of its answer.
            key.fileobj.settimeout(max(0.1, end - time.monotonic()))
            (key.data.answer, needed), _ = server_side.receive(key.fileobj)
            self.server.needs.update(needed)
        except (EOFError, OSError):
            selector.unregister(key.fileobj)

    def find_stopped(self) -> None:
        for rank in self.ranks:
            rank.hung = rank.code is None and is_stopped(rank.pid)

    def ask_for_stacks(self) -> None:
        """Kindly first; who keeps its own threads from answering is made to."""
        live = [r for r in self.ranks if r.code is None and not r.hung]
        for how in (signal.SIGUSR1, signal.SIGUSR2):
            silent = [r for r in live if not self.stack(r)]
            for rank in silent:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rank.pid, how)
            end = time.monotonic() + 1.0
            while time.monotonic() < end and not all(self.stack(r) for r in silent):
                time.sleep(0.02)

    def stack(self, rank: Rank) -> str:
        return _read(self.folder / f"stacks.{rank.rank}")

    def end(self) -> None:
        """Kill what is left of this run, and hear that it is gone."""
        left = [r for r in self.ranks if r.code is None]
        if not left or not self.server.alive:
            return  # the ranks of a dead server die with it
        self.server.tell("kill")
        for rank in left:
            rank.cut = True
        while any(r.code is None for r in left):
            _, place, self.ranks[place].code = self.server.hear()

    def show_output(self) -> None:
        """What the ranks printed, each line with its rank."""
        for rank in self.ranks:
            for line in _read(self.folder / f"out.{rank.rank}").splitlines():
                print(f"[rank {rank.rank}] {line}")

    def failure(self) -> LaunchError:
        bad = [
            r for r in self.ranks if r.failed or r.hung or r.answer is None or self.late
        ]
        bad.sort(key=lambda r: (r.guilt if r.failed or r.hung else 9, r.rank))
        first = bad[0]
        if first.answer and first.answer[0] == "error":
            kind, message, _ = first.answer[1]
            if kind == "Refused":
                return LaunchError(message, refused=True)
        if self.late:
            silent = [r.rank for r in self.ranks if r.answer is None]
            summary = f"no end after {self.timeout:g} s: "
            summary += f"ranks {silent} are still at work"
            stacks = "\n".join(self.stack_of(r) for r in self.ranks)
            return LaunchError(first.line if first.hung else summary, stacks)
        return LaunchError(first.line, "\n".join(self.detail(r, first) for r in bad))

    def stack_of(self, rank: Rank) -> str:
        if rank.answer is not None:
            return f"--- rank {rank.rank} had ended"
        none = "(it is stopped)" if rank.hung else "(no stack)"
        return f"--- rank {rank.rank}\n{self.stack(rank) or none}"

    def detail(self, rank: Rank, first: Rank) -> str:
        if rank is not first:
            return f"then {rank.line}"
        printed = _read(self.folder / f"out.{rank.rank}")[-2000:]
        trace = rank.answer[1][2] if rank.answer else self.stack(rank)
        return f"--- rank {rank.rank}\n{trace}{printed}" if trace or printed else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _ended(code: int) -> str:
    """How a process that said nothing ended."""
    if code < 0:
        return f"it was killed by {signal.Signals(-code).name}"
    return f"it said nothing, and left with {code}"


class _Server:
    """The process that starts the ranks, and the socket to it."""

    def __init__(self, *, warm: bool, emulate: bool):
        self.needs: set[str] = set()  # what the next ranks will import
        self.control, theirs = socket.socketpair()
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        mode = ["warm" if warm else "cold", "emulated" if emulate else "real"]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-m", "atlas.ranks", "server"]
        watched, life = os.pipe()
        self.life = os.fdopen(life, "wb")  # nothing is written: it closes when we end
        with theirs, os.fdopen(watched):
            self.process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(watched), *mode],
                pass_fds=[theirs.fileno(), watched],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self.errors,
                env={
                    **_ONEDNN,
                    **_NVML,
                    **_LOOPBACK,
                    **os.environ,
                    **_THREADS,
                    "PYTHONPATH": path,
                },
                start_new_session=True,  # Ctrl-C is the launcher's to answer
            )
        try:
            self.hear(IMPORTING)
        except KeyboardInterrupt:  # while it imports torch, it hears nothing
            self.process.kill()
            self.close()
            raise

    def learn(self) -> None:
        """Import what the ranks need, before there is a folder to leave behind."""
        if self.needs:
            self.tell("import", sorted(self.needs))
            self.hear(IMPORTING)
            self.needs.clear()

    def tell(self, order: str, what: Any = None, fds: list[int] | None = None) -> None:
        with contextlib.suppress(OSError):  # if it is dead, `hear` will say so
            server_side.send(self.control, (order, what), fds)

    def answers(self) -> bool:
        """Whether it is still there: somebody may have killed or stopped it."""
        if not self.alive:
            return False
        self.tell("ping")
        try:
            return bool(self.hear() == "here")
        except LaunchError:
            return False

    def hear(self, within: float | None = None) -> Any:
        within = within or PATIENCE
        self.control.settimeout(within)
        try:
            return server_side.receive(self.control)[0]
        except TimeoutError:
            self.process.kill()  # and with it its ranks
            self.close()
            line = f"the rank server gave no answer in {within:g} s: it was ended"
            raise LaunchError(line) from None
        except (EOFError, OSError):
            self.process.wait()
            self.errors.seek(0)
            said = self.errors.read().decode(errors="replace").strip()
            self.close()
            last = said.splitlines()[-1] if said else _ended(self.process.returncode)
            raise LaunchError(f"the rank server ended: {last}", said) from None

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        self.control.close()
        self.life.close()
        self.process.wait()
        self.errors.close()


_servers: dict[tuple[int, bool], _Server] = {}
_lock = threading.RLock()


@contextlib.contextmanager
def _server(emulate: bool, needs: Iterable[str]) -> Iterator[_Server]:
    """This process's server, one launch at a time, with what its ranks need."""
    key = (os.getpid(), emulate)
    with _lock:
        server = _servers.get(key)
        if server is not None and not server.answers():
            server.close()
            server = None
        if server is None:
            server = _servers[key] = _Server(warm=not _cold(), emulate=emulate)
        try:
            server.needs.update(needs)
            server.learn()
            yield server
        except LaunchError:
            raise
        except BaseException:  # Ctrl-C between two messages: start afresh next time
            _servers.pop(key).close()
            raise


def _cold() -> bool:
    """Whether ranks are asked to be started from nothing, not forked."""
    return bool(os.environ.get("ATLAS_SPAWN"))


@atexit.register
def _close_servers() -> None:
    for (pid, _), server in list(_servers.items()):
        if pid == os.getpid():
            server.close()


def torchrun(
    arguments: Iterable[str],
    *,
    ranks: int,
    timeout: float = 120.0,
    python: str = sys.executable,
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """The real torchrun on this machine, in a session of its own; ends in time."""
    command = [python, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), *arguments]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**_ONEDNN, **os.environ, **_THREADS, **(env or {})},
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()  # the ranks die with it: exemplars.runtime sees to that
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)
