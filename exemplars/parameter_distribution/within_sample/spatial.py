"""Spatial parallelism: every rank has some rows of each sample, all weights.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.within_sample.spatial

Source: Dryden et al. 2019; Kahira et al. 2021.

Cut the sample by rows (in 3-D, by depth). A convolution looks a little way
beyond its rows, and those few rows come from the neighbours, the halo:

    forward    rows of x at the cuts             to both neighbours
    backward   what they contributed to dx       back to where they came from
    at last    dw, from own rows only            all-reduce, as with data

A window of K rows that moves on by s overlaps the next one by K - s: so much
is exchanged. Parts begin where rows of the smallest map begin, so that strides
keep in step on all ranks; that map must have a row for each. A batch norm
needs the mean of all rows: its 2C + 1 sums are added, forward and backward.
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import ROWS, SAMPLES, Norm, Pass, cnns, convs, passes

BATCH = 2


def mine(t: Tensor, w: World) -> Tensor:
    """This rank's rows of a map: those of its rows in the smallest map."""
    rows = t.split(-(-t.shape[2] // ROWS), dim=2)  # by 4 or 2 or 1
    which = torch.arange(ROWS).tensor_split(w.size)[w.rank].tolist()
    return torch.cat([rows[i] for i in which], dim=2)


def swap(up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """Send to both neighbours; what the one above sent, and the one below."""
    r, p = dist.get_rank(), dist.get_world_size()
    above, below = torch.zeros_like(down), torch.zeros_like(up)
    #: In one batch: one by one, each rank would wait for its neighbour.
    ops = [
        dist.P2POp(what, rows, peer)
        for what, rows, peer in (
            (dist.isend, up, r - 1),
            (dist.irecv, below, r + 1),
            (dist.isend, down, r + 1),
            (dist.irecv, above, r - 1),
        )
        if 0 <= peer < p and rows.numel()
    ]
    for work in dist.batch_isend_irecv(ops) if ops else []:
        work.wait()
    return above, below


class Halo(torch.autograd.Function):
    """The neighbours' rows forward; their gradients return backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, above: int, below: int) -> Tensor:
        ctx.sizes = above, x.shape[2], below
        first, last = x[:, :, :below], x[:, :, x.shape[2] - above :]
        with span("halo"):
            before, after = swap(first.contiguous(), last.contiguous())
        return torch.cat([before, x, after], dim=2)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None, None]:
        above, rows, below = ctx.sizes
        with span("backward", cost=2):  # autograd has just done the work
            up, dx, down = (t.contiguous() for t in d.split(ctx.sizes, dim=2))
        with span("halo"):
            from_above, from_below = swap(up, down)
        dx[:, :, :below] += from_above
        dx[:, :, rows - above :] += from_below
        return dx, None, None


class Spatial(nn.Module):
    """A convolution of this rank's rows, and of what lies just beyond."""

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        assert isinstance(whole, nn.Conv2d | nn.Conv3d)
        self.whole, self.pad = whole, whole.kernel_size[0] // 2
        whole.padding = (0, *[self.pad] * (len(whole.stride) - 1))

    def forward(self, x: Tensor) -> Tensor:
        below = max(0, self.pad + 1 - self.whole.stride[0])
        x = Halo.apply(x, self.pad, below)
        with span("convolve", cost=1):
            #: Beyond the last row of all, a strided window may need zeros.
            end = [0] * (2 * x.dim() - 5) + [self.pad - below]
            return self.whole(F.pad(x, end))


class Sum(torch.autograd.Function):
    """Sums over all ranks, which all use: their gradient is summed too."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        dist.all_reduce(t := t.clone())
        return t

    @staticmethod
    def backward(ctx: Any, dt: Tensor) -> Tensor:
        dist.all_reduce(dt := dt.contiguous().clone())
        return dt


def reference(w: World, samples: list[Tensor]) -> Pass:
    """The whole networks on one process; of their maps, this rank's rows."""
    y, dx, dw, dn = passes(cnns(w.device), samples)
    return Pass([mine(t, w) for t in y], [mine(t, w) for t in dx], dw, dn)


def main(w: World) -> None:
    most = f"{w.size} ranks for maps of {ROWS} rows: use at most {ROWS}"
    w.require(w.size <= ROWS, most)
    nets = cnns(w.device, Spatial, lambda n: Norm(n, Sum.apply))
    samples = [w.randn(BATCH, *s, of_rank=0) for s in SAMPLES]
    learn = [p for net in nets for p in net.parameters()]
    grads: list[Tensor] = []
    memory = w.memory(parameters=lambda: learn, gradients=lambda: grads)
    with memory, meter() as moved:
        found = passes(nets, [mine(x, w) for x in samples])
        grads += found.dw + found.dn
        dist.all_reduce(vector := parameters_to_vector(grads))
    vector_to_parameters(vector, grads)
    serial = None if w.dry else reference(w, samples)
    for claim, ours in found._asdict().items():
        # Sums in another order, through up to 13 layers and their norms.
        w.check(claim, ours, partial(getattr, serial, claim), slack=128)
    over = [max(0, c.kernel_size[0] - c.stride[0]) for c, *_ in convs()]
    a = sum(k * x.numel() // x[1] for k, (_, x, _) in zip(over, convs()))
    u, v = len(found.dn) // 2, sum(t.numel() for t in found.dn) // 2
    given = dict(n=len(vector), a=BATCH * a, u=u, v=v, h=ROWS, b=8)
    counts = dict(sums=moved.count, summed=moved.payload, ranks=w.size)
    report(w, given=given, halo=moved.bytes_sent, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
