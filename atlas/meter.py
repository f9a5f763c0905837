"""Counts what any torch.distributed code moves: calls, bytes, peers, waits.

    with meter() as moved:
        dist.all_reduce(x)
    moved.calls["all_reduce"]      # Count(count=1, payload=800, wire=1200)

Every collective and every message passes the dispatcher as a c10d operator,
whoever calls: hand-written point-to-point, functional collectives, DDP's
reducer in C++, FSDP2. A dispatch mode sees it with its tensors, on gloo, on
NCCL and on the fake group alike. An operator the meter does not know raises:
a count that misses something is worse than none.

Three figures, each a check on the one before:
- payload: the bytes of the tensors this rank hands over;
- wire: what this rank must send for it under a bandwidth-optimal algorithm;
- written: what this process really wrote (Linux; sockets and files).

Beside them `flops`: operations of the matrix products and convolutions that this
rank computed meanwhile, forward and backward, as torch counts them.

[Note: waits] A Work is waited for in Python or in C++ and passes no dispatcher.
The one that the operator returns and the one that the caller gets are one
Python object as long as somebody holds it. So the meter holds it, and watches
the `wait` of its class.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from atlas.modes import Mode, uncompiled
from atlas.timeline import Event


class MeterError(Exception):
    """An operation was seen that the meter cannot count."""


@dataclass(slots=True)
class Count:
    """How often, how many bytes handed over, how many bytes must be sent."""

    count: int = 0
    payload: int = 0
    wire: Fraction = Fraction(0)


#: c10d operator -> (public name, index of the argument with this rank's payload)
OPERATORS: dict[str, tuple[str, int | None]] = {
    "c10d::allreduce_": ("all_reduce", 0),
    "c10d::allreduce_coalesced_": ("all_reduce", 0),
    "c10d::broadcast_": ("broadcast", 0),
    "c10d::reduce_": ("reduce", 0),
    "c10d::allgather_": ("all_gather", 1),
    "c10d::_allgather_base_": ("all_gather", 1),
    "c10d::allgather_coalesced_": ("all_gather", 1),
    "c10d::allgather_into_tensor_coalesced_": ("all_gather", 1),
    "c10d::reduce_scatter_": ("reduce_scatter", 1),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", 1),
    "c10d::reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "c10d::alltoall_": ("all_to_all", 1),
    "c10d::alltoall_base_": ("all_to_all", 1),
    "c10d::gather_": ("gather", 1),
    "c10d::scatter_": ("scatter", 1),
    "c10d::barrier": ("barrier", None),
    "c10d::monitored_barrier_": ("barrier", None),
    "c10d::send": ("send", 0),
    "c10d::recv_": ("recv", 0),
    "c10d::recv_any_source_": ("recv", 0),
    "_c10d_functional::all_reduce": ("all_reduce", 0),
    "_c10d_functional::all_reduce_": ("all_reduce", 0),
    "_c10d_functional::all_reduce_coalesced": ("all_reduce", 0),
    "_c10d_functional::all_reduce_coalesced_": ("all_reduce", 0),
    "_c10d_functional::all_gather_into_tensor": ("all_gather", 0),
    "_c10d_functional::all_gather_into_tensor_out": ("all_gather", 0),
    "_c10d_functional::all_gather_into_tensor_coalesced": ("all_gather", 0),
    "_c10d_functional::reduce_scatter_tensor": ("reduce_scatter", 0),
    "_c10d_functional::reduce_scatter_tensor_coalesced": ("reduce_scatter", 0),
    "_c10d_functional::all_to_all_single": ("all_to_all", 0),
    "_c10d_functional::broadcast": ("broadcast", 0),
    "_c10d_functional::broadcast_": ("broadcast", 0),
}
_SPACES = {name.split("::")[0] for name in OPERATORS} | {"_c10d_functional_autograd"}
#: No communication of their own: they wait, or wrap one that is counted.
_SILENT = {"_c10d_functional::_wrap_tensor_autograd"}
_WAIT_TENSOR = "_c10d_functional::wait_tensor"


def wire_bytes(op: str, payload: int, p: int) -> Fraction:
    """What one rank of p must send, if the algorithm is bandwidth-optimal.

    One-to-all and all-to-one operations are taken as a pipelined chain, in
    which every rank passes the payload on once.
    """
    match op:
        case "all_reduce":
            return Fraction(2 * (p - 1) * payload, p)
        case "all_gather":
            return Fraction((p - 1) * payload)
        case "reduce_scatter" | "all_to_all" | "scatter":
            return Fraction((p - 1) * payload, p)
        case "send" | "broadcast" | "reduce" | "gather":
            return Fraction(payload if p > 1 else 0)
        case "recv" | "barrier":
            return Fraction(0)
    raise MeterError(f"no wire bytes are known for {op!r}")


class Meter(Mode):
    """Counts while it is open; afterwards its figures stay."""

    def __init__(self, digest: Callable[[Any], str] | None = None) -> None:
        """`digest` names what is sent; without it, only its size is known."""
        super().__init__()
        self.digest = digest
        self.events: list[Event] = []
        self.calls: dict[str, Count] = defaultdict(Count)
        self.sent_to: dict[int, int] = defaultdict(int)
        self.written: int | None = None
        self.flops = 0
        self._start = time.perf_counter()
        self._works: dict[int, tuple[Any, list[int]]] = {}
        self._tensors: dict[int, int] = {}
        self._open: list[int] = []

    @property
    def bytes_sent(self) -> int:
        """Bytes this rank sent point to point."""
        return sum(self.sent_to.values())

    @property
    def count(self) -> int:
        """Collective calls, of any kind."""
        return sum(c.count for op, c in self.calls.items() if op not in _P2P)

    @property
    def payload(self) -> int:
        """Bytes this rank handed to collectives."""
        return sum(c.payload for op, c in self.calls.items() if op not in _P2P)

    @property
    def wire(self) -> int | float:
        """Bytes this rank must send, for messages and collectives together."""
        return plain(sum((c.wire for c in self.calls.values()), Fraction(0)))

    @property
    def seconds(self) -> float:
        """Wall seconds from opening to the last event."""
        return max((max(e.at, e.until) for e in self.events), default=0.0)

    def __enter__(self) -> "Meter":
        self._before = written()
        self._start = time.perf_counter()
        _active.append(self)
        super().__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        _active.remove(self)
        after = written()
        if after is not None and self._before is not None:
            self.written = after - self._before
        self._works.clear()
        self._tensors.clear()

    @uncompiled
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(_unfolds(t) for t in types):
            return NotImplemented
        if func.namespace not in _SPACES:
            out = func(*args, **kwargs)
            if (count := flop_registry.get(func._overloadpacket)) is not None:
                self.flops += _operations(count, args, kwargs, out)
            return out
        name = func._schema.name
        if name == _WAIT_TENSOR:
            return self._wait_tensor(func, args, kwargs)
        if name in _SILENT:
            return func(*args, **kwargs)
        if name not in OPERATORS:
            raise MeterError(f"the meter does not know {name}: it cannot count it")
        at = self._now()
        index = self._log(name, func, args, kwargs, at)
        out = func(*args, **kwargs)
        self._remember(out, index)
        if out is None:  # no handle: it waited itself (a monitored barrier)
            self._log_wait(index, at)
        return out

    def _log(self, name: str, func: Any, args: Any, kwargs: Any, at: float) -> int:
        op, where = OPERATORS[name]
        names = (a.name for a in func._schema.arguments)
        named: dict[str, Any] = dict(zip(names, args, strict=False)) | kwargs
        group = _group(named)
        payload = 0 if where is None else nbytes(args[where])
        label = self._label()
        if op in _P2P:
            peer = named.get("dst", named.get("src", -1))
            peer = dist.get_global_rank(group, peer) if peer >= 0 else -1
            event = Event(op, at, at, op, label, peer=peer, bytes=payload)
            if op == "send" and self.digest:
                event = replace(event, what=self.digest(args[where]))
            if op == "send":
                self.sent_to[peer] += payload
        else:
            ranks = tuple(dist.get_process_group_ranks(group))
            event = Event("collective", at, at, op, label, bytes=payload, group=ranks)
        count = self.calls[op]
        count.count += 1
        count.payload += payload
        count.wire += wire_bytes(op, payload, group.size())
        self.events.append(event)
        return len(self.events) - 1

    def _remember(self, out: Any, index: int) -> None:
        """Know this operation's handle again when it is waited for."""
        for leaf in out if isinstance(out, tuple | list) else (out,):
            if isinstance(leaf, torch.ScriptObject):
                work = _unboxed(leaf)
                if work is not None:
                    _watch(type(work))
                    self._works[id(work)] = (work, [index])
            elif isinstance(leaf, Tensor):
                self._tensors[id(leaf)] = index

    def _batched(self, first: int, works: Sequence[Any]) -> None:
        """On NCCL one handle stands for a whole batch of messages."""
        posted = range(first, len(self.events))
        if works and (len(works) < len(posted) or id(works[0]) not in self._works):
            _watch(type(works[0]))
            self._works[id(works[0])] = (works[0], list(posted))

    def _waited(self, work: Any, at: float) -> None:
        for index in self._works.pop(id(work), (None, []))[1]:
            self._log_wait(index, at)

    def _wait_tensor(self, func: Any, args: Any, kwargs: Any) -> Any:
        at = self._now()
        out = func(*args, **kwargs)
        index = self._tensors.pop(id(args[0]), None)
        if index is not None:
            self._log_wait(index, at)
        return out

    def _log_wait(self, index: int, at: float) -> None:
        until = self._now()
        self.events[index] = replace(self.events[index], until=until)
        self.events.append(Event("wait", at, until, of=index))

    def _now(self) -> float:
        return time.perf_counter() - self._start

    def _label(self) -> str:
        return self.events[self._open[-1]].label if self._open else ""

    def begin(self, name: str, label: str, cost: float) -> None:
        """Open a named span."""
        self._open.append(len(self.events))
        self.events.append(Event("begin", self._now(), 0, name, label, cost))

    def end(self) -> None:
        """Close the innermost span."""
        self.events.append(Event("end", self._now(), of=self._open.pop()))


_P2P = ("send", "recv")
_active: list[Meter] = []
_watched: set[type] = set()


def meter() -> Meter:
    """A meter, to be opened by `with`."""
    return Meter()


def note(kind: str, what: str = "") -> None:
    """Log what is no operation: the start of a training, an update of weights."""
    for m in _active:
        m.events.append(Event(kind, m._now(), what=what))


@contextmanager
def span(name: str, *, label: object = "", cost: float = 0.0) -> Iterator[None]:
    """Name a piece of work; `cost` is its length in virtual time."""
    meters = list(_active)
    for m in meters:
        m.begin(name, str(label), cost)
    try:
        yield
    finally:
        for m in meters:
            m.end()


def nbytes(tree: Any) -> int:
    """Bytes of all tensors in nested lists."""
    leaves = (t for t in tree_leaves(tree) if isinstance(t, Tensor))
    return sum(t.numel() * t.element_size() for t in leaves)


def plain(x: Fraction) -> int | float:
    """The number, as an int where it is one."""
    return x.numerator if x.denominator == 1 else float(x)


def written() -> int | None:
    """Bytes this process has written since it began, where the system tells."""
    try:
        with open("/proc/self/io") as io:
            return next(int(s[7:]) for s in io if s.startswith("wchar: "))
    except OSError:
        return None


def _unfolds(cls: type[Tensor]) -> bool:
    """Whether these tensors turn an operation into others, collectives among them.

    A DTensor and the result of a functional collective do. They go first, and
    what they make of it comes to the meter after; a FakeTensor only has shapes.
    """
    own = cls.__torch_dispatch__ is not Tensor.__torch_dispatch__
    return own and cls is not FakeTensor


def _operations(count: Any, args: Any, kwargs: Any, out: Any) -> int:
    """As torch counts them; 0 where nothing is computed but a shape."""
    if any(_shape_alone(x) for x in (out if isinstance(out, tuple) else (out,))):
        return 0
    formula = getattr(count, "__wrapped__", None)
    if formula is None:
        return int(count(*args, **kwargs, out_val=out))
    # Most formulas take shapes. torch finds those by a walk through a tree, which
    # takes longer than many a product.
    named = {k: _shape(v) for k, v in kwargs.items()}
    return int(formula(*map(_shape, args), out_shape=_shape(out), **named))


def _shape_alone(x: Any) -> bool:
    """Whether nothing was computed: a DTensor asks first what shape there will be."""
    return isinstance(x, FakeTensor) or (isinstance(x, Tensor) and x.is_meta)


def _shape(x: Any) -> Any:
    """Of a tensor, or of those in a list; anything else as it is."""
    if isinstance(x, Tensor):
        return x.shape
    return [_shape(y) for y in x] if isinstance(x, (tuple, list)) else x


def _group(named: dict[str, Any]) -> dist.ProcessGroup:
    if "group_name" in named:
        name = named["group_name"]
        return c10d._resolve_process_group(name)  # type: ignore[attr-defined]
    for v in named.values():
        if isinstance(v, dist.ProcessGroup):
            return v
        if isinstance(v, torch.ScriptObject):
            try:
                return dist.ProcessGroup.unbox(v)
            except RuntimeError:  # a ReduceOp is boxed too
                continue
    raise MeterError("an operation without a process group")


def _unboxed(box: torch.ScriptObject) -> Any:
    try:
        return dist.Work.unbox(box)
    except RuntimeError:
        return None


def _watch(cls: type) -> None:
    """Tell the open meters when a Work of this class is waited for."""
    if cls in _watched:
        return
    _watched.add(cls)
    inner: Callable[..., Any] = cls.wait  # type: ignore[attr-defined]

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        at = [m._now() for m in _active]
        out = inner(self, *args, **kwargs)
        for m, t in zip(list(_active), at, strict=True):
            m._waited(self, t)
        return out

    cls.wait = wait  # type: ignore[attr-defined]


def _batch(ops: list[Any]) -> Any:
    first = [len(m.events) for m in _active]
    works = _batch_isend_irecv(ops)
    for m, n in zip(_active, first, strict=True):
        m._batched(n, works)
    return works


_batch_isend_irecv = c10d.batch_isend_irecv
dist.batch_isend_irecv = c10d.batch_isend_irecv = _batch  # type: ignore[assignment]
