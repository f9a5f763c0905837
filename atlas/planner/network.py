"""A convolutional network as layers, from the list that its paper prints.

Convolutions, and linear layers but the last, can be cut by filters and channels;
the first convolution by filters alone, since it has few channels. A linear layer
that follows maps is computed whole by every rank of a spatial axis; that little
repetition is not counted.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from atlas.planner.errors import OracleError
from atlas.planner.model import Layer, Model
from atlas.planner.records import Work

__all__ = ["Item", "convolution", "network", "unchannelled"]

Shape = tuple[int, ...]  # channels, then rows, columns, ...


@dataclass(frozen=True)
class Item:
    """One line of a network's list: one of conv, pool, basic, bottleneck and linear."""

    conv: int | None = None  # filters
    pool: Literal["max", "average", "all"] | None = None  # all: over the whole map
    basic: int | None = None  # filters of a residual block of two 3 x 3
    bottleneck: int | None = None  # filters of its 3 x 3; it makes four times as many
    linear: int | None = None  # outputs
    kernel: int = 3
    stride: int = 1
    padding: int | None = None  # None: half the kernel
    norm: bool = False
    relu: bool = True
    bias: bool = True
    ceil: bool = False  # round the size of what a pool makes up
    repeat: int = 1


def network(
    name: str,
    image: Sequence[int],
    items: Sequence[Item],
    *,
    epoch: int | None = None,
    sources: Mapping[str, str] | None = None,
) -> Model:
    """The network for samples of this shape: channels, rows, columns, ..."""
    layers = list(_layers(tuple(image), items))
    layers = [replace(a, name=f"{i}: {a.name}") for i, a in enumerate(layers)]
    return Model(
        name, "cnn", tuple(_finished(layers)), epoch=epoch, sources=sources or {}
    )


def _finished(layers: list[Layer]) -> Iterator[Layer]:
    """The first convolution without channels to cut, the last layer without any cut."""
    first = next((i for i, a in enumerate(layers) if a.filters), None)
    for i, layer in enumerate(layers):
        w = layer.work
        if i == len(layers) - 1 and layer.filters:
            w = w._replace(
                shared=w.shared + w.weights,
                weights=0,
                serial=w.flops,
                flops=0.0,
                convolutions=0,
                channelled=0,
                x=0,
                y=0,
                channel_x=0,
                channel_y=0,
                unchannelled=0,
            )
            yield replace(layer, work=w, filters=0, channels=0)
        elif i == first:
            yield unchannelled(layer)
        else:
            yield layer


def unchannelled(layer: Layer) -> Layer:
    """The layer, with too few channels to be cut by them."""
    work = layer.work._replace(
        channelled=0,
        channel_x=0,
        channel_y=0,
        unchannelled=layer.work.weights,
        unchannelled_flops=layer.work.flops,
    )
    return replace(layer, work=work, channels=0)


def _layers(shape: Shape, items: Sequence[Item]) -> Iterator[Layer]:
    for item in items:
        for i in range(item.repeat):
            made = list(_made(shape, item, first=i == 0))
            shape = made[-1][1]
            yield from (layer for layer, _ in made)


def _made(shape: Shape, item: Item, first: bool) -> Iterator[tuple[Layer, Shape]]:
    """The layers of one line, each with the shape that it leaves."""
    if item.conv is not None:
        yield convolution(shape, item, item.conv)
    elif item.basic is not None:
        yield from _residual(shape, item, item.basic, first, kernels=(3, 3))
    elif item.bottleneck is not None:
        yield from _residual(shape, item, item.bottleneck, first, kernels=(1, 3, 1))
    elif item.linear is not None:
        yield convolution((math.prod(shape), 1), replace(item, kernel=1), item.linear)
    elif item.pool is not None:
        yield _pool(shape, item)
    else:
        raise OracleError("a layer without conv, pool, basic, bottleneck or linear")


def _size(n: int, item: Item, kernel: int) -> int:
    """How long a side is after a window has moved over it."""
    padding = kernel // 2 if item.padding is None else item.padding
    over = n + 2 * padding - kernel
    if over < 0:
        raise OracleError(f"a window of {kernel} on {n}: expected a larger image")
    return (-(-over // item.stride) if item.ceil else over // item.stride) + 1


def _parts(before: int, after: int, over: int) -> int:
    """Ranks at most that rows are cut for: each has one, and all its neighbor needs.

    Of the rows that windows share, half are above a border and half below.
    """
    return min(after, before // max(1, -(-over // 2)))


def convolution(shape: Shape, item: Item, filters: int) -> tuple[Layer, Shape]:
    """A convolution, with its norm and activation, and the shape that it leaves."""
    c, *sides = shape
    after = [_size(n, item, item.kernel) for n in sides]
    taps = item.kernel ** len(sides)
    x, y = math.prod(shape), filters * math.prod(after)
    weights, bias = c * filters * taps, filters * item.bias
    flops = 2.0 * c * taps * y
    over = max(0, item.kernel - item.stride)  # rows that two windows share
    halo = over * x // sides[0]
    work = Work(
        layers=1,
        weights=weights + bias,
        shared=2 * filters * item.norm,
        largest=weights + bias,
        kernels=1,
        flops=flops,
        moved=(3 * item.norm + 2 * item.relu) * y,
        kept=x + y * item.norm,
        working=x + y,
        inputs=x,
        passed=y,
        convolutions=1,
        narrow=filters,
        x=x,
        y=y,
        channelled=1,
        thin=c,
        channel_x=x,
        channel_y=y,
        unchannelled=bias,
        halos=min(2, over),
        halo=halo,
        norms=int(item.norm),
        normed=filters * item.norm,
    )
    linear = sides == [1] and item.linear is not None
    layer = Layer(
        "linear" if linear else "convolution",
        work,
        filters=filters,
        channels=c,
        rows=0 if linear else _parts(sides[0], after[0], over),
        matrix=(filters, c * taps),
        height=0 if linear else after[0],
    )
    return layer, (filters, *after)


def _pool(shape: Shape, item: Item) -> tuple[Layer, Shape]:
    c, *sides = shape
    pads = replace(item, padding=item.padding or 0)
    after = [1 if item.pool == "all" else _size(n, pads, item.kernel) for n in sides]
    x, y = math.prod(shape), c * math.prod(after)
    over = 0 if item.pool == "all" else max(0, item.kernel - item.stride)
    work = Work(
        layers=1,
        moved=x + y,
        kept=x,
        working=x + y,
        inputs=x,
        passed=y,
        halos=min(2, over),
        halo=over * x // sides[0],
    )
    height = 0 if item.pool == "all" else after[0]
    rows = _parts(sides[0], height, over)
    layer = Layer(f"{item.pool} pool", work, rows=rows, glued=False, height=height)
    return layer, (c, *after)


def _residual(
    shape: Shape, item: Item, filters: int, first: bool, kernels: tuple[int, ...]
) -> Iterator[tuple[Layer, Shape]]:
    """Convolutions, and a shortcut that is added; no pipeline cuts between them.

    Two of 3 x 3, the first with the stride; or 1 x 1, 3 x 3 with the stride, and a
    1 x 1 that makes four times as many maps.
    """
    plain = Item(norm=True, bias=False, kernel=1)
    stride = item.stride if first else 1
    made = filters * (4 if len(kernels) == 3 else 1)
    between = shape
    for i, kernel in enumerate(kernels[:-1]):
        moves = stride if kernel == 3 and 3 not in kernels[:i] else 1
        way = replace(plain, kernel=kernel, stride=moves)
        layer, between = convolution(between, way, filters)
        yield replace(layer, glued=True), between
    last, after = convolution(between, replace(plain, kernel=kernels[-1]), made)
    y = math.prod(after)
    work = last.work._replace(moved=last.work.moved + 3 * y)  # the sum
    if first and shape != after:
        way = replace(plain, stride=stride, relu=False)
        short, _ = convolution(shape, way, made)
        kept = short.work._replace(kept=y)  # what enters is kept by the first of all
        yield replace(short, work=kept, name="shortcut", glued=True), after
    yield replace(last, work=work), after
