"""Channel parallelism: every rank reads some of a layer's input channels.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.intra_layer.channel

A convolution sums over its input channels. Divide that sum into p parts: each
rank convolves its channels with its part of every filter.

    forward    y = w1 * x1 + w2 * x2 + ..     all-reduce of y
    backward   dx = [w1' dy, w2' dy, ..]      all-gather of dx
               dw1 from x1 and dy             nothing: dw1 is complete

It is filter parallelism in a mirror: what is gathered there is summed here,
and forward and backward trade places. An image has too few channels to cut,
so every rank computes the first layer whole; the cut begins with the second.

No layer can be cut finer than one channel per rank, so p is at most the number
of input channels of the narrowest cut layer.

Source: Kahira et al. 2021 (ParaDL).
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import (
    NARROW,
    Pass,
    cnn_parameters,
    cnns,
    convs,
    cut_sizes,
    images,
    passes,
)


def shares(channels: int) -> list[int]:
    """Channels of each rank; every layer is cut in the same proportion."""
    p = dist.get_world_size()
    if channels % NARROW or p > NARROW:
        raise ValueError(
            f"{channels} channels on {p} ranks: no {NARROW} parts"
        )
    #: Every layer has a multiple of the narrowest one's channels, so a rank
    #: gets the same fraction of each of them.
    bundles = torch.arange(NARROW).tensor_split(p)
    return [len(bundle) * channels // NARROW for bundle in bundles]


def own_channels(t: Tensor) -> Tensor:
    """Of a map or of a weight: this rank's input channels, a copy."""
    share = shares(t.shape[1])
    return t.split(share, dim=1)[dist.get_rank()].clone()


class Enter(torch.autograd.Function):
    """Into the cut layer: this rank's channels forward, all backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.channels = x.shape[1]
        return own_channels(x).contiguous()

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> Tensor:
        share, p = shares(ctx.channels), dist.get_world_size()
        #: Channels first, so that parts lie one behind the other; padded to
        #: the largest share, because all-gather wants equal parts.
        padded = dx.new_zeros(max(share), len(dx), *dx.shape[2:])
        padded[: dx.shape[1]] = dx.transpose(0, 1)
        every = padded.new_empty(p * len(padded), *padded.shape[1:])
        #: The layer below is whole, and needs the gradient of all channels.
        dist.all_gather_single(every, padded)
        pairs = zip(every.chunk(p), share)
        channels = torch.cat([part[:own] for part, own in pairs])
        return channels.transpose(0, 1).contiguous()


class Leave(torch.autograd.Function):
    """Out of the cut layer: a sum forward, a copy backward."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        y = y.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        #: No sum: every rank has computed the whole dy.
        return dy


class Channel(nn.Module):
    """A convolution of which this rank holds some input channels."""

    def __init__(self, whole: nn.Conv2d | nn.Conv3d) -> None:
        super().__init__()
        if whole.groups != 1 or whole.padding_mode != "zeros":
            raise ValueError(f"{whole}: only plain convolutions can be cut")
        #: dw is complete here, from this rank's channels of x and all of dy.
        own = own_channels(whole.weight.data)
        self.weight = nn.Parameter(own, whole.weight.requires_grad)
        self.bias = whole.bias
        self.options: Any = whole.stride, whole.padding, whole.dilation
        self.convolve = F.conv2d if own.dim() == 4 else F.conv3d

    def forward(self, x: Tensor) -> Tensor:
        x = Enter.apply(x)
        with span("convolve", cost=1):
            part = self.convolve(x, self.weight, None, *self.options)
        y = Leave.apply(part)
        if self.bias is None:
            return y
        #: After the sum: inside, the bias would count p times.
        return y + self.bias.view(-1, *[1] * (y.dim() - 2))


def cut(whole: nn.Module) -> nn.Module:
    """All layers but the first, which reads an image of 3 or 4 channels."""
    assert isinstance(whole, nn.Conv2d | nn.Conv3d)
    return whole if whole.in_channels < NARROW else Channel(whole)


def reference(w: World, samples: list[Tensor]) -> Pass:
    """The whole networks on one process; of their channels, this rank's."""
    found = passes(cnns(w.device), samples)

    def own(t: Tensor) -> Tensor:
        if t.dim() == 1 or t.shape[1] < NARROW:  # a bias, or a first layer
            return t
        bundles = t.unflatten(1, (NARROW, -1))
        return bundles.tensor_split(w.size, 1)[w.rank].flatten(1, 2)

    return found._replace(dw=[own(t) for t in found.dw])


def main(w: World, *, batch: int = 2) -> None:
    most = f"{w.size} ranks for {NARROW} channels: use at most {NARROW}"
    w.require(w.size <= NARROW, most)
    #: Cut as it will be used: to convert a part later would copy it anyway.
    nets = cnns(w.device, conv=lambda whole: cut(whole.double()))
    samples = images(w, batch)
    learned = [t for net in nets for t in net.parameters()]
    memory = w.memory(
        parameters=lambda: learned, gradients=lambda: [t.grad for t in learned]
    )
    with memory, meter() as moved:
        found = passes(nets, samples)
    serial = None if w.dry else reference(w, samples)
    for claim, value in found._asdict().items():
        # Sums in another order, through up to 13 layers and their norms.
        w.check(claim, value, partial(getattr, serial, claim), slack=64)
    gather, add = moved.calls["all_gather"], moved.calls["all_reduce"]
    layers = [layer for layer in convs() if layer.x[0] >= NARROW]
    weights = sum(layer.conv.weight.numel() for layer in layers)
    rest = cnn_parameters() - weights
    given = {"cut_weights": weights, "whole_weights": rest, "itemsize": 8}
    report(
        w,
        given={**cut_sizes(layers), **given, "layers": len(layers)},
        gathers=gather.count,
        gathered=gather.payload,
        sums=add.count,
        summed=add.payload,
        held=memory.live()["parameters"],
    )


if __name__ == "__main__":
    with world() as w:
        main(w)
