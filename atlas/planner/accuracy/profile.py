"""What a network's units cost on this machine, timed at other sizes than are judged.

ParaDL times every layer on one device and adds up. So does this, with four cares.
Units are timed where they stand, in passes through the whole network, for what went
before leaves the caches as it does in training. All ranks time at once, for they
share the memory too; and one time alone, for a pipeline has ranks that wait. Medians
of units do not add up to the median of a pass, so the pass has the last word, and
units share it; ranks that wait for one another wait in every pass anew. And nothing
is timed at the batch that is judged, nor with half of its filters or channels, but
with a quarter: what lies between is a straight line.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import fmean, median
from typing import Any, Literal

import torch
from torch import Tensor, nn

from atlas.planner.accuracy.networks import Network, Parts, build
from atlas.planner.accuracy.programs import Flat, rows_of
from atlas.planner.calibrate.timing import slowest, stamps, timed
from atlas.planner.model import Layer, Model
from exemplars.runtime import World

__all__ = [
    "PEAK",
    "Costs",
    "Gauge",
    "Kind",
    "Pace",
    "costs",
    "in_step",
    "last",
    "mean",
    "paced",
    "profiled",
    "units",
]

QUARTER = 4
BLOCK = 2**24  # parameters of an update that is timed
STEPPED = 12  # bytes that plain SGD in 32 bits reads and writes of a parameter
PEAK = 1e11  # operations a second in which a paced model is written

Seconds = dict[str, list[float]]
Both = tuple[float, float]  # seconds forward, and back
Turn = Sequence[Sequence[Both]]  # one pass: by rank, of every unit
Gauge = Callable[[Turn], float]
#: Whole samples; with the modules of those that cut them by rows, and no neighbor;
#: whole samples on one rank, and nobody else at work.
Kind = Literal["whole", "rows", "alone"]


def profiled(w: World, net: Network, kind: Kind) -> dict[Any, Any]:
    """On a rank: by batch, the seconds of units and of their products."""
    found: dict[Any, Any] = {}
    for size in net.calibrated:
        made = (build(net, alone(net)) if kind == "rows" else build(net)).to(w.device)
        x = torch.rand(size, *net.image, device=w.device)
        found[size] = {"units": Pass(made, x).timed(w, net)}
        if kind == "whole":
            found[size]["products"] = _products_of(w, net, made, x)
    found["update"] = timed(w, _update(w), net.repeats)
    return found


class Pass:
    """A batch through a network and back, one unit after the other."""

    def __init__(self, net: nn.Sequential, x: Tensor) -> None:
        Flat(net)  # gradients have their place, as in training
        self.units = list(net)
        self.entered = [x]
        self.left: list[Tensor] = []

    def forward(self, i: int) -> None:
        """Through the i-th unit, which knows nothing of the others."""
        del self.entered[i + 1 :], self.left[i:]
        y = self.units[i](self.entered[i])
        self.left.append(y)
        self.entered.append(y.detach().requires_grad_())

    def backward(self, i: int) -> None:
        """Back through it."""
        last = i + 1 == len(self.units)
        self.left[i].backward(
            torch.ones_like(self.left[i]) if last else self.entered[i + 1].grad
        )

    def timed(self, w: World, net: Network) -> list[list[Both]]:
        """In every repetition, the seconds of every unit."""
        n = len(self.units)
        there = [partial(self.forward, i) for i in range(n)]
        back = [partial(self.backward, i) for i in reversed(range(n))]
        turns = map(_laps, stamps(w, [*there, *back], net.repeats, net.warm_up))
        return [[(turn[i], turn[-1 - i]) for i in range(n)] for turn in turns]


def _laps(times: list[float]) -> list[float]:
    """Seconds between one stamp and the next."""
    return [b - a for a, b in pairwise(times)]


def _products_of(
    w: World, net: Network, made: nn.Sequential, x: Tensor
) -> list[Seconds]:
    """By unit; those alike are timed once."""
    alike: dict[str, Seconds] = {}
    found = []
    for i, unit in enumerate(made):
        x = x.detach().requires_grad_(i > 0)
        key = f"{unit} {x.shape} {x.requires_grad}"
        if key not in alike:
            alike[key] = _seen(w, net, unit, x)
        found.append(alike[key])
        with torch.no_grad():
            x = unit(x)
    return found


def _seen(w: World, net: Network, unit: nn.Module, x: Tensor) -> Seconds:
    """Of the unit's products, and of a quarter of each, in turn; alike ones once."""
    alike: dict[str, Seconds] = {}
    found: Seconds = {}
    for name, layer, entered in _layers(unit, x):
        like = f"{layer} {entered.shape} {entered.requires_grad}"
        if like not in alike:
            parts = {"whole": _both(layer, entered)}
            for part, cut, less in _quarters(layer, entered):
                parts[part] = _both(cut, less)
            works = list(parts.values())
            turns = map(_laps, stamps(w, works, net.repeats, net.warm_up))
            each = zip(*turns, strict=True)
            alike[like] = {k: list(t) for k, t in zip(parts, each, strict=True)}
        found |= {f"{name} {part}": seen for part, seen in alike[like].items()}
    return found


def _both(unit: nn.Module, x: Tensor) -> Callable[[], object]:
    """Forward and backward."""
    with torch.no_grad():
        dy = torch.ones_like(unit(x))

    def work() -> None:
        x.grad = None
        unit(x).backward(dy)

    return work


def _layers(unit: nn.Module, x: Tensor) -> list[tuple[str, Any, Tensor]]:
    found: list[tuple[str, Any, Tensor]] = []

    def see(layer: nn.Module, entered: tuple[Tensor], _: Tensor) -> None:
        grows = entered[0].requires_grad
        x = entered[0].detach().clone().requires_grad_(grows)
        found.append((str(len(found)), layer, x))

    kinds = nn.Conv2d | nn.Conv3d | nn.Linear
    layers = [m for m in unit.modules() if isinstance(m, kinds)]
    hooks = [m.register_forward_hook(see) for m in layers]
    unit(x)
    for hook in hooks:
        hook.remove()
    return found


def _quarters(layer: Any, x: Tensor) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """A quarter of the filters, and of the channels if there are enough."""
    bias = layer.bias is not None
    less = x.detach()[:, : x.shape[1] // QUARTER].contiguous()
    less = less.requires_grad_(x.requires_grad)
    if isinstance(layer, nn.Linear):
        c, f = layer.in_features, layer.out_features
        yield "filters", nn.Linear(c, f // QUARTER), x
        yield "channels", nn.Linear(c // QUARTER, f), less
        return
    rest = (layer.kernel_size, layer.stride, layer.padding)
    kind, c, f = type(layer), layer.in_channels, layer.out_channels
    yield "filters", kind(c, f // QUARTER, *rest, bias=bias), x
    if c >= 2 * QUARTER:
        yield "channels", kind(c // QUARTER, f, *rest, bias=bias), less


def alone(net: Network) -> Parts:
    """Modules for rows, on a rank that has all of them and no neighbor."""
    return rows_of(net.rows, 0, torch.clone, _nobody)


def _nobody(up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    return torch.zeros_like(down), torch.zeros_like(up)


def _update(w: World) -> Callable[[], object]:
    layer = nn.Linear(2**12, BLOCK // 2**12, bias=False).to(w.device)
    return Flat(layer).update


@dataclass(frozen=True)
class Pace:
    """Seconds of one unit: all of it, and how much of it each cut divides."""

    unit: float
    filters: float = 0.0  # of the products, what goes by the number of filters
    channels: float = 0.0


@dataclass(frozen=True)
class Costs:
    """By batch, every unit's pace; and of an update, the seconds of a parameter."""

    paces: Mapping[int, Sequence[Pace]]
    update: float

    @property
    def bandwidth(self) -> float:
        """Bytes a second at which an update goes through memory."""
        return STEPPED / self.update

    def slowed(self, factor: float) -> "Costs":
        """The same where everything takes so many times as long."""
        return self.mixed(self, 0.0, factor)

    def mixed(self, other: "Costs", share: float, factor: float = 1.0) -> "Costs":
        """Of every second, so large a share at the other's pace."""

        def both(p: Pace, q: Pace) -> Pace:
            pairs = zip(astuple(p), astuple(q), strict=True)
            return Pace(*(factor * ((1 - share) * x + share * y) for x, y in pairs))

        paces = {
            n: list(map(both, found, other.paces[n])) for n, found in self.paces.items()
        }
        return Costs(paces, factor * self.update)

    def at(self, batch: float) -> list[Pace]:
        """On the straight line through the two timed batches beside this one."""
        sizes = sorted(self.paces)
        below = max(0, sum(n < batch for n in sizes[:-1]) - 1)
        a, b = sizes[below], sizes[below + 1]
        t = (batch - a) / (b - a)

        def between(x: float, y: float) -> float:
            return max(0.0, x + t * (y - x))

        return [
            Pace(*map(between, astuple(p), astuple(q)))
            for p, q in zip(self.paces[a], self.paces[b], strict=True)
        ]


def mean(turn: Turn) -> float:
    """Seconds of a pass, of ranks that do not wait for one another."""
    return fmean(sum(map(sum, rank)) for rank in turn)


def last(turn: Turn) -> float:
    """Of ranks that meet when it is over, as replicas do: the longest pass."""
    return max(sum(map(sum, rank)) for rank in turn)


def in_step(turn: Turn) -> float:
    """Of ranks that meet in every unit, there and back: the slower one of each."""
    together = zip(*turn, strict=True)
    return sum(max(way) for unit in together for way in zip(*unit, strict=True))


def costs(ranks: Sequence[Any], gauge: Gauge) -> Costs:
    """What the ranks saw, as costs; passes are as long as the gauge finds them."""
    sizes = [size for size in ranks[0] if size != "update"]
    update = fmean(median(rank["update"]) for rank in ranks) / BLOCK
    return Costs({n: list(_paces([r[n] for r in ranks], gauge)) for n in sizes}, update)


def _paces(ranks: Sequence[Any], gauge: Gauge) -> Iterator[Pace]:
    turns = list(zip(*(rank["units"] for rank in ranks), strict=True))
    took = median(map(gauge, turns))
    each = [median(map(gauge, one)) for one in _by_unit(turns)]
    for i, unit in enumerate(each):
        seen = [rank["products"][i] for rank in ranks if "products" in rank]
        times = {
            key: slowest([s[key] for s in seen]) for key in (seen[0] if seen else ())
        }
        share = unit * took / sum(each)
        yield Pace(share, _divided(times, "filters"), _divided(times, "channels"))


def _by_unit(turns: Sequence[Turn]) -> Iterator[list[Turn]]:
    """The passes through each unit alone."""
    for i in range(len(turns[0][0])):
        yield [[[rank[i]] for rank in turn] for turn in turns]


def _divided(times: Mapping[str, float], part: str) -> float:
    """Seconds that three quarters less save, and so what a whole cut would divide."""
    pairs = [key.split() for key in times]
    saved = (
        times[f"{name} whole"] - times[f"{name} {part}"]
        for name, kind in pairs
        if kind == part
    )
    return sum(saved) * QUARTER / (QUARTER - 1)


def paced(net: Network, costs: Costs, batch: float, part: str) -> Model:
    """The network with operations and bytes in proportion to its seconds.

    `part` names what the cut divides, "unit" all of it: that becomes operations, the
    rest bytes that are moved. On a device of PEAK and of the costs' bandwidth the
    oracle then adds up the seconds of the profile; the layers of a unit share them
    by their own operations.
    """
    layers = []
    for pace, unit in zip(costs.at(batch), units(net.model), strict=True):
        total = sum(layer.work.flops for layer in unit)
        cut = getattr(pace, part) if total else 0.0
        rest = (pace.unit - cut) / len(unit)
        for layer in unit:
            share = layer.work.flops / total if total else 0.0
            work = layer.work._replace(
                flops=share * cut / batch * PEAK / 3,
                serial=0.0,
                unchannelled_flops=0.0,
                moved=rest / batch * costs.bandwidth / (3 * 4),  # type: ignore[arg-type]
            )
            layers.append(replace(layer, work=work))
    return replace(net.model, layers=tuple(layers))


def units(model: Model) -> Iterator[tuple[Layer, ...]]:
    """The layers of every unit: those glued together, and the one after them."""
    unit: list[Layer] = []
    for layer in model.layers:
        unit.append(layer)
        if not layer.glued:
            yield tuple(unit)
            unit = []
