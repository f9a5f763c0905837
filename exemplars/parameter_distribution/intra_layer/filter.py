"""Filter parallelism: every rank computes some of a layer's output channels.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.intra_layer.filter

A convolution has one filter for each output channel, and filters do not need
one another. Divide them among p ranks, and each rank computes its channels:

    forward    y = [w1 * x, w2 * x, ..]       all-gather of y
    backward   dx = w1' dy1 + w2' dy2 + ..    all-reduce of dx
               dw1 from x and dy1             nothing: dw1 is complete

The next layer reads all channels, hence the all-gather. Backward mirrors it:
every filter has read x, so the parts of dx are summed. Weights never travel,
nor do their gradients; activations do, in every layer. Where weights are small
and feature maps large, that is the wrong trade.

No layer can be cut finer than one filter per rank, so p is at most the number
of filters of the narrowest layer. Norms see whole maps, so each rank repeats
them.

Source: Kahira et al. 2021 (ParaDL).
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

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

Group = dist.ProcessGroup | None  # None: all ranks


def shares(filters: int, p: int) -> list[int]:
    """Filters of each rank; every layer is cut in the same proportion."""
    if filters % NARROW or p > NARROW:
        raise ValueError(f"{filters} filters on {p} ranks: no {NARROW} parts")
    #: The narrowest layer is cut first, and a wider one like it: so each rank
    #: has the same fraction of every layer.
    bundles = torch.arange(NARROW).tensor_split(p)
    return [len(bundle) * filters // NARROW for bundle in bundles]


class Enter(torch.autograd.Function):
    """Into the cut layer: a copy forward, a sum backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor, None]:
        #: A copy: autograd may still need the tensor it handed us.
        dx = dx.clone(memory_format=torch.contiguous_format)
        #: Each rank knows what its own filters make of x; the sum is dx.
        dist.all_reduce(dx, group=ctx.group)
        return dx, None


class Leave(torch.autograd.Function):
    """Out of the cut layer: all channels forward, this rank's own backward."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, filters: int, group: Group) -> Tensor:
        p = dist.get_world_size(group)
        ctx.group, ctx.shares = group, shares(filters, p)
        #: Channels first, so that parts lie one behind the other; padded to
        #: the largest share, because all-gather wants equal parts.
        padded = y.new_zeros(max(ctx.shares), len(y), *y.shape[2:])
        padded[: y.shape[1]] = y.transpose(0, 1)
        every = padded.new_empty(p * len(padded), *padded.shape[1:])
        dist.all_gather_single(every, padded, group=group)
        pairs = zip(every.chunk(p), ctx.shares)
        channels = torch.cat([part[:share] for part, share in pairs])
        return channels.transpose(0, 1).contiguous()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        #: No sum: every rank has computed the whole dy.
        own = dy.split(ctx.shares, dim=1)[dist.get_rank(ctx.group)]
        return own.contiguous(), None, None


class Filter(nn.Module):
    """A convolution or linear layer of which this rank holds some outputs."""

    def __init__(self, whole: nn.Module, group: Group = None) -> None:
        super().__init__()
        if not isinstance(whole, nn.Conv2d | nn.Conv3d | nn.Linear):
            raise ValueError(f"{whole}: not a convolution or a linear layer")
        if getattr(whole, "groups", 1) != 1:
            raise ValueError(f"{whole}: its filters do not read all channels")
        self.part, self.group, self.filters = whole, group, len(whole.weight)
        share = shares(self.filters, dist.get_world_size(group))
        for name, t in list(whole.named_parameters()):
            #: A copy: a view would keep the whole weight in memory.
            own = t.data.split(share)[dist.get_rank(group)].clone()
            setattr(whole, name, nn.Parameter(own, t.requires_grad))

    def forward(self, x: Tensor) -> Tensor:
        with span("convolve", cost=1):
            y = self.part(Enter.apply(x, self.group))
        return Leave.apply(y, self.filters, self.group)


def reference(w: World, samples: list[Tensor], part: int, parts: int) -> Pass:
    """The whole networks on one process; of their filters, one part."""
    found = passes(cnns(w.device), samples)

    def own(t: Tensor) -> Tensor:
        bundles = t.unflatten(0, (NARROW, -1))
        return bundles.tensor_split(parts)[part].flatten(0, 1)

    return found._replace(dw=[own(t) for t in found.dw])


def main(w: World, *, batch: int = 2) -> None:
    most = f"{w.size} ranks for {NARROW} filters: use at most {NARROW}"
    w.require(w.size <= NARROW, most)
    #: Cut as it will be used: to convert a part later would copy it anyway.
    nets = cnns(w.device, conv=lambda whole: Filter(whole.double()))
    samples = images(w, batch)
    learned = [t for net in nets for t in net.parameters()]
    memory = w.memory(
        parameters=lambda: learned, gradients=lambda: [t.grad for t in learned]
    )
    with memory, meter() as moved:
        found = passes(nets, samples)
    serial = None if w.dry else reference(w, samples, w.rank, w.size)
    for claim, value in found._asdict().items():
        # Sums in another order, through up to 13 layers and their norms.
        w.check(claim, value, partial(getattr, serial, claim), slack=64)
    gather, add = moved.calls["all_gather"], moved.calls["all_reduce"]
    cut = sum(t.numel() for c in convs() for t in c.conv.parameters())
    rest = cnn_parameters() - cut
    given = {"cut_weights": cut, "whole_weights": rest, "itemsize": 8}
    report(
        w,
        given={**cut_sizes(convs()), **given, "layers": len(convs())},
        gathers=gather.count,
        gathered=gather.payload,
        sums=add.count,
        summed=add.payload,
        held=memory.live()["parameters"],
    )


if __name__ == "__main__":
    with world() as w:
        main(w)
