"""The six networks of the study: one list of layers for the oracle and for torch.

Four small ones are those of exemplars.workload (a VGG, two ResNets, a CosmoFlow),
with larger images and a head; two are the presets themselves, at their own size.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod

import torch
from torch import Tensor, nn

from atlas.planner import presets
from atlas.planner.calibrate.timing import WARM_UP
from atlas.planner.model import Model
from atlas.planner.network import Item, network
from exemplars.workload import Residual, seeded

__all__ = ["NETWORKS", "Network", "Parts", "build"]

Replace = Callable[[nn.Module], nn.Module]


def same(layer: nn.Module) -> nn.Module:
    """The layer as it is."""
    return layer


@dataclass(frozen=True)
class Parts:
    """What takes a layer's place, by kind; every layer is made whole first."""

    conv: Replace = same
    norm: Replace = same
    linear: Replace = same
    pool: Replace = same
    mean: Replace = same  # the pool over the whole map
    flat: Callable[[], nn.Module] = nn.Flatten  # from maps to a vector


@dataclass(frozen=True)
class Network:
    """A network, the batch that is judged, and those that it is calibrated on."""

    name: str
    image: tuple[int, ...]
    items: tuple[Item, ...] = field(repr=False)
    rows: int  # of the smallest map: a spatial cut goes between them
    batch: int  # of a step
    micro: int  # of a pipeline's micro-batch
    calibrated: tuple[int, ...]  # batches that units are timed at: other ones
    repeats: int  # of whatever is timed, in a round
    warm_up: int = WARM_UP  # repetitions before those

    @property
    def model(self) -> Model:
        """As the oracle sees it."""
        return _model(self)


@cache
def _model(net: Network) -> Model:
    return network(net.name, net.image, net.items)


HEAD = (Item(pool="all"), Item(linear=16, relu=False))
PLAIN = (
    Item(conv=8),
    Item(conv=8, stride=2),
    Item(conv=16),
    Item(conv=16, stride=2),
    *HEAD,
)


def _resnet(*blocks: int) -> tuple[Item, ...]:
    widths = ((8, 1), (16, 2), (24, 2))
    pairs = zip(blocks, widths, strict=True)
    body = [Item(basic=f, stride=s, repeat=n) for n, (f, s) in pairs]
    return (Item(conv=8, norm=True, bias=False), *body, *HEAD)


SMALL, SIZES = (3, 72, 72), (6, 12, 24, 48)
FLAT, CUBE = (3, 224, 224), (4, 36, 36, 36)
NETWORKS = {
    net.name: net
    for net in (
        Network("small-vgg", SMALL, PLAIN, 18, 32, 8, SIZES, 11),
        Network("small-resnet", SMALL, _resnet(1, 1, 1), 18, 32, 8, SIZES, 11),
        Network("deeper-resnet", SMALL, _resnet(1, 2, 2), 18, 32, 8, SIZES, 11),
        Network("small-cosmoflow", CUBE, PLAIN, 9, 16, 4, (3, 6, 12, 24), 11),
        # Seconds a step: what the first one leaves is warm.
        Network("vgg-16", FLAT, presets.items("vgg-16"), 7, 4, 2, (1, 3), 2, 1),
        Network(
            "resnet-50", FLAT, presets.items("resnet-50"), 7, 8, 2, (1, 3, 6), 2, 1
        ),
    )
}


WHOLE = Parts()


def build(net: Network, parts: Parts = WHOLE) -> nn.Sequential:
    """The network in torch: a unit for each line of its list, repetitions apart.

    The same weights on every call. The last layer is never replaced: the oracle
    leaves it whole too.
    """

    def made() -> nn.Sequential:
        return nn.Sequential(*_units(net, parts))

    return seeded(made)().float()


def _units(net: Network, parts: Parts) -> Iterator[nn.Module]:
    shape: Sequence[int] = net.image
    for number, item in enumerate(net.items):
        last = number == len(net.items) - 1
        for i in range(item.repeat):
            kept = replace(parts, linear=same) if last else parts
            unit = _unit(item, tuple(shape), i == 0, kept)
            with torch.no_grad():
                shape = _shape(_unit(item, tuple(shape), i == 0, Parts()), shape)
            yield unit


def _shape(unit: nn.Module, shape: Sequence[int]) -> Sequence[int]:
    """Of what a unit makes of a sample; two, since a norm wants more than one."""
    return tuple(unit.to("meta")(torch.empty(2, *shape, device="meta")).shape[1:])


def _unit(item: Item, shape: Sequence[int], first: bool, parts: Parts) -> nn.Module:
    c, sides = shape[0], len(shape) - 1
    if item.linear is not None:
        whole = parts.linear(nn.Linear(prod(shape), item.linear))
        relu = [nn.ReLU()] if item.relu else []
        flat = [] if len(shape) == 1 else [_flat(shape, parts)]
        return nn.Sequential(*flat, whole, *relu)
    if item.pool is not None:
        return _pool(item, sides, parts)
    stride = item.stride if first else 1
    if item.basic is not None:
        return Residual(c, item.basic, stride, parts.conv, parts.norm)
    if item.bottleneck is not None:
        return Bottleneck(c, item.bottleneck, stride, parts)
    assert item.conv is not None
    return _conv(item, c, sides, parts)


def _flat(shape: Sequence[int], parts: Parts) -> nn.Module:
    return nn.Flatten() if prod(shape[1:]) == 1 else parts.flat()


def _pool(item: Item, sides: int, parts: Parts) -> nn.Module:
    if item.pool == "all":
        mean = (nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)[sides - 2]
        return parts.mean(mean(1))
    kind = (nn.MaxPool2d, nn.MaxPool3d)[sides - 2]
    return parts.pool(kind(item.kernel, item.stride, item.padding or 0))


def _conv(item: Item, c: int, sides: int, parts: Parts) -> nn.Module:
    kind = (nn.Conv2d, nn.Conv3d)[sides - 2]
    assert item.conv is not None
    made: list[nn.Module] = [
        parts.conv(
            kind(
                c, item.conv, item.kernel, item.stride, item.kernel // 2, bias=item.bias
            )
        )
    ]
    if item.norm:
        whole = nn.BatchNorm2d(item.conv, track_running_stats=False)
        made.append(parts.norm(whole))
    return nn.Sequential(*made, *([nn.ReLU()] if item.relu else []))


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 with the stride, 1 x 1 to four times as many, and a shortcut."""

    def __init__(self, c: int, f: int, stride: int, parts: Parts) -> None:
        super().__init__()
        plain = Item(norm=True, bias=False, kernel=1)
        middle = replace(plain, conv=f, kernel=3, stride=stride)
        self.body = nn.Sequential(
            _conv(replace(plain, conv=f), c, 2, parts),
            _conv(middle, f, 2, parts),
            _conv(replace(plain, conv=4 * f, relu=False), f, 2, parts),
        )
        self.short: nn.Module = nn.Identity()
        if (c, stride) != (4 * f, 1):
            way = replace(plain, conv=4 * f, stride=stride, relu=False)
            self.short = _conv(way, c, 2, parts)
        self.end = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """(batch, c, rows, columns) to (batch, 4 f, fewer, fewer)."""
        made: Tensor = self.end(self.body(x) + self.short(x))
        return made
