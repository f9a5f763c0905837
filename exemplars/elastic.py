"""Workers that may die: a process beside each rank, a group that is formed anew.

    with Crew(w, Replica, w, task) as crew:  # on every rank a Replica(w, task)
        crew.form(range(4))                  # they join a group
        done = crew.ask("exchange", step)    # here: replica.exchange(step)
        crew.agree(done)                     # {0: True, 1: None, 2: True, ..}

The rank itself supervises: it starts its worker, gives it orders and outlives
it, so neither torchrun nor another launcher sees a rank end. The worker is a
process like any other, forked by a keeper that has one thread and was there
before the store. SIGKILL ends it in the middle of whatever it does;
its sockets close, and the collectives of its peers end in an error. They
leave the broken group at once, so that whoever waits for them has the same
error. Then the supervisors compare what became of their workers, in a store
that no worker belongs to, and form the next group.

What a worker counts is added to the open meters of its supervisor, when a
request is done; so are the events "started" and "killed". A request that broke
is counted by nobody: the dead cannot tell, and the living would tell of half a
collective.
"""

import contextlib
import json
import multiprocessing
import os
import pickle
import signal
import socket
import traceback
import warnings
from collections.abc import Callable, Iterable
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]
    PrefixStore,
    Store,
    TCPStore,
)

from atlas.meter import absorb, forget, note, unseen
from atlas.process import die_with_parent
from exemplars.runtime import World, meter

__all__ = ["Crew"]

#: What an error says whose cause is that a peer is gone.
ECHOES = ("closed by peer", "reset by peer", "Broken pipe", "Socket closed")
#: A forked worker's inherited groups. Their end would wait for threads that a
#: fork does not copy, so they are kept until the process ends.
_aside: list[Any] = []


class Crew:
    """The workers of all ranks, as the supervisor of one of them sees them."""

    def __init__(
        self,
        w: World,
        make: Callable[..., Any],
        *args: Any,
        timeout: float = 30.0,
    ) -> None:
        """On every rank; `make(*args)` is called in each worker."""
        w.require(not w.dry, "workers that die cannot be counted dry")
        w.require(
            not torch.cuda.is_initialized() or _emulated(),
            "workers are forked, which CUDA forbids: hide the GPUs "
            "(CUDA_VISIBLE_DEVICES=)",
        )
        self.w, self.make, self.args = w, make, args
        self.timeout = timedelta(seconds=timeout)
        self.members: list[int] = []  # the ranks whose workers form the group
        self.alive = False  # this rank's worker
        self._epoch = self._turn = 0

    def __enter__(self) -> "Crew":
        self._keep()
        host = os.environ.get("MASTER_ADDR", "localhost")
        port = torch.zeros((), dtype=torch.long, device=self.w.device)
        if self.w.rank == 0:
            self.store = self._connect(host, 0)
            port.fill_(self.store.port)
        with unseen():
            dist.broadcast(port, 0)
        if self.w.rank > 0:
            self.store = self._connect(host, int(port))
        self._where = host, int(port)
        self.start()
        return self

    def __exit__(self, *exc: Any) -> None:
        if exc[0] is None:
            #: Rank 0 keeps the store until the last has read from it.
            with unseen():
                dist.barrier()
        if self.alive:
            self.alive = False
            os.kill(self._pid, signal.SIGKILL)
        self._pipe.close()
        self._keeper.join()

    def _keep(self) -> None:
        """Fork the process that will fork this rank's workers.

        Not later: the store's server asks the resolver for the name of whoever
        connects, under a lock of the C library. A process forked at that moment
        waits for this lock forever, when it connects to anything itself.
        """
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        job = (self._pipe, theirs, os.getpid(), self)
        self._keeper: BaseProcess = context.Process(
            target=_keep, args=job, daemon=True
        )
        with warnings.catch_warnings():
            #: Threads of gloo's run here. They hold no lock while nothing is
            #: sent, and nobody asks anything of their groups after the fork.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._keeper.start()
        theirs.close()

    def start(self) -> None:
        """A new worker on this rank, which knows nothing yet."""
        assert not self.alive, f"rank {self.w.rank} has a worker"
        _send(self._pipe, ("__start__", self._where))
        self._pid: int = _receive(self._pipe)
        self.alive = True
        note("started")

    def form(self, members: Iterable[int]) -> None:
        """The workers of these ranks, and no others, are a group from now on."""
        self.members = list(members)
        self._epoch += 1
        if self.w.rank in self.members:
            self.ask("__join__", self._epoch, self.members)

    def ask(self, name: str, *args: Any) -> Any:
        """Call a method of this rank's worker, or read an attribute.

        None if there is none, if it dies of it, or if its group breaks.
        """
        if not self.alive:
            return None
        _send(self._pipe, (name, args))
        answer = _receive(self._pipe)
        if isinstance(answer, int):  # the keeper's: how the worker ended
            self.alive = False
            if answer == -signal.SIGKILL:
                note("killed")
            return None
        error, value, counts = answer
        if error is not None:
            raise RuntimeError(f"in the worker of rank {self.w.rank}: {error}")
        if counts is not None:
            absorb(counts, self.members)
        return value

    def agree(self, said: Any) -> dict[int, Any]:
        """What every rank's supervisor says, by rank; all have to say it."""
        self._turn += 1
        self.store.set(f"said/{self._turn}/{self.w.rank}", json.dumps(said))
        return {
            r: json.loads(self.store.get(f"said/{self._turn}/{r}"))
            for r in range(self.w.size)
        }

    def unanimous(self, said: Any) -> bool:
        """Whether the supervisors of all members say something true."""
        heard = self.agree(said)
        return all(heard[r] for r in self.members)

    def _connect(self, host: str, port: int) -> TCPStore:
        master = port == 0
        return TCPStore(
            host,
            port,
            is_master=master,
            wait_for_workers=False,
            timeout=self.timeout,
        )


def _send(pipe: Connection, message: Any) -> None:
    """By value: multiprocessing's own pickle would share a tensor's memory."""
    pipe.send_bytes(pickle.dumps(message))


def _receive(pipe: Connection) -> Any:
    return pickle.loads(pipe.recv_bytes())  # noqa: S301 - from our own process


def _emulated() -> bool:
    return os.environ.get("ATLAS_EMULATED") == "1"


# In the keeper, which shares one end of the pipe with the worker that lives


def _keep(
    theirs: Connection, pipe: Connection, supervisor: int, crew: Crew
) -> None:
    """Start a worker, tell how it ended, until nobody asks."""
    die_with_parent(supervisor)
    signal.set_wakeup_fd(-1)
    forget()  # the supervisor's meters, which would hold every broken group
    theirs.close()
    _aside.append(dist.group.WORLD)
    dist.destroy_process_group()
    while True:
        try:
            name, where = _receive(pipe)
            if name != "__start__":
                continue  # the dead one did not read it
            _send(pipe, pid := _fork(pipe, crew, where))
            _, status = os.waitpid(pid, 0)
            _send(pipe, os.waitstatus_to_exitcode(status))
        except (EOFError, OSError):
            return


def _fork(pipe: Connection, crew: Crew, where: tuple[str, int]) -> int:
    keeper = os.getpid()
    if pid := os.fork():
        return pid
    try:
        die_with_parent(keeper)
        _work(pipe, crew, where)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


# In the worker


def _work(pipe: Connection, crew: Crew, where: tuple[str, int]) -> None:
    """A worker's life: one request after the other, until nobody asks."""
    #: Makes torch's pool of threads anew, which a fork leaves broken. Backward
    #: passes on several devices would do so at the same time, and abort.
    torch.set_num_threads(1)
    inherited = _files()
    store = crew._connect(*where)
    worker = crew.make(*crew.args)
    while True:
        try:
            name, args = _receive(pipe)
        except EOFError:
            return
        if name == "__join__":
            _join(store, crew, *args)
            _send(pipe, (None, True, None))
            continue
        error, value, counts = _call(getattr(worker, name), args)
        if error and any(echo in error for echo in ECHOES):
            _leave(inherited, where[1])
            error = None
        _send(pipe, (error, value, counts))
        if error:
            return


def _leave(inherited: set[int], store: int) -> None:
    """End the connections of a broken group now: other survivors wait for it.

    To destroy the group may not be enough: messages that are still open hold it.
    """
    for fd in _files() - inherited:
        with (
            contextlib.suppress(OSError),
            socket.socket(fileno=os.dup(fd)) as end,
        ):
            if end.getpeername()[1] != store:
                end.shutdown(socket.SHUT_RDWR)
    dist.destroy_process_group()


def _files() -> set[int]:
    return {int(fd) for fd in os.listdir("/dev/fd")}


def _call(named: Any, args: Any) -> Any:
    """What went wrong, or what it gave and what was counted.

    The error itself holds frames, and they hold the group, which could not end.
    """
    try:
        with meter(shown=False) as moved:
            value = named(*args) if callable(named) else named
    except Exception:
        return traceback.format_exc(), None, None
    return None, value, moved.counts()


def _join(store: Store, crew: Crew, epoch: int, members: list[int]) -> None:
    """Be in the group of this epoch; addresses of older ones are never read."""
    if dist.is_initialized():
        dist.destroy_process_group()
    device = crew.w.device
    dist.init_process_group(
        dist.get_default_backend_for_device(device),
        store=PrefixStore(f"epoch/{epoch}", store),
        rank=members.index(crew.w.rank),
        world_size=len(members),
        timeout=crew.timeout,
        device_id=None if device.type == "cpu" else device,
    )
