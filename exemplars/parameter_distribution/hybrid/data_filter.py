"""Data and filter parallelism: filters are cut in a group, samples between.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.hybrid.data_filter

Arrange the ranks in a table. A row is a group (a node), which takes some of
the samples. A column has one rank of every group, all with the same filters.

              filters 1   filters 2
    samples 1   rank 0      rank 1     inside: all-gather y, all-reduce dx
    samples 2   rank 2      rank 3     between: all-reduce dw

Inside a group, ranks move activations of their own samples only; between
groups, gradients of their own filters only. Each cut divides the traffic of
the other, and together they allow as many ranks as samples times filters.

A batch norm needs the mean over all samples: its 2C + 1 sums are added between
the groups, forward and backward.

How a layer is cut inside a group is filter parallelism, unchanged.

Source: Kahira et al. 2021 (ParaDL).
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.parameter_distribution.intra_layer import filter as filters
from exemplars.runtime import World, meter, report, world
from exemplars.workload import (
    Norm,
    Pass,
    cnns,
    convs,
    cut_sizes,
    images,
    norm_sizes,
    passes,
)

Group = dist.ProcessGroup
CUTS = (1, 2, 4, 8)  # ranks that may share a layer: they divide its filters


def group_size(p: int) -> int:
    """Ranks per group: at least as many as there are groups, if they can."""
    #: A square table: neither the filters nor the samples are cut too finely.
    fitting = [size for size in CUTS if p % size == 0]
    for size in fitting:
        if size >= p // size:
            return size
    return fitting[-1]


def grid(w: World, batch: int) -> tuple[Group, Group]:
    """This rank's row of the table, and its column."""
    size = group_size(w.size)
    groups = w.size // size
    fits = f"{w.size} ranks are {groups} groups of {size}"
    w.require(groups <= batch, f"{fits}: more than {batch} samples")
    #: Neighbors in rank are neighbors in a node: rows get the fast links.
    table = torch.arange(w.size).view(groups, size)
    #: Every rank creates every group, in the same order.
    inside, _ = dist.new_subgroups_by_enumeration(table.tolist())
    between, _ = dist.new_subgroups_by_enumeration(table.T.tolist())
    return inside, between


class SumBetween(torch.autograd.Function):
    """Over a column, both ways: every group uses the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, between: Group) -> Tensor:
        ctx.between = between
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=between)
        return total

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor, None]:
        total = dx.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.between)
        return total, None


def networks(w: World, inside: Group, between: Group) -> list[nn.Module]:
    """Filters cut inside the group; norms over the samples of all groups."""

    #: Of a sample, a group's ranks all compute the same sums: adding over the
    #: column counts every sample once.
    def total(sums: Tensor) -> Tensor:
        return SumBetween.apply(sums, between)

    return cnns(
        w.device,
        conv=lambda whole: filters.Filter(whole, inside),
        norm=lambda whole: Norm(whole, total),
    )


def own_samples(x: Tensor, between: Group) -> Tensor:
    """The samples of this rank's group."""
    return x.tensor_split(between.size())[between.rank()].contiguous()


def agree(grads: list[Tensor], between: Group) -> None:
    """Add up the gradients of all samples; ranks of a column have the same."""
    vector = parameters_to_vector(grads)
    #: Not over the row: its ranks hold other filters, and a sum of those
    #: would fit in shape and mean nothing.
    dist.all_reduce(vector, group=between)
    vector_to_parameters(vector, grads)


def reference(w: World, samples: list[Tensor], size: int) -> Pass:
    """One process; of it, this row's samples and this column's filters."""
    row, column = divmod(w.rank, size)
    found = filters.reference(w, samples, column, size)

    def own(t: Tensor) -> Tensor:
        return t.tensor_split(w.size // size)[row]

    activations = [own(t) for t in found.activations]
    return found._replace(
        activations=activations, dx=[own(t) for t in found.dx]
    )


def main(w: World, *, batch: int = 9) -> None:
    #: An odd number: with 2, 4 or 8 groups, some have one sample more.
    inside, between = grid(w, batch)
    nets = networks(w, inside, between)
    samples = images(w, batch)
    learned = [t for net in nets for t in net.parameters()]
    grads: list[Tensor] = []
    memory = w.memory(parameters=lambda: learned, gradients=lambda: grads)
    with memory, meter() as layers:
        found = passes(nets, [own_samples(x, between) for x in samples])
        grads.extend(found.dw + found.dn)
    with meter() as exchange:
        agree(grads, between)
    serial = None if w.dry else reference(w, samples, inside.size())
    for claim, value in found._asdict().items():
        # Sums in another order, through up to 13 layers and their norms.
        w.check(claim, value, partial(getattr, serial, claim), slack=128)
    cut = sum(t.numel() for c in convs() for t in c.conv.parameters())
    given = {"cut_weights": cut, "itemsize": 8}
    report(
        w,
        given={**cut_sizes(convs()), **norm_sizes(), **given},
        group=inside.size(),
        gathered=layers.calls["all_gather"].payload,
        summed=layers.calls["all_reduce"].payload,
        exchanged=exchange.payload,
    )


if __name__ == "__main__":
    with world() as w:
        main(w)
