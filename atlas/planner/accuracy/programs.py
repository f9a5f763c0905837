"""ParaDL's strategies as training steps on any network, by the exemplars' code.

Every program takes the same step of plain SGD. Its cuts are those of the exemplars
(their modules take the place of a network's layers); what they do not have is here:
a linear layer, a pool and a head for those that cut samples by rows.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from atlas.planner.accuracy.networks import Network, Parts, build
from exemplars.parameter_distribution.hybrid import data_filter
from exemplars.parameter_distribution.intra_layer import channel
from exemplars.parameter_distribution.intra_layer import filter as filters
from exemplars.parameter_distribution.within_sample import spatial
from exemplars.runtime import World
from exemplars.sync_strategy.pipeline_flush.gpipe import gpipe
from exemplars.workload import Norm

__all__ = ["PROGRAMS", "Flat", "Step", "program", "rows_of"]

Step = Callable[[], object]
Group = dist.ProcessGroup
RATE = 1e-6  # the values of training are not what is studied


class Flat:
    """Parameters whose gradients lie in one buffer, as they travel."""

    def __init__(self, net: nn.Module) -> None:
        self.weights: list[Tensor] = list(net.parameters())
        total = sum(p.numel() for p in self.weights)
        self.buffer = self.weights[0].new_zeros(total)
        parts = self.buffer.split([p.numel() for p in self.weights])
        for p, part in zip(self.weights, parts, strict=True):
            p.grad = part.view_as(p)

    def update(self) -> None:
        """Plain SGD; the gradients are zero again."""
        with torch.no_grad():
            slopes = [p.grad for p in self.weights if p.grad is not None]
            torch._foreach_add_(self.weights, slopes, alpha=-RATE)
        self.buffer.zero_()


def batch_of(w: World, net: Network) -> Tensor:
    """The batch, the same on every rank."""
    return w.randn(net.batch, *net.image, seed=0, dtype=torch.float32)


def loss_of(y: Tensor, samples: int) -> Tensor:
    """A sum over samples, divided by all there are: shares add up."""
    return y.square().sum() / samples


def _trained(
    net: nn.Module, x: Tensor, share: float, group: Group | None, agree: bool
) -> tuple[Flat, Step]:
    """Forward, backward, one exchange if replicas have to agree, one update."""
    flat = Flat(net)

    def step() -> None:
        loss_of(net(x), 1).mul(share).backward()
        if agree:
            dist.all_reduce(flat.buffer, group=group)
        flat.update()

    return flat, step


def data(w: World, net: Network) -> tuple[Flat, Step]:
    """Samples are cut; gradients are summed."""
    mine = batch_of(w, net).tensor_split(w.size)[w.rank].contiguous()
    return _trained(build(net).to(w.device), mine, 1 / net.batch, None, True)


def filter_(w: World, net: Network) -> tuple[Flat, Step]:
    """Filters are cut; maps are gathered."""
    parts = Parts(conv=filters.Filter, linear=filters.Filter)
    made = build(net, parts).to(w.device)
    return _trained(made, batch_of(w, net), 1 / net.batch, None, False)


def channel_(w: World, net: Network) -> tuple[Flat, Step]:
    """Channels are cut; maps are summed."""
    made = build(net, Parts(conv=channel.cut, linear=ChannelLinear)).to(w.device)
    return _trained(made, batch_of(w, net), 1 / net.batch, None, False)


def spatial_(w: World, net: Network) -> tuple[Flat, Step]:
    """Rows are cut; neighbors exchange those at the border."""
    parts = shared_rows(net, w.size, w.rank, None)
    made = build(net, parts).to(w.device)
    mine = spatial.own_rows(batch_of(w, net), w.rank, w.size, net.rows)
    return _trained(made, mine, 1 / (net.batch * w.size), None, True)


def data_filter_(w: World, net: Network) -> tuple[Flat, Step]:
    """Filters are cut in groups, samples between them."""
    inside, between = data_filter.grid(w, net.batch)
    parts = Parts(
        conv=lambda c: filters.Filter(c, inside),
        linear=lambda a: filters.Filter(a, inside),
    )
    mine = data_filter.own_samples(batch_of(w, net), between)
    made = build(net, parts).to(w.device)
    return _trained(made, mine, 1 / net.batch, between, True)


def data_spatial_(w: World, net: Network) -> tuple[Flat, Step]:
    """Rows are cut in groups, samples between them."""
    inside, between = data_filter.grid(w, net.batch)
    size, place = inside.size(), inside.rank()
    parts = shared_rows(net, size, place, inside)
    samples = data_filter.own_samples(batch_of(w, net), between)
    mine = spatial.own_rows(samples, place, size, net.rows)
    made = build(net, parts).to(w.device)
    return _trained(made, mine, 1 / (net.batch * size), None, True)


def pipeline(w: World, net: Network, cuts: tuple[int, ...]) -> tuple[Flat, Step]:
    """Layers are cut: the first stage has the units before cuts[0], and so on."""
    ends = [0, *cuts, len(build(net))]
    part = build(net)[ends[w.rank] : ends[w.rank + 1]].to(w.device)
    flat, micros = Flat(part), batch_of(w, net).split(net.micro)
    before = build(net)[: ends[w.rank]].to("meta")
    with torch.no_grad():
        entering = before(torch.empty_like(micros[0], device="meta")).shape
    return flat, partial(_piped, w, net, part, flat, list(micros), entering)


def _piped(
    w: World,
    net: Network,
    part: nn.Module,
    flat: Flat,
    micros: list[Tensor],
    entering: torch.Size,
) -> None:
    """One batch through the pipeline and back."""
    first, last = w.rank == 0, w.rank == w.size - 1
    kept: dict[int, tuple[Tensor, Tensor]] = {}
    for kind, i in gpipe(len(micros)):
        if kind == "F":
            x = micros[i] if first else micros[i].new_empty(entering)
            if not first:
                dist.recv(x, w.rank - 1)
            y = part(x.requires_grad_(not first))
            kept[i] = x, y
            if not last:
                dist.send(y.detach(), w.rank + 1)
            continue
        x, y = kept.pop(i)
        dy = None if last else torch.empty_like(y)
        if dy is not None:
            dist.recv(dy, w.rank + 1)
        (loss_of(y, net.batch) if last else y).backward(dy)
        if x.grad is not None:
            dist.send(x.grad, w.rank - 1)
    flat.update()


class ChannelLinear(nn.Module):
    """A linear layer of which this rank holds some inputs."""

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        assert isinstance(whole, nn.Linear)
        self.weight = nn.Parameter(channel.own_channels(whole.weight.data))
        self.bias = whole.bias

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs) to (batch, outputs)."""
        part = F.linear(channel.Enter.apply(x), self.weight)
        return channel.Leave.apply(part) + self.bias


class Total(torch.autograd.Function):
    """A sum over a group that all of it use: its gradient is summed too."""

    @staticmethod
    def forward(ctx: Any, group: Group | None, t: Tensor) -> Tensor:
        ctx.group = group
        dist.all_reduce(t := t.clone(), group=group)
        return t

    @staticmethod
    def backward(ctx: Any, dt: Tensor) -> tuple[None, Tensor]:
        dist.all_reduce(dt := dt.contiguous().clone(), group=ctx.group)
        return None, dt


class RowPool(nn.Module):
    """A pool of this rank's rows, and of what lies just beyond; none is negative."""

    def __init__(self, whole: Any, swap: spatial.Swap) -> None:
        super().__init__()
        self.kernel, self.stride = whole.kernel_size, whole.stride
        self.pad, self.swap = whole.padding, swap

    def forward(self, x: Tensor) -> Tensor:
        """(batch, c, rows, columns) to (batch, c, fewer, fewer)."""
        below = max(0, self.kernel - self.pad - self.stride)
        x = spatial.Halo.apply(x, self.pad, below, self.swap)
        x = F.pad(x, (0, 0, 0, self.pad - below))
        return F.max_pool2d(x, self.kernel, self.stride, (0, self.pad))


class RowMean(nn.Module):
    """The mean over the whole map, of which this rank has some rows."""

    def __init__(self, rows: int, total: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.rows, self.total = rows, total

    def forward(self, x: Tensor) -> Tensor:
        """(batch, c, own rows, ...) to (batch, c, 1, ...)."""
        over = tuple(range(2, x.dim()))
        count = self.rows * x[0, 0, 0].numel()
        return self.total(x.sum(over, keepdim=True)) / count


class WholeMap(nn.Module):
    """All rows of the last map, as a vector, on every rank."""

    def __init__(
        self, rows: int, start: int, total: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.rows, self.start, self.total = rows, start, total

    def forward(self, x: Tensor) -> Tensor:
        """(batch, c, own rows, columns) to (batch, c rows columns)."""
        after = self.rows - self.start - x.shape[2]
        return self.total(F.pad(x, (0, 0, self.start, after))).flatten(1)


def shared_rows(net: Network, size: int, place: int, group: Group | None) -> Parts:
    """What takes the layers' place where samples are cut by rows."""
    start = int(torch.arange(net.rows).tensor_split(size)[place][0])
    swap = partial(spatial.swap, group=group)
    return rows_of(net.rows, start, partial(Total.apply, group), swap)


def rows_of(
    rows: int, start: int, total: Callable[[Tensor], Tensor], swap: spatial.Swap
) -> Parts:
    """The same for a rank whose rows begin here; `total` adds up over its group."""

    def pool(whole: Any) -> nn.Module:
        beyond = whole.kernel_size > whole.stride
        return RowPool(whole, swap) if beyond else whole

    return Parts(
        conv=lambda whole: spatial.Spatial(whole, swap),
        norm=lambda n: Norm(n, total),
        pool=pool,
        mean=lambda _: RowMean(rows, total),
        flat=lambda: WholeMap(rows, start, total),
    )


PROGRAMS: dict[str, Callable[..., tuple[Flat, Step]]] = {
    "data": data,
    "filter": filter_,
    "channel": channel_,
    "spatial": spatial_,
    "pipeline": pipeline,
    "data+filter": data_filter_,
    "data+spatial": data_spatial_,
}


def program(
    w: World, net: Network, name: str, cuts: tuple[int, ...] = ()
) -> tuple[Flat, Step]:
    """The strategy's parameters and its step, on this rank."""
    return PROGRAMS[name](w, net, *([cuts] if name == "pipeline" else []))
