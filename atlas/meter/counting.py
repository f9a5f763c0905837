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
the `wait` of its class. NCCL gives no Work for a call that need not be waited for:
then the call was the wait.

[Note: threads] A dispatch mode belongs to the thread that opened it. What other
threads post, the meter hears by a tap, which every thread passes.
"""

import threading
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

from atlas.meter.operators import (
    OPERATORS,
    POINT_TO_POINT,
    MeterError,
    wire_bytes,
)
from atlas.meter.tap import Call, Tap, handle, tap, tensors, watch
from atlas.modes import Mode, uncompiled
from atlas.timeline import Event


@dataclass(slots=True)
class Count:
    """How often, how many bytes handed over, how many bytes must be sent."""

    count: int = 0
    payload: int = 0
    wire: Fraction = Fraction(0)


@dataclass(frozen=True)
class Counts:
    """What a meter of another process counted."""

    events: list[Event]
    calls: dict[str, Count]
    sent_to: dict[int, int]
    written: int | None
    flops: int


_SPACES = {name.split("::")[0] for name in OPERATORS} | {"_c10d_functional_autograd"}
#: No communication of their own: they wait, or wrap one that is counted.
_SILENT = {"_c10d_functional::_wrap_tensor_autograd"}
_WAIT_TENSOR = "_c10d_functional::wait_tensor"


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
        self._elsewhere = 0  # bytes that other processes wrote for this one
        self._start = time.perf_counter()
        self._works: dict[int, tuple[Any, list[int]]] = {}
        self._tensors: dict[int, int] = {}
        self._open: list[int] = []
        self._waiting: dict[int, float] = {}  # thread -> since when it waits
        self._batching = False
        self._lock = threading.RLock()
        self._ours = threading.local()  # set while this thread is in our dispatch

    @property
    def bytes_sent(self) -> int:
        """Bytes this rank sent point to point."""
        return sum(self.sent_to.values())

    @property
    def count(self) -> int:
        """Collective calls, of any kind."""
        return sum(c.count for op, c in self.calls.items() if op not in POINT_TO_POINT)

    @property
    def payload(self) -> int:
        """Bytes this rank handed to collectives."""
        return sum(
            c.payload for op, c in self.calls.items() if op not in POINT_TO_POINT
        )

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
        self._tap: Tap = tap(self)
        super().__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        self._tap.close()
        _active.remove(self)
        after = written()
        if after is not None and self._before is not None:
            self.written = after - self._before + self._elsewhere
        self._works.clear()
        self._tensors.clear()

    def counts(self) -> Counts:
        """All of it as plain data, to be absorbed in another process."""
        calls, sent_to = dict(self.calls), dict(self.sent_to)
        return Counts(self.events, calls, sent_to, self.written, self.flops)

    def absorb(self, found: Counts, ranks: Sequence[int]) -> None:
        """Add what another process counted, which has just ended its work.

        Its group was of these ranks, by which its peers are named here.
        """
        with self._lock:
            for op, count in found.calls.items():
                own = self.calls[op]
                own.count += count.count
                own.payload += count.payload
                own.wire += count.wire
            for peer, size in found.sent_to.items():
                self.sent_to[ranks[peer]] += size
            self.flops += found.flops
            self._elsewhere += found.written or 0
            last = max((max(e.at, e.until) for e in found.events), default=0.0)
            shift, first = self._now() - last, len(self.events)
            self.events += [_moved(e, shift, first, ranks) for e in found.events]

    @uncompiled
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(_unfolds(t) for t in types):
            return NotImplemented
        if _unseen:
            return func(*args, **kwargs)
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
        names = (a.name for a in func._schema.arguments)
        named = dict(zip(names, args, strict=False)) | kwargs
        at = self._now()
        index = self._log(name, named, at)
        self._ours.here = True
        try:
            out = func(*args, **kwargs)
        finally:
            self._ours.here = False
        if name.startswith("_c10d_functional"):
            for leaf in [out] if isinstance(out, Tensor) else out:
                self._tensors[id(leaf)] = index
        else:
            self._remember(out, index, at)
        return out

    # As the tap tells it: of other threads, which the mode does not see

    def posted(self, call: Call) -> tuple[int, float] | None:
        """Log what another thread posts."""
        if (
            _unseen
            or getattr(self._ours, "here", False)
            or _shape_alone(_first(call.named))
        ):
            return None
        at = self._now()
        return self._log(call.operator, call.named, at), at

    def returned(self, token: tuple[int, float] | None, out: Any) -> None:
        """Know it again when it is waited for."""
        if token is not None:
            self._remember(out, *token)

    def waits(self, work: Any) -> None:
        """Somebody begins to wait."""
        self._waiting[threading.get_ident()] = self._now()

    def waited(self, work: Any) -> None:
        """Log a wait that is over."""
        at = self._waiting.pop(threading.get_ident(), self._now())
        for index in self._works.pop(id(work), (None, []))[1]:
            self._log_wait(index, at)

    def _log(self, name: str, named: dict[str, Any], at: float) -> int:
        with self._lock:
            return self._log_one(name, named, at)

    def _log_one(self, name: str, named: dict[str, Any], at: float) -> int:
        op, where = OPERATORS[name]
        group = _group(named)
        given = None if where is None else list(named.values())[where]
        payload = nbytes(given)
        label = self._label()
        if op in POINT_TO_POINT:
            peer = named.get("dst", named.get("src", -1))
            peer = dist.get_global_rank(group, peer) if peer >= 0 else -1
            event = Event(op, at, at, op, label, peer=peer, bytes=payload)
            if op == "send" and self.digest:
                event = replace(event, what=self.digest(given))
            if op == "send":
                self.sent_to[peer] += payload
        else:
            ranks = tuple(dist.get_process_group_ranks(group))
            event = Event("collective", at, at, op, label, bytes=payload, group=ranks)
        count = self.calls[op]
        count.count += 1
        count.payload += payload
        is_root = named.get("root_rank") == group.rank()
        count.wire += wire_bytes(op, payload, group.size(), is_root)
        self.events.append(event)
        return len(self.events) - 1

    def _remember(self, out: Any, index: int, at: float) -> None:
        """Know this operation's handle again when it is waited for."""
        work = handle(out)
        if work is not None:
            self._works[id(work)] = (work, [index])
        elif not self._batching:  # no handle: it waited itself
            self._log_wait(index, at)

    def _batched(self, first: int, works: Sequence[Any]) -> None:
        """On NCCL one handle stands for a whole batch of messages."""
        posted = range(first, len(self.events))
        if works and (len(works) < len(posted) or id(works[0]) not in self._works):
            watch(type(works[0]))
            self._works[id(works[0])] = (works[0], list(posted))

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


def _moved(e: Event, shift: float, first: int, ranks: Sequence[int]) -> Event:
    """The event, later, further back in a trace, and with ranks of their own names."""
    return replace(
        e,
        at=e.at + shift,
        until=e.until + shift if e.until else 0.0,
        of=e.of + first if e.of >= 0 else -1,
        peer=ranks[e.peer] if e.peer >= 0 else -1,
        group=tuple(ranks[i] for i in e.group),
    )


_active: list[Meter] = []
_unseen: list[None] = []  # not empty while no meter looks


@contextmanager
def unseen() -> Iterator[None]:
    """What happens here is counted by no meter: it is no part of what is shown."""
    _unseen.append(None)
    try:
        yield
    finally:
        _unseen.pop()


def absorb(found: Counts, ranks: Sequence[int]) -> None:
    """Add to every open meter what a process counted whose group was of these ranks."""
    for m in _active:
        m.absorb(found, ranks)


def meter() -> Meter:
    """A meter, to be opened by `with`."""
    return Meter()


def forget() -> None:
    """Close every meter, in a forked process that has inherited them."""
    for m in reversed(_active[:]):
        m.__exit__(None, None, None)


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


def _first(named: dict[str, Any]) -> Any:
    """A tensor of an operation's, if it has one."""
    return next((t for value in named.values() for t in tensors(value)), None)


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


def _batch(ops: list[Any]) -> Any:
    meters = list(_active)
    first = [len(m.events) for m in meters]
    for m in meters:
        m._batching = True
    try:
        works = _batch_isend_irecv(ops)
    finally:
        for m in meters:
            m._batching = False
    for m, n in zip(meters, first, strict=True):
        m._batched(n, works)
    return works


_batch_isend_irecv = c10d.batch_isend_irecv
dist.batch_isend_irecv = c10d.batch_isend_irecv = _batch  # type: ignore[assignment]
