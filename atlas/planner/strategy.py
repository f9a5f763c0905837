"""Strategies as values: axes of a mesh that compose by `*`, innermost last.

    Data(16) * Pipeline(8) * Tensor(8, sequence_parallel=True)

is 1024 ranks; the ranks of a tensor axis are neighbors, so they share a node if
it has 8 devices. `parse` reads what `str` writes.
"""

from __future__ import annotations

import ast
import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from atlas.planner.errors import OracleError, nearest

__all__ = [
    "AXES",
    "Axis",
    "Channel",
    "Checkpoint",
    "Compress",
    "Context",
    "Data",
    "DiLoCo",
    "Elastic",
    "Embedding",
    "Expert",
    "Filter",
    "Gossip",
    "LocalSGD",
    "Offload",
    "ParameterServer",
    "Pipeline",
    "ScheduleName",
    "Spatial",
    "Strategy",
    "Tensor",
    "Zero",
    "parse",
]


ScheduleName = Literal[
    "gpipe", "1f1b", "interleaved", "zero-bubble", "stashing", "local"
]


@dataclass(frozen=True)
class Strategy:
    """A product of axes, outermost first. Data(1) is one rank alone."""

    axes: tuple[Axis, ...] = ()

    def __mul__(self, other: Axis | Strategy) -> Strategy:
        return Strategy(self.axes + Strategy.of(other).axes)

    def __str__(self) -> str:
        return " * ".join(map(str, self.axes)) or "Data(1)"

    @staticmethod
    def of(other: Axis | Strategy) -> Strategy:
        """An axis alone is a strategy too."""
        return other if isinstance(other, Strategy) else Strategy((other,))

    @property
    def ranks(self) -> int:
        """Ranks of the whole mesh."""
        return math.prod(axis.ranks for axis in self.axes)

    def find(self, *kinds: type[A]) -> A | None:
        """The axis of one of these kinds, if there is one."""
        return next((a for a in self.axes if isinstance(a, kinds)), None)

    def length(self, *kinds: type[Axis]) -> int:
        """Ranks along the axes of these kinds."""
        return math.prod(a.ranks for a in self.axes if isinstance(a, kinds))

    def places(self, *kinds: type[Axis]) -> list[tuple[int, int]]:
        """(stride, length) of the axes of these kinds."""
        stride, found = 1, []
        for axis in reversed(self.axes):
            if isinstance(axis, kinds) and axis.ranks > 1:
                found.append((stride, axis.ranks))
            stride *= axis.ranks
        return found


class Axis:
    """One factor of a strategy; each kind is a frozen dataclass."""

    ranks: int

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise OracleError(f"{self}: expected 1 rank or more")
        for name, allowed in _words(type(self).__qualname__, type(self)).items():
            value = getattr(self, name)
            if value not in allowed:
                near = nearest(str(value), [str(a) for a in allowed])
                raise OracleError(f"{self}: {name} {value!r}: expected {near}")

    def __mul__(self, other: Axis | Strategy) -> Strategy:
        return Strategy((self,)) * other

    def __str__(self) -> str:
        shown: list[str] = []
        for f in _fields(self):
            value = getattr(self, f.name)
            if f.name == "ranks" or (f.name == "stage" and f.init):
                shown += [str(value)] if f.init else []
            elif value != f.default:
                shown.append(f"{f.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


A = TypeVar("A", bound=Axis)


def _words(name: str, kind: type[Axis]) -> dict[str, tuple[Any, ...]]:
    """The fields that have one of a few values, and those; read once."""
    if name not in _KNOWN:
        hints = get_type_hints(kind).items()
        _KNOWN[name] = {n: get_args(h) for n, h in hints if get_origin(h) is Literal}
    return _KNOWN[name]


_KNOWN: dict[str, dict[str, tuple[Any, ...]]] = {}


def _fields(axis: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(axis)


@dataclass(frozen=True)
class Setting(Axis):
    """A factor that concerns every rank and adds none."""

    ranks: int = field(default=1, init=False)


@dataclass(frozen=True)
class Data(Axis):
    """Replicas that average gradients once a step."""

    ranks: int = 1


@dataclass(frozen=True)
class Zero(Axis):
    """Replicas that share one copy of the state; `within`: copies of so many ranks."""

    stage: Literal[1, 2, 3] = 1
    ranks: int = 1
    within: int | None = None  # None: one copy in all; hybrid sharding otherwise

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.within is not None and (self.within < 1 or self.ranks % self.within):
            raise OracleError(f"{self}: expected a within that divides {self.ranks}")

    @property
    def shard(self) -> int:
        """Ranks that share one copy."""
        return self.within or self.ranks


@dataclass(frozen=True)
class Tensor(Axis):
    """A column cut and a row cut of each pair of matrices."""

    ranks: int = 1
    sequence_parallel: bool = False


@dataclass(frozen=True)
class Filter(Axis):
    """Each rank computes some output channels."""

    ranks: int = 1


@dataclass(frozen=True)
class Channel(Axis):
    """Each rank reads some input channels."""

    ranks: int = 1


@dataclass(frozen=True)
class Spatial(Axis):
    """Each rank has some rows of every sample."""

    ranks: int = 1


@dataclass(frozen=True)
class Pipeline(Axis):
    """Each rank has some layers; `local`: and a loss of its own, none goes back."""

    ranks: int = 1
    schedule: ScheduleName = "1f1b"
    chunks: int = 1  # stages of a rank, for interleaved

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.chunks > 1) != (self.schedule == "interleaved") or self.chunks < 1:
            raise OracleError(f"{self}: interleaved, and it alone, has chunks above 1")


@dataclass(frozen=True)
class Context(Axis):
    """Each rank has some tokens of every sequence."""

    ranks: int = 1
    method: Literal["ring", "ulysses"] = "ring"


@dataclass(frozen=True)
class Expert(Axis):
    """Each rank has some experts, and samples of its own."""

    ranks: int = 1
    capacity: float = 1.0  # seats of an expert over its fair share


@dataclass(frozen=True)
class Embedding(Axis):
    """Each rank has some tables, and samples of its own."""

    ranks: int = 1


@dataclass(frozen=True)
class LocalSGD(Axis):
    """Replicas that average weights every so many steps."""

    ranks: int = 1
    every: int = 8


@dataclass(frozen=True)
class DiLoCo(Axis):
    """Local SGD with an outer optimizer: a copy of the weights, and momentum."""

    ranks: int = 1
    every: int = 500


@dataclass(frozen=True)
class Elastic(Axis):
    """Workers that a spring pulls toward a center every so many steps, and it back."""

    ranks: int = 1
    every: int = 8
    mode: Literal["sync", "async"] = "sync"  # async: one rank more is the center


@dataclass(frozen=True)
class ParameterServer(Axis):
    """Workers that push gradients to servers and pull weights."""

    ranks: int = 1
    servers: int = 1
    mode: Literal["sync", "bounded", "async"] = "sync"
    staleness: int = 0  # clocks, for bounded


@dataclass(frozen=True)
class Gossip(Axis):
    """Replicas that average weights with some neighbors."""

    ranks: int = 1
    degree: int = 2


@dataclass(frozen=True)
class Compress(Setting):
    """Gradients are compressed before replicas exchange them; by `factors` exactly."""

    kind: Literal["top-k", "qsgd", "one-bit", "powersgd", "factors"] = "top-k"
    ratio: float = 0.01  # of entries kept, for top-k
    rank: int = 4  # for powersgd
    bucket: int = 512  # entries that share a norm, for qsgd


@dataclass(frozen=True)
class Checkpoint(Setting):
    """Activations are computed again in backward; overrides Train.recompute."""

    what: Literal["selective", "full"] = "full"


@dataclass(frozen=True)
class Offload(Setting):
    """State lives in the host's memory; of `layers`, all but that of one at a time."""

    what: Literal["optimizer", "parameters", "layers"] = "optimizer"


REPLICAS: tuple[type[Axis], ...] = (
    Data,
    Zero,
    LocalSGD,
    DiLoCo,
    Elastic,
    ParameterServer,
    Gossip,
)
AXES: dict[str, type[Axis]] = {
    kind.__name__: kind
    for kind in (
        *REPLICAS,
        *(Tensor, Filter, Channel, Spatial, Pipeline, Context, Expert, Embedding),
        *(Compress, Checkpoint, Offload),
    )
}


#: What frameworks call an axis: its kind, and the fields that the word settles.
SPOKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "ddp": ("Data", {}),
    "dp": ("Data", {}),
    "fsdp": ("Zero", {"stage": 3}),
    "hsdp": ("Zero", {"stage": 3}),
    "zero1": ("Zero", {"stage": 1}),
    "zero2": ("Zero", {"stage": 2}),
    "zero3": ("Zero", {"stage": 3}),
    "tp": ("Tensor", {}),
    "pp": ("Pipeline", {}),
    "cp": ("Context", {}),
    "ep": ("Expert", {}),
}


def parse(text: str) -> Strategy:
    """The strategy that a text like "Data(2) * Tensor(8)", or "DP(2) * TP(8)", says."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise OracleError(
            f'"{text[:60]}": expected axes like "Data(2) * Tensor(8)"'
        ) from None
    return _product(tree, text)


def _product(node: ast.expr, text: str) -> Strategy:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _product(node.left, text) * _product(node.right, text)
    match node:
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            return Strategy((_axis(name, args, keywords),))
    raise OracleError(f'"{text[:60]}": expected axes like "Data(2) * Tensor(8)"')


def _axis(name: str, args: list[ast.expr], keywords: list[ast.keyword]) -> Axis:
    plain: dict[str, tuple[str, dict[str, Any]]]
    plain = {word.lower(): (word, {}) for word in AXES}
    known = plain | SPOKEN
    if name.lower() not in known:
        words = [*AXES, *(word.upper() for word in SPOKEN)]
        raise OracleError(f'unknown axis "{name}": expected {nearest(name, words)}')
    word, settled = known[name.lower()]
    kind = AXES[word]
    fields = {f.name: f for f in _fields(kind) if f.init and f.name not in settled}
    if len(args) > len(fields):
        raise OracleError(f"{name}: {len(args)} values: expected {', '.join(fields)}")
    given: dict[str, Any] = {}
    try:
        given |= {n: ast.literal_eval(a) for n, a in zip(fields, args, strict=False)}
        given |= {k.arg or "": ast.literal_eval(k.value) for k in keywords}
    except ValueError:
        raise OracleError(f"{name}: expected numbers, words, True or False") from None
    for key, value in given.items():
        if key not in fields:
            raise OracleError(f"{name}: unknown {key}: expected {nearest(key, fields)}")
        default = fields[key].default
        if default is not None and not isinstance(value, type(default) | int):
            raise OracleError(f"{name}: {key} = {value!r}: expected like {default!r}")
    return kind(**settled, **given)
