"""Filter parallelism: every rank computes some of a layer's output channels.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.intra_layer.filter

Source: Kahira et al. 2021 (ParaDL).

A convolution has one filter for each output channel, and the filters do not
need each other: cut them into p parts, and each rank makes its channels.

    forward    y = [w1 * x, w2 * x, ..]       all-gather of y
    backward   dx = w1' dy1 + w2' dy2 + ..    all-reduce of dx
               dw1 from x and dy1             nothing: dw1 is complete

The next layer reads all channels, hence the all-gather. Backward it is the
other way round: every filter has read x, so the parts of dx are summed. The
weights never travel, and neither do their gradients; activations do, in every
layer. Where weights are small and maps large, that is the wrong trade.

The norms see whole maps, and every rank computes them alike. No layer can be
cut finer than one filter a rank: p is at most the narrowest layer's F.
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import NARROW, SAMPLES, Pass, cnns, convs, passes

BATCH = 2


def parts(filters: int, p: int) -> list[int]:
    """Filters of each rank; all layers are cut alike, in NARROW bundles."""
    bundles = torch.arange(NARROW).tensor_split(p)
    return [len(b) * filters // NARROW for b in bundles]


def mine(t: Tensor, w: World) -> Tensor:
    """Of a weight, a bias or their gradient: what this rank's filters have."""
    return t.split(parts(len(t), w.size))[w.rank].contiguous()


class Enter(torch.autograd.Function):
    """Every rank reads all of x: a copy forward, a sum backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> Tensor:
        with span("backward", cost=2):  # autograd has just done the work
            dx = dx.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(dx)
        return dx


class Leave(torch.autograd.Function):
    """Every rank made some channels: all of them forward, its own backward."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, filters: int) -> Tensor:
        p = dist.get_world_size()
        ctx.sizes = sizes = parts(filters, p)
        #: Channels first, and as many as the largest part has: the parts of
        #: an all-gather must be equal.
        padded = y.new_zeros(max(sizes), len(y), *y.shape[2:])
        padded[: y.shape[1]] = y.transpose(0, 1)
        every = padded.new_empty(p * len(padded), *padded.shape[1:])
        dist.all_gather_single(every, padded)
        kept = [part[:n] for part, n in zip(every.chunk(p), sizes)]
        return torch.cat(kept).transpose(0, 1).contiguous()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return dy.split(ctx.sizes, dim=1)[dist.get_rank()].contiguous(), None


class Filter(nn.Module):
    """A convolution of which this rank holds some filters."""

    def __init__(self, whole: nn.Module, w: World) -> None:
        super().__init__()
        assert isinstance(whole, nn.Conv2d | nn.Conv3d)
        self.part, self.filters = whole, whole.out_channels
        for name, t in list(whole.named_parameters()):
            setattr(whole, name, nn.Parameter(mine(t.data, w)))

    def forward(self, x: Tensor) -> Tensor:
        with span("convolve", cost=1):
            y = self.part(Enter.apply(x))
        return Leave.apply(y, self.filters)


def sizes() -> dict[str, int]:
    """Elements of all maps x and y, of n weights that are cut, z that not."""
    every = convs()
    x = BATCH * sum(s.x.numel() for s in every)
    y = BATCH * sum(s.y.numel() for s in every)
    n = sum(t.numel() for s in every for t in s.conv.parameters())
    z = sum(t.numel() for net in cnns("meta") for t in net.parameters()) - n
    return dict(l=len(every), c=NARROW, x=x, y=y, n=n, z=z, b=8)


def reference(w: World, samples: list[Tensor]) -> Pass:
    """The whole networks on one process; of their filters, this rank's."""
    found = passes(cnns(w.device), samples)
    return found._replace(dw=[mine(t, w) for t in found.dw])


def main(w: World) -> None:
    most = f"{w.size} ranks for {NARROW} filters: use at most {NARROW}"
    w.require(w.size <= NARROW, most)
    nets = cnns(w.device, conv=lambda c: Filter(c, w))
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
