"""Nodes on one machine: each rank in a network of its own, on a wire of known speed.

A node is a rank in a network namespace without a name; rank 0 holds open one more,
with the bridge. Nothing is made in the machine's own network, so two runs never
collide, and when the ranks are gone, however they went, the kernel takes all of it
away. The ranks keep meeting on the machine's own loopback, so that what is counted
on the wire is the exchange alone.

    python -m atlas.planner.accuracy.nodes      # says what is missing here, if anything
"""

import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atlas.planner.accuracy import wire as wires
from atlas.planner.accuracy.wire import Command, Wire

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from exemplars.runtime import World

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_IFNAME = "GLOO_SOCKET_IFNAME"
_PROBE_SECONDS = 20


class NodesError(Exception):
    """Nodes cannot be made here; one line says what is missing."""


@dataclass(frozen=True)
class Node:
    """This rank on the wire, by its default group; they meet beside it."""

    meeting: Any  # a ProcessGroupGloo, whose types lack `barrier`

    def meet(self) -> None:
        """Wait for all ranks, without a byte on the wire."""
        self.meeting.barrier().wait()

    def counted(self) -> tuple[int, int]:
        """Bytes that went out on the wire, and frames that were dropped."""
        found = json.loads(_run(wires.COUNTERS))[0]
        return int(found["bytes"]), int(found["drops"])


def plug_in(w: "World", wire: Wire, timeout: float, node_size: int = 1) -> Node:
    """Move this rank into a node; its default group is then the wire's.

    A node has so many ranks, neighbors in rank: the first of them makes it, and what
    they send one another never leaves it.
    """
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo

    limit = timedelta(seconds=timeout)
    store = _store(w, limit)
    #: Of sockets that are made before this rank moves, and stay where they are.
    meeting = ProcessGroupGloo(PrefixStore("meet", store), w.rank, w.size, limit)
    #: The first rank's open file is all that holds the switch.
    place = torch.tensor([os.getpid(), _new_switch() if w.rank == 0 else 0])
    dist.broadcast(place, 0)
    switch = f"/proc/{place[0]}/fd/{place[1]}"
    if w.rank % node_size == 0:
        _new_node(wire, w.rank // node_size, switch)
    homes = [torch.tensor([0, 0]) for _ in range(w.size)]
    dist.all_gather(homes, torch.tensor([os.getpid(), threading.get_native_id()]))
    if w.rank % node_size:
        process, thread = homes[w.rank - w.rank % node_size].tolist()
        _enter(os.open(f"/proc/{process}/task/{thread}/ns/net", os.O_RDONLY))
    dist.barrier()  # all are plugged in
    dist.destroy_process_group()
    os.environ[_IFNAME] = wires.INTERFACE
    dist.init_process_group(
        "gloo", store=store, rank=w.rank, world_size=w.size, timeout=limit
    )
    return Node(meeting)


def _new_node(wire: Wire, node: int, switch: str) -> None:
    """A network with one shaped way out, to the switch; this thread moves into it."""
    _call("unshare", _NEW_NETWORK)
    for name, value in wires.SETTINGS.items():
        Path("/proc/sys/net/ipv4", name).write_text(value)
    for command in wire.plug(node, switch):
        _run(command)
    with _inside(os.open(switch, os.O_RDONLY | os.O_CLOEXEC)):
        _run(wires.attach(node))


def _enter(network: int) -> None:
    """Move this thread into a network that another made; its file is closed."""
    _call("setns", network, _NEW_NETWORK)
    os.close(network)


def _store(w: "World", limit: timedelta) -> "Store":
    """Where the ranks find each other: on the loopback, at a port that is free."""
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore

    def at(port: int) -> TCPStore:
        return TCPStore("127.0.0.1", port, w.size, w.rank == 0, limit, False)

    own = at(0) if w.rank == 0 else None
    port = torch.tensor(own.port if own else 0)
    dist.broadcast(port, 0)
    return own or at(int(port))


def _here() -> int:
    """The network that this thread is in, as an open file."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _new_switch() -> int:
    """A network with a bridge in it, as an open file; this thread stays in it."""
    _call("unshare", _NEW_NETWORK)
    for command in wires.switch():
        _run(command)
    return _here()


@contextlib.contextmanager
def _inside(network: int) -> Iterator[None]:
    """In another network for a moment; its file is closed."""
    back = _here()
    try:
        _call("setns", network, _NEW_NETWORK)
        yield
    finally:
        _call("setns", back, _NEW_NETWORK)
        os.close(network)
        os.close(back)


def _call(name: str, *arguments: int) -> None:
    """A function of the C library that Python 3.11 does not have."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        problem = os.strerror(ctypes.get_errno())
        raise NodesError(f"network namespaces are not permitted here ({problem})")


def _run(command: Command) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()
        raise NodesError(f"`{' '.join(command)}`: {said[-1]}")
    return done.stdout


def missing() -> str | None:
    """What this machine lacks to have nodes, and what to do; None if nothing."""
    if sys.platform != "linux":
        return "network namespaces are a thing of Linux: run it there"
    for tool in ("ip", "tc"):
        if not shutil.which(tool):
            return f"no `{tool}` here: install iproute2 (apt-get install iproute2)"
    probe = [sys.executable, "-m", "atlas.planner.accuracy.nodes"]
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
    done = subprocess.run(
        probe,
        capture_output=True,
        text=True,
        check=False,
        timeout=_PROBE_SECONDS,
        env={**os.environ, "PYTHONPATH": path},
    )
    if done.returncode == 0:
        return None
    return (done.stderr.strip() or "a network could not be made").splitlines()[-1]


def _probe() -> None:
    """Make a switch and one node on it, here and now; they end with this process."""
    try:
        switch = _new_switch()
        _call("unshare", _NEW_NETWORK)
        for command in Wire(100_000_000).plug(0, f"/proc/{os.getpid()}/fd/{switch}"):
            _run(command)
    except NodesError as error:
        hint = "be root, or put `unshare --user --map-root-user` before the command"
        denied = "permitted" in str(error)
        sys.exit(f"{error}: {hint}" if denied else str(error))


if __name__ == "__main__":
    _probe()
