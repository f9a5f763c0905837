"""Writes down what a rank communicates, line by line, while it happens.

A line is written before an operation begins, before somebody waits for it, and when
it is over. So the file of a rank that hangs, or was killed, ends with what it was at.
Each line is JSON: what happened (`k`), when (`at`, by the clock that all processes of
a machine share), and of which operation (`i`).

    {"k": "op", "i": 3, "op": "all_reduce", "group": "0", "turn": 2, ...}
    {"k": "wait", "i": 3, "at": 12.5}
    {"k": "waited", "i": 3, "at": 12.6}
"""

import contextlib
import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from atlas.meter.operators import OPERATORS, POINT_TO_POINT
from atlas.meter.site import call_site
from atlas.meter.tap import Call, handle, tap, tensors


class Journal:
    """Open from its making on; every thread of this process writes into it."""

    def __init__(self, path: Path) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.pid = os.getpid()
        self.count = 0
        self.turns: dict[str, int] = defaultdict(int)
        self.groups: dict[str, list[int]] = {}
        self.works: dict[int, tuple[Any, int]] = {}
        self.waiting: set[int] = set()
        self.store: Any = None  # that the script's own group was made with
        self.digest: Callable[[Any], str] | None = None  # names what is sent
        self.lock = threading.RLock()
        self.tap = tap(self)
        self.undo = _hear_of_groups(self)

    def close(self) -> None:
        """Hear no more."""
        self.tap.close()
        self.undo()
        self.works.clear()

    def write(self, k: str, **what: Any) -> None:
        """One line, at once."""
        line = json.dumps({"k": k, "at": round(time.monotonic(), 6), **what})
        os.write(self.file, line.encode() + b"\n")

    # As the tap tells it

    def posted(self, call: Call) -> int | None:
        """An operation begins."""
        op, where = OPERATORS.get(call.operator, (call.operator, None))
        given = tensors(list(call.named.values())[where]) if where is not None else []
        if given and given[0].is_meta:
            return None
        group = call.group
        site = call_site()
        told: dict[str, Any] = {"op": op, "site": site.line, "by": site.by}
        if os.getpid() != self.pid:  # a fork of this rank: its group does not work
            self.write("child", pid=os.getpid(), **told)
            return None
        told["bytes"] = sum(t.numel() * t.element_size() for t in given)
        if given:
            told["elements"] = sum(t.numel() for t in given)
            told["dtype"] = str(given[0].dtype).removeprefix("torch.")
        told.update(_partners(call, op, group))
        if op == "send" and self.digest:
            told["what"] = self.digest(given)
        if threading.current_thread() is not threading.main_thread():
            told["thread"] = threading.current_thread().name
        with self.lock:
            name = self.known(group)
            index, self.count = self.count, self.count + 1
            told["group"] = name
            if op not in POINT_TO_POINT:
                told["turn"] = self.turns[name]
                self.turns[name] += 1
            self.write("op", i=index, **told)
        return index

    def returned(self, token: int | None, out: Any) -> None:
        """It is on its way, or over: what gives no handle was waited for."""
        if token is None:
            return
        work = handle(out)
        if work is None:
            self.write("waited", i=token)
            return
        key = id(work)
        self.works[key] = (work, token)
        with contextlib.suppress(RuntimeError):  # a message has no future
            work.get_future().add_done_callback(lambda f: self.done(key, token, f))

    def done(self, key: int, index: int, future: Any) -> None:
        """It is over, though perhaps nobody waited yet; let go of its tensors."""
        with contextlib.suppress(RuntimeError):  # it failed: then it never ends
            future.value()
            self.write("done", i=index)
        if key not in self.waiting:
            self.works.pop(key, None)

    def waits(self, work: Any) -> None:
        """Somebody stands still until this is over."""
        if id(work) in self.works:
            self.waiting.add(id(work))
            self.write("wait", i=self.works[id(work)][1])

    def waited(self, work: Any) -> None:
        """And goes on."""
        self.waiting.discard(id(work))
        _, index = self.works.pop(id(work), (None, None))
        if index is not None:
            self.write("waited", i=index)

    def known(self, group: dist.ProcessGroup) -> str:
        """The name of a group; its members are written down once."""
        name = str(group.group_name)
        if not self.groups:
            self.store = c10d._get_default_store()
            self.write("rank", rank=dist.get_rank(), backend=_backends(group))
        if name not in self.groups:
            self.groups[name] = dist.get_process_group_ranks(group)
            self.write("members", group=name, ranks=self.groups[name])
        return name


def _backends(group: dist.ProcessGroup) -> str:
    """The backend; where the script named none, each device has its own."""
    name = str(dist.get_backend(group))
    if name != "undefined":
        return name
    pairs = dist.get_backend_config(group).split(",")
    return " and ".join(dict.fromkeys(pair.partition(":")[2] for pair in pairs))


def _partners(call: Call, op: str, group: dist.ProcessGroup) -> dict[str, int]:
    """The peer of a message, or the root of a collective, as ranks of the world."""
    found: dict[str, int] = {}
    peer = call.named.get("dst", call.named.get("src"))
    if op in POINT_TO_POINT:
        if peer is None or peer < 0:
            found["peer"] = -1
        else:
            found["peer"] = dist.get_global_rank(group, peer)
        found["tag"] = call.named.get("tag", 0)
    elif "root_rank" in call.named:
        found["root"] = dist.get_global_rank(group, call.named["root_rank"])
    return found


def _hear_of_groups(journal: Journal) -> Any:
    """Write down when groups are made: all ranks must make all, in one order."""
    made = {name: getattr(c10d, name) for name in ("init_process_group", "new_group")}
    count = 0

    def tell(name: str) -> Any:
        def told(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            if os.getpid() != journal.pid:
                journal.write("child", pid=os.getpid(), op=name, site=call_site().line)
                return made[name](*args, **kwargs)
            if kwargs.get("use_local_synchronization"):
                return made[name](*args, **kwargs)  # only its members make it
            count += 1
            number = count
            ranks = args[0] if args and name == "new_group" else kwargs.get("ranks")
            journal.write(
                "make", n=number, what=name, site=call_site().line,
                ranks=list(ranks) if ranks is not None else None,
            )  # fmt: skip
            out = made[name](*args, **kwargs)
            if name == "init_process_group":
                journal.store = c10d._get_default_store()
            journal.write("made", n=number)
            return out

        return told

    _put({name: tell(name) for name in made})
    return lambda: _put(made)


def _put(functions: dict[str, Any]) -> None:
    for name, function in functions.items():
        setattr(c10d, name, function)
        setattr(dist, name, function)
