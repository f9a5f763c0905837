"""Embedding sharding: whole tables and whole samples per rank, exchanged.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.expert_and_embedding.embedding_sharding

A recommender has a few dense layers and many large tables, of each of which a
sample reads one row. The tables are divided among the ranks; the dense part is
replicated, and the samples are divided. In between, everything changes hands:
from "my samples, all tables" to "my tables, all samples" and back.

    forward    to_tables (indices)       lookup   to_samples (rows)
    backward   to_tables (gradients of rows), added to the tables they are from

Each exchange is one all-to-all, and backward's is forward's in reverse. No
table is ever sent, and no table's gradient is summed over ranks: a rank sees
all samples that read its tables. Only the dense part needs an all-reduce.

    B, b all samples, my samples   T, t all tables, my tables   D width

Source: Naumov et al. 2019 (DLRM).
"""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world


class Cut(NamedTuple):
    """How many samples, and how many tables, each rank has."""

    samples: list[int]
    tables: list[int]


def cut(samples: int, tables: int, p: int) -> Cut:
    """As even as possible: the first ranks have one more."""
    #: A table is never cut, so more ranks than tables cannot be used.
    if p > tables:
        raise ValueError(f"{p} ranks for {tables} tables: some have none")
    by_sample = [len(part) for part in torch.arange(samples).tensor_split(p)]
    by_table = [len(part) for part in torch.arange(tables).tensor_split(p)]
    return Cut(by_sample, by_table)


def to_tables(x_bT: Tensor, by: Cut) -> Tensor:
    """My samples for all tables -> all samples for my tables."""
    t, inner = by.tables[dist.get_rank()], x_bT.shape[2:]
    parts = [part.flatten() for part in x_bT.split(by.tables, dim=1)]
    sizes = [b * t * inner.numel() for b in by.samples]
    #: Rank by rank is sample by sample here: no reordering is needed.
    return exchange(parts, sizes).view(-1, t, *inner)


def to_samples(x_Bt: Tensor, by: Cut) -> Tensor:
    """All samples for my tables -> my samples for all tables."""
    b, inner = by.samples[dist.get_rank()], x_Bt.shape[2:]
    parts = [part.flatten() for part in x_Bt.split(by.samples)]
    sizes = [b * t * inner.numel() for t in by.tables]
    blocks = exchange(parts, sizes).split(sizes)
    #: What arrives lies rank by rank: each block has some tables of a sample.
    shaped = [block.view(b, -1, *inner) for block in blocks]
    return torch.cat(shaped, dim=1)


def exchange(parts: list[Tensor], sizes: list[int]) -> Tensor:
    """Part q goes to rank q; the answers stand one behind the other."""
    arrived = parts[0].new_empty(sum(sizes))
    #: Both sides know all sizes from the cut: nothing is announced.
    sent = [len(part) for part in parts]
    with span("exchange"):
        dist.all_to_all_single(arrived, torch.cat(parts), sizes, sent)
    return arrived


class ToSamples(torch.autograd.Function):
    """Rows to their samples; backward, gradients to their tables."""

    @staticmethod
    def forward(ctx: Any, rows_BtD: Tensor, by: Cut) -> Tensor:
        ctx.by = by
        return to_samples(rows_BtD, by)

    @staticmethod
    def backward(ctx: Any, d_rows_bTD: Tensor) -> tuple[Tensor, None]:
        return to_tables(d_rows_bTD, ctx.by), None


def lookup(tables_tRD: Tensor, index_Bt: Tensor) -> Tensor:
    """One row of every table for each sample."""
    t = torch.arange(len(tables_tRD), device=index_Bt.device)
    #: Backward adds each gradient to its row; rows nobody read stay at zero.
    return tables_tRD[t, index_Bt]


def step(
    tables_tRD: Tensor, dense_TD: Tensor, index_bT: Tensor, by: Cut
) -> tuple[Tensor, Tensor]:
    """The rows that my samples read, and my part of the batch's mean loss."""
    index_Bt = to_tables(index_bT, by)
    with span("lookup", cost=2):
        rows_BtD = lookup(tables_tRD, index_Bt)
    rows_bTD = ToSamples.apply(rows_BtD, by)
    with span("dense", cost=1):
        scores = (rows_bTD * dense_TD).flatten(1).sum(1)
        #: By all samples, not by this rank's: the ranks' losses add up.
        loss = torch.tanh(scores).square().sum() / sum(by.samples)
    return rows_bTD, loss


def gradients(loss: Tensor, tables: Tensor, dense: Tensor) -> list[Tensor]:
    """Of my tables, complete as they are, and of the replicated dense part."""
    d_tables, d_dense = torch.autograd.grad(loss, [tables, dense])
    #: Each rank knows its own samples' share of the dense gradient only.
    dist.all_reduce(d_dense)
    return [d_tables, d_dense]


def reference(
    tables: Tensor, dense: Tensor, index_BT: Tensor
) -> tuple[Tensor, ...]:
    """Whole tables, whole batch: the rows, and both gradients."""
    tables = tables.detach().requires_grad_()
    dense = dense.detach().requires_grad_()
    read = [table[index_BT[:, t]] for t, table in enumerate(tables)]
    rows = torch.stack(read, dim=1)
    scores = torch.einsum("btd,td->b", rows, dense)
    loss = scores.tanh().pow(2).mean()
    return rows.detach(), *torch.autograd.grad(loss, [tables, dense])


def main(
    w: World,
    *,
    batch: int = 50,
    tables: int = 26,
    table_rows: int = 7,
    width: int = 4,
) -> None:
    w.require(w.size <= tables, f"{w.size} ranks: use at most {tables}")
    whole = w.randn(tables, table_rows, width, seed=0)
    dense = w.randn(tables, width, seed=0).requires_grad_()
    # For each sample, the row that it reads from each table.
    index = (9 * w.randn(batch, tables, seed=0)).long() % table_rows
    own = whole.tensor_split(w.size)[w.rank].clone().requires_grad_()
    with w.memory(tables=lambda: [own], dense=lambda: [dense]) as memory:
        with meter() as forward:
            mine = index.tensor_split(w.size)[w.rank]
            rows, loss = step(own, dense, mine, cut(batch, tables, w.size))
        with meter() as backward:
            grads = gradients(loss, own, dense)
    if not w.dry:
        truth = reference(whole, dense, index)
        read, slope = (t.tensor_split(w.size)[w.rank] for t in truth[:2])
        w.check("lookup", rows, lambda: read, slack=0)
        # Sums in another order, of terms that cancel.
        w.check("gradients", grads, lambda: [slope, truth[2]], slack=64)
    there, back = forward.calls["all_to_all"], backward.calls["all_to_all"]
    sent = {"forward": there.payload, "backward": back.payload}
    added = backward.calls["all_reduce"].payload
    state = memory.live()["tables"]
    report(w, given={"itemsize": 8}, state=state, dense=added, **sent)


if __name__ == "__main__":
    with world() as w:
        main(w)
