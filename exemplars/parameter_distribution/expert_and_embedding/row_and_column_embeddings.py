"""Row and column embeddings: one table cut both ways, and what each way sends.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.expert_and_embedding.row_and_column_embeddings

A table that is too large for one rank is cut itself. A sample reads a bag of
rows and adds them up; the samples are divided among the ranks, as ever. First
every rank is told the indices of all samples. Then:

                    by rows                        by columns
    a rank has      some rows, whole               a part of every row
    it looks up     what it has, else 0            every index
    it gets         terms of all bags, all wide    a part of all bags, narrow
    forward         reduce-scatter  B x D          all-to-all  B x D/p
    backward        all-gather      b x D          all-to-all  b x D

Terms are as wide as the result, parts are a p-th: of a batch of B bags, a rank
sends (p-1)/p B D numbers one way and (p-1)/p B D/p the other, and backward
the same again. Columns also spread a popular row over all ranks. But rows of
D/p numbers are slow to look up, and D limits p, where the rows are millions.

    B, b all bags, my bags   L rows of a bag   D width   d my columns

Source: TorchRec's documentation, row-wise and column-wise sharding.
"""

from collections import ChainMap
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn import functional as F

from exemplars.runtime import World, meter, report, span, world


class ToSamples(torch.autograd.Function):
    """Terms of all bags -> sums of mine; backward, gradients to everybody."""

    @staticmethod
    def forward(ctx: Any, terms_BD: Tensor) -> Tensor:
        b = len(terms_BD) // dist.get_world_size()
        sums_bD = terms_BD.new_empty(b, terms_BD.shape[1])
        dist.reduce_scatter_single(sums_bD, terms_BD)
        return sums_bD

    @staticmethod
    def backward(ctx: Any, d_bD: Tensor) -> Tensor:
        p = dist.get_world_size()
        d_BD = d_bD.new_empty(p * len(d_bD), d_bD.shape[1])
        #: Any rank may have a row that a bag has read.
        dist.all_gather_single(d_BD, d_bD.contiguous())
        return d_BD


class Turn(torch.autograd.Function):
    """My columns of all bags -> all columns of mine; backward, the reverse."""

    @staticmethod
    def forward(ctx: Any, x_Bd: Tensor, widths: list[int]) -> Tensor:
        ctx.widths = widths
        b = len(x_Bd) // dist.get_world_size()
        parts = exchange([*x_Bd.split(b)], [(b, d) for d in widths])
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx: Any, d_bD: Tensor) -> tuple[Tensor, None]:
        own = len(d_bD), ctx.widths[dist.get_rank()]
        #: A gradient goes only where its columns are, not to everybody.
        sent = [*d_bD.split(ctx.widths, dim=1)]
        return torch.cat(exchange(sent, [own] * len(sent))), None


def exchange(sent: list[Tensor], shapes: list[Any]) -> list[Tensor]:
    """Part q goes to rank q; what arrives, in these shapes."""
    sizes = [rows * columns for rows, columns in shapes]
    flat = torch.cat([part.flatten() for part in sent])
    arrived = flat.new_empty(sum(sizes))
    own = [part.numel() for part in sent]
    dist.all_to_all_single(arrived, flat, sizes, own)
    return [t.view(s) for t, s in zip(arrived.split(sizes), shapes)]


def told(index_bL: Tensor) -> Tensor:
    """The indices of all bags."""
    size = dist.get_world_size() * len(index_bL)
    index_BL = index_bL.new_empty(size, index_bL.shape[1])
    dist.all_gather_single(index_BL, index_bL.contiguous())
    return index_BL


def by_rows(table_rD: Tensor, index_bL: Tensor, cuts: list[int]) -> Tensor:
    """Bags of a table of which this rank has some rows."""
    first = sum(cuts[: dist.get_rank()])
    at = told(index_bL) - first
    mine = (at >= 0) & (at < len(table_rD))
    with span("lookup", cost=1):
        #: Row 0 stands in for the rows of others, and counts nothing.
        rows_BLD = table_rD[at.where(mine, 0)] * mine[..., None]
        #: Added up before they travel: one row for a bag, not L.
        terms_BD = rows_BLD.sum(1)
    sums: Tensor = ToSamples.apply(terms_BD)
    return sums


def by_columns(table_Rd: Tensor, index_bL: Tensor, cuts: list[int]) -> Tensor:
    """Bags of a table of which this rank has some columns."""
    with span("lookup", cost=1):
        #: Nothing is masked: every index is in every rank's part.
        part_Bd = table_Rd[told(index_bL)].sum(1)
    sums: Tensor = Turn.apply(part_Bd, cuts)
    return sums


def reference(
    table: Tensor, index: Tensor, slope: Tensor
) -> tuple[Tensor, Tensor]:
    """One process with the whole table: all bags, and its gradient."""
    table = table.detach().requires_grad_()
    bags = F.embedding_bag(index, table, mode="sum")
    (grad,) = torch.autograd.grad(bags, [table], slope)
    return bags.detach(), grad


def by_torch(w: World, table: Tensor, index: Tensor) -> float:
    """F.embedding of a DTensor cut by rows; bytes sent for its result."""
    mesh = init_device_mesh(w.device.type, (w.size,))
    # Unread rows at the end, for it cannot look up in an empty part.
    table = F.pad(table, (0, 0, 0, -len(table) % w.size))
    cut = distribute_tensor(table, mesh, [Shard(0)], src_data_rank=None)
    rows: Any = F.embedding(DTensor.from_local(told(index), mesh), cut)
    with meter(shown=False) as moved:
        #: It moves every row that was read, before a bag can be added up.
        mine = rows.redistribute(mesh, [Shard(0)]).to_local()
    bags = F.embedding_bag(index, table, mode="sum")
    w.check("torch", mine.sum(1), lambda: bags, slack=2)
    return moved.wire


def check(
    w: World, dim: int, table: Tensor, index: Tensor, slope: Tensor
) -> dict[str, float]:
    """Bags and the table's gradient, compared; what was held and sent."""
    name, read = (("rows", by_rows), ("columns", by_columns))[dim]
    parts = torch.arange(table.shape[dim]).tensor_split(w.size)
    cuts = [len(part) for part in parts]
    own = table.split(cuts, dim)[w.rank].clone().requires_grad_()
    mine, d_mine = (t.chunk(w.size)[w.rank] for t in (index, slope))
    memory = w.memory(tables=lambda: [own])
    with memory, meter() as forward:
        bags = read(own, mine, cuts)
    with meter() as backward:
        (grad,) = torch.autograd.grad(bags, [own], d_mine)
    truth = reference(table, index, slope)
    expected = truth[0].chunk(w.size)[w.rank]
    # Terms are added in another order; columns are not cut across a sum.
    w.check(f"{name}_bags", bags, lambda: expected, slack=2 * (1 - dim))
    d_own = truth[1].split(cuts, dim)[w.rank]
    w.check(f"{name}_gradient", grad, lambda: d_own, slack=16)
    held = memory.live()["tables"]
    kinds = (f"{name}_held", f"{name}_forward", f"{name}_backward")
    return dict(zip(kinds, (held, forward.wire, backward.wire)))


def main(
    w: World,
    *,
    batch: int = 192,
    bag: int = 3,
    rows: int = 101,
    columns: int = 66,
) -> None:
    w.require(batch % w.size == 0, f"{batch} bags: not {w.size} equal parts")
    most = min(rows, columns)
    w.require(w.size <= most, f"{w.size} ranks: use at most {most}")
    table = w.randn(rows, columns, seed=0)
    slope = w.randn(batch, columns, seed=1)
    #: Squares: low indices are read far more often than high ones.
    skewed = w.randn(batch, bag, seed=2).square() * rows / 9
    index = skewed.long() % rows
    found = [check(w, dim, table, index, slope) for dim in (0, 1)]
    mine = index.chunk(w.size)[w.rank]
    found += [{"rows_torch": by_torch(w, table, mine)}]
    report(w, given={"itemsize": 8}, **ChainMap(*found))


if __name__ == "__main__":
    with world() as w:
        main(w)
