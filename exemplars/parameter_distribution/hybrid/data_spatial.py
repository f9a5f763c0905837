"""Data and spatial parallelism: rows are cut in a group, samples between.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.hybrid.data_spatial

Source: Kahira et al. 2021 (ParaDL).

A row of the table is a group (a node): it has some samples, and each of its
ranks some rows of each. Halos go along the row.

    samples 1    rank 0, upper rows    rank 1, lower rows
    samples 2    rank 2, upper rows    rank 3, lower rows

Both cuts leave the weights whole, so one all-reduce over all ranks adds up the
gradients of rows and of samples alike. Only the halo has to know of groups.
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

BATCH = 9  # samples: the groups' shares are uneven


def group_size(p: int) -> int:
    """Ranks that share a sample: the table is as square as can be, or 0."""
    fit = [q for q in range(ROWS, 0, -1) if p % q == 0 and p <= q * BATCH]
    return min(fit, key=lambda q: abs(q - p // q), default=0)


def mine(t: Tensor) -> Tensor:
    """Of this group's samples, this rank's rows, of a map of any size."""
    p = dist.get_world_size()
    group, place = divmod(dist.get_rank(), size := group_size(p))
    t = t.tensor_split(p // size)[group]
    rows = t.split(-(-t.shape[2] // ROWS), dim=2)  # by 4 or 2 or 1
    which = torch.arange(ROWS).tensor_split(size)[place].tolist()
    return torch.cat([rows[i] for i in which], dim=2)


def swap(up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """Send to both neighbours; what the one above sent, and the one below."""
    r, size = dist.get_rank(), group_size(dist.get_world_size())
    above, below = torch.zeros_like(down), torch.zeros_like(up)
    #: In one batch: one by one, each rank would wait for its neighbour.
    ways = [(dist.isend, up, r - 1), (dist.irecv, below, r + 1)]
    ways += [(dist.isend, down, r + 1), (dist.irecv, above, r - 1)]
    ways = [way for way in ways if way[2] // size == r // size]  # my group
    ops = [dist.P2POp(*way) for way in ways if way[1].numel()]
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
    """The whole networks on one process; of their maps, this rank's part."""
    y, dx, dw, dn = passes(cnns(w.device), samples)
    return Pass([mine(t) for t in y], [mine(t) for t in dx], dw, dn)


def main(w: World) -> None:
    size, fits = group_size(w.size), f"{ROWS} parts of rows x {BATCH} groups"
    w.require(size > 0, f"{w.size} ranks are no grid: use at most {fits}")
    nets = cnns(w.device, Spatial, lambda n: Norm(n, Sum.apply))
    samples = [w.randn(BATCH, *s, of_rank=0) for s in SAMPLES]
    learn = [p for net in nets for p in net.parameters()]
    grads: list[Tensor] = []
    memory = w.memory(parameters=lambda: learn, gradients=lambda: grads)
    with memory, meter() as moved:
        found = passes(nets, [mine(x) for x in samples])
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
    given = dict(n=len(vector), a=a, u=u, v=v, h=ROWS, s=BATCH, q=size, b=8)
    counts = dict(sums=moved.count, summed=moved.payload, ranks=w.size)
    report(w, given=given, halo=moved.bytes_sent, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
