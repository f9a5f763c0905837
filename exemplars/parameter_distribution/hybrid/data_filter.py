"""Data and filter parallelism: filters are cut in a group, samples between.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.hybrid.data_filter

Source: Kahira et al. 2021 (ParaDL).

Ranks stand in a table: a row is a group (a node), and has some samples; a
column has one rank of every group, and some filters of each layer.

              filters 1   filters 2
    samples 1   rank 0      rank 1     inside: all-gather y, all-reduce dx
    samples 2   rank 2      rank 3     between: all-reduce dw

Inside, all move the activations of their own samples only; between, all move
the gradients of their own filters only. Each cut divides what the other one
sends, and together they allow as many ranks as samples times filters.

A batch norm needs the mean of all samples: its 2C + 1 sums are added between
the groups, forward and backward.
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import NARROW, SAMPLES, Norm, Pass, cnns, convs, passes

BATCH = 9  # samples: the groups' shares are uneven
Group = dist.ProcessGroup


def grid(w: World) -> tuple[Group, Group]:
    """As square a table as can be: this rank's row, and its column."""
    cuts = [q for q in (8, 4, 2, 1) if w.size % q == 0]  # divide filters
    fit = [q for q in cuts if w.size <= q * BATCH]
    few = f"1, 2, 4 or {NARROW} parts of the filters x 1 to {BATCH} groups"
    w.require(fit != [], f"{w.size} ranks are no grid: use {few}")
    size = min(fit, key=lambda q: abs(q - w.size // q))
    table = torch.arange(w.size).view(-1, size)
    inside, _ = dist.new_subgroups_by_enumeration(table.tolist())
    between, _ = dist.new_subgroups_by_enumeration(table.T.tolist())
    return inside, between


def part(t: Tensor, group: Group) -> Tensor:
    """Of filters, in a row; of samples, in a column: this rank's."""
    return t.tensor_split(group.size())[group.rank()].contiguous()


class Sum(torch.autograd.Function):
    """Over a group: of gradients, backward; if `both`, of values, forward."""

    @staticmethod
    def forward(ctx: Any, both: bool, group: Group, x: Tensor) -> Tensor:
        ctx.group = group
        x = x.clone(memory_format=torch.contiguous_format)
        if both:
            dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[None, None, Tensor]:
        with span("backward", cost=2):  # autograd has just done the work
            dx = dx.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(dx, group=ctx.group)
        return None, None, dx


class Gather(torch.autograd.Function):
    """Every rank made some channels: all of them forward, its own backward."""

    @staticmethod
    def forward(ctx: Any, inside: Group, y: Tensor) -> Tensor:
        ctx.group = inside
        every = [torch.empty_like(y) for _ in range(inside.size())]
        dist.all_gather(every, y, group=inside)
        return torch.cat(every, dim=1)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[None, Tensor]:
        return None, part(dy.transpose(0, 1), ctx.group).transpose(0, 1)


class Filter(nn.Module):
    """A convolution of which this rank holds some filters."""

    def __init__(self, whole: nn.Module, inside: Group) -> None:
        super().__init__()
        self.part, self.inside = whole, inside
        for name, t in list(whole.named_parameters()):
            setattr(whole, name, nn.Parameter(part(t.data, inside)))

    def forward(self, x: Tensor) -> Tensor:
        with span("convolve", cost=1):
            y = self.part(Sum.apply(False, self.inside, x))
        return Gather.apply(self.inside, y)


def reference(w: World, samples: list[Tensor], row: Group, col: Group) -> Pass:
    """One process; of it, this rank's samples and filters."""
    y, dx, dw, dn = passes(cnns(w.device), samples)
    y, dx = ([part(t, col) for t in each] for each in (y, dx))
    return Pass(y, dx, [part(t, row) for t in dw], dn)


def main(w: World) -> None:
    inside, between = grid(w)
    norm = partial(Norm, total=partial(Sum.apply, True, between))
    nets = cnns(w.device, lambda conv: Filter(conv, inside), norm)
    samples = [w.randn(BATCH, *s, of_rank=0) for s in SAMPLES]
    learn = [p for net in nets for p in net.parameters()]
    grads: list[Tensor] = []
    memory = w.memory(parameters=lambda: learn, gradients=lambda: grads)
    with memory, meter() as layers:
        found = passes(nets, [part(x, between) for x in samples])
        grads += found.dw + found.dn
    vector = parameters_to_vector(grads)
    with meter() as exchange:
        dist.all_reduce(vector, group=between)
    vector_to_parameters(vector, grads)
    serial = None if w.dry else reference(w, samples, inside, between)
    for claim, ours in found._asdict().items():
        # Sums in another order, through up to 13 layers and their norms.
        w.check(claim, ours, partial(getattr, serial, claim), slack=128)
    x = sum(s.x.numel() for s in convs())
    y = sum(s.y.numel() for s in convs())
    n = sum(t.numel() for s in convs() for t in s.conv.parameters())
    u, v = len(found.dn) // 2, sum(t.numel() for t in found.dn) // 2
    given = dict(x=x, y=y, n=n, u=u, v=v, c=NARROW, s=BATCH, b=8)
    gathered = layers.calls["all_gather"].payload
    counts = dict(gathered=gathered, summed=layers.payload - gathered)
    counts |= dict(exchanged=exchange.payload, ranks=w.size)
    report(w, given=given | {"q": inside.size()}, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
