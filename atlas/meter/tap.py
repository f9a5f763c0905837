"""Hears every operation of torch.distributed, in every thread and whoever calls.

A dispatch mode belongs to the thread that opened it. The kernels of the c10d
operators belong to the process: DDP's reducer in C++, functional collectives and a
thread of the reader's all end there. So a tap is a kernel of ours in front of each.

    heard = tap(listener)      # from now on
    heard.close()

A listener is told of an operation before and after its kernel, and before and after
somebody waits for its handle.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Call:
    """One operation: its operator, and its arguments by name."""

    operator: str
    named: dict[str, Any]

    @property
    def group(self) -> dist.ProcessGroup:
        """The group it belongs to."""
        return dist.ProcessGroup.unbox(self.named["process_group"])


class Listener(Protocol):
    """Is told of everything, in the thread in which it happens."""

    def posted(self, call: Call) -> Any:
        """Before the kernel; what is returned comes back as `token`."""

    def returned(self, token: Any, out: Any) -> None:
        """After the kernel, with what it gave."""

    def waits(self, work: Any) -> None:
        """Somebody begins to wait for this handle."""

    def waited(self, work: Any) -> None:
        """And has waited."""


class Tap:
    """Open from its making on, until it is closed."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        _install()
        _open.append(self)

    def close(self) -> None:
        """Tell no more."""
        _open.remove(self)


_open: list[Tap] = []
_libraries: list[Any] = []
_watched: set[type] = set()


def tap(listener: Listener) -> Tap:
    """Tell this listener of every operation from now on."""
    return Tap(listener)


def handle(out: Any) -> Any:
    """The Work that an operator gave, or None: NCCL gives none for what it waited for.

    It is watched from now on: a listener hears when somebody waits for it.
    """
    for leaf in out if isinstance(out, tuple | list) else (out,):
        if isinstance(leaf, torch.ScriptObject):
            work = _unboxed(leaf)
            if work is not None:
                watch(type(work))
                return work
    return None


def _unboxed(box: torch.ScriptObject) -> Any:
    try:
        return dist.Work.unbox(box)
    except RuntimeError:
        return None


def watch(cls: type) -> None:
    """Tell when a Work of this class is waited for."""
    if cls in _watched:
        return
    _watched.add(cls)
    inner: Callable[..., Any] = cls.wait  # type: ignore[attr-defined]

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        told = [t.listener for t in _open]
        for listener in told:
            listener.waits(self)
        out = inner(self, *args, **kwargs)
        for listener in told:
            listener.waited(self)
        return out

    cls.wait = wait  # type: ignore[attr-defined]


def tensors(tree: Any) -> list[Tensor]:
    """All tensors in nested lists."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, list | tuple):
        return [t for part in tree for t in tensors(part)]
    return []


# The kernels


def _install() -> None:
    """Once in a process: a kernel of ours before those of all devices.

    Every call in every thread passes BackendSelect, where c10d has nothing of its
    own. From there it is passed on; meanwhile other threads may run Python, as they
    must: gloo's own threads drop tensors that Python made.
    """
    if _libraries:
        return
    library = torch.library.Library("c10d", "IMPL")
    _libraries.append(library)  # as long as it lives, so do the kernels
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("c10d::"):
            operator = getattr(torch.ops.c10d, name.removeprefix("c10d::")).default
            names = [argument.name for argument in operator._schema.arguments]
            if "process_group" in names:
                ours = _in_front(name, operator, names)
                library.impl(operator, ours, _KEY, with_keyset=True)


_KEY = "BackendSelect"


def _in_front(name: str, operator: Any, names: list[str]) -> Callable[..., Any]:
    key = getattr(torch._C.DispatchKey, _KEY)

    def tapped(keyset: Any, *args: Any) -> Any:
        call = Call(name, dict(zip(names, args, strict=False)))
        told = [(t.listener, t.listener.posted(call)) for t in _open]
        out = operator.redispatch(keyset.remove(key), *args)
        for listener, token in told:
            listener.returned(token, out)
        return out

    return tapped
