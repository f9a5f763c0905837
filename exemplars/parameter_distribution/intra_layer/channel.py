"""Channel parallelism: every rank reads some of a layer's input channels.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.intra_layer.channel

Source: Kahira et al. 2021 (ParaDL).

A convolution sums over its input channels. Cut that sum into p parts: each
rank convolves its channels with its part of every filter.

    forward    y = w1 * x1 + w2 * x2 + ..     all-reduce of y
    backward   dx = [w1' dy, w2' dy, ..]      all-gather of dx
               dw1 from x1 and dy             nothing: dw1 is complete

It is filter parallelism in a mirror: what is gathered there is summed here,
and forward has become backward. An image has too few channels to cut, so every
rank computes the first layer whole, and the cut begins with the second.

A bias is added after the sum; inside, it would count p times. No layer can be
cut finer than one channel a rank: p is at most the narrowest layer's C.
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import NARROW, SAMPLES, Pass, cnns, convs, passes

BATCH = 2


def parts(channels: int) -> list[int]:
    """Channels of each rank; all layers are cut alike, in NARROW bundles."""
    bundles = torch.arange(NARROW).tensor_split(dist.get_world_size())
    return [len(b) * channels // NARROW for b in bundles]


def mine(t: Tensor) -> Tensor:
    """Of a map, a weight or its gradient: this rank's input channels."""
    if t.dim() == 1 or t.shape[1] < NARROW:  # a bias; a first layer's weight
        return t
    return t.split(parts(t.shape[1]), dim=1)[dist.get_rank()].contiguous()


class Enter(torch.autograd.Function):
    """Every rank reads some channels: its own forward, all backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.channels = x.shape[1]
        return mine(x)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> Tensor:
        sizes = parts(ctx.channels)
        #: Channels first, and as many as the largest part has: the parts of
        #: an all-gather must be equal.
        with span("backward", cost=2):  # autograd has just done the work
            padded = dx.new_zeros(max(sizes), len(dx), *dx.shape[2:])
            padded[: dx.shape[1]] = dx.transpose(0, 1)
        every = torch.cat([padded] * len(sizes))
        dist.all_gather_single(every, padded)
        kept = [part[:n] for part, n in zip(every.chunk(len(sizes)), sizes)]
        return torch.cat(kept).transpose(0, 1).contiguous()


class Leave(torch.autograd.Function):
    """Every rank has a term of y: a sum forward, a copy backward."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        y = y.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy


class Channel(nn.Module):
    """A convolution of which this rank holds some input channels."""

    def __init__(self, whole: nn.Conv2d | nn.Conv3d) -> None:
        super().__init__()
        self.weight = nn.Parameter(mine(whole.weight.data))
        self.bias, self.stride = whole.bias, whole.stride
        self.conv = F.conv2d if isinstance(whole, nn.Conv2d) else F.conv3d

    def forward(self, x: Tensor) -> Tensor:
        pad = self.weight.shape[-1] // 2
        with span("convolve", cost=1):
            y = self.conv(Enter.apply(x), self.weight, None, self.stride, pad)
        y = Leave.apply(y)
        shape = (-1, *[1] * (y.dim() - 2))
        return y if self.bias is None else y + self.bias.view(shape)


def cut(whole: nn.Module) -> nn.Module:
    """All but first layers: theirs are the pixels' channels, 3 or 4."""
    assert isinstance(whole, nn.Conv2d | nn.Conv3d)
    return whole if whole.in_channels < NARROW else Channel(whole)


def sizes() -> dict[str, int]:
    """Elements of all maps x and y, of n weights that are cut, z that not."""
    every = [s for s in convs() if s.x[0] >= NARROW]
    x = BATCH * sum(s.x.numel() for s in every)
    y = BATCH * sum(s.y.numel() for s in every)
    n = sum(s.conv.weight.numel() for s in every)
    z = sum(t.numel() for net in cnns("meta") for t in net.parameters()) - n
    return dict(l=len(every), c=NARROW, x=x, y=y, n=n, z=z, b=8)


def reference(w: World, samples: list[Tensor]) -> Pass:
    """The whole networks on one process; of their channels, this rank's."""
    found = passes(cnns(w.device), samples)
    return found._replace(dw=[mine(t) for t in found.dw])


def main(w: World) -> None:
    most = f"{w.size} ranks for {NARROW} channels: use at most {NARROW}"
    w.require(w.size <= NARROW, most)
    nets = cnns(w.device, conv=cut)
    samples = [w.randn(BATCH, *s, of_rank=0) for s in SAMPLES]
    learn = [p for net in nets for p in net.parameters()]
    memory = w.memory(
        parameters=lambda: learn, gradients=lambda: [p.grad for p in learn]
    )
    with memory, meter() as moved:
        found = passes(nets, samples)
    serial = None if w.dry else reference(w, samples)
    for claim, ours in found._asdict().items():
        # Sums in another order, through up to 13 layers and their norms.
        w.check(claim, ours, partial(getattr, serial, claim), slack=64)
    gather, add = moved.calls["all_gather"], moved.calls["all_reduce"]
    counts = dict(gathers=gather.count, gathered=gather.payload)
    counts |= dict(sums=add.count, summed=add.payload, ranks=w.size)
    report(w, given=sizes(), held=memory.live()["parameters"], **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
