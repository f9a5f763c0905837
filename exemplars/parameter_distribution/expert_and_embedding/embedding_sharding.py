"""Embedding sharding: whole tables and whole samples per rank, exchanged.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.expert_and_embedding.embedding_sharding

Source: Naumov et al. 2019 (DLRM).

A recommender has a few dense layers and many large tables, of which a sample
reads one row each. The tables are divided, some for each rank; the dense part
is replicated and the samples are divided. In between, everything changes
hands: from "my samples, all tables" to "my tables, all samples" and back.

    forward    to_tables (indices)       lookup   to_samples (rows)
    backward   to_tables (gradients of rows), added to the tables they are from

Each exchange is one all-to-all, and backward's is forward's in reverse. No
table is ever sent, and no table's gradient summed over ranks: a rank sees all
samples that read its tables. Only the dense part needs an all-reduce.

    B, b all samples, my samples   T, t all tables, my tables   D width
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world

SAMPLES, TABLES, ROWS, WIDTH = 50, 26, 7, 4


def sizes(total: int) -> list[int]:
    """How many of them each rank has."""
    chunks = torch.arange(total).tensor_split(dist.get_world_size())
    return [len(c) for c in chunks]


def mine(w: World, whole: Tensor) -> Tensor:
    """This rank's part of the first dimension."""
    return whole.tensor_split(w.size)[w.rank].clone()


def to_tables(x_bT: Tensor) -> Tensor:
    """My samples for all tables -> all samples for my tables."""
    parts = [p.flatten() for p in x_bT.split(sizes(TABLES), dim=1)]
    t, inner = sizes(TABLES)[dist.get_rank()], x_bT.shape[2:]
    takes = [b * t * inner.numel() for b in sizes(SAMPLES)]
    return exchange(parts, takes).view(SAMPLES, t, *inner)


def to_samples(x_Bt: Tensor) -> Tensor:
    """All samples for my tables -> my samples for all tables."""
    parts = [p.flatten() for p in x_Bt.split(sizes(SAMPLES))]
    b, inner = sizes(SAMPLES)[dist.get_rank()], x_Bt.shape[2:]
    takes = [b * t * inner.numel() for t in sizes(TABLES)]
    found = exchange(parts, takes).split(takes)
    shaped = [f.view(b, t, *inner) for f, t in zip(found, sizes(TABLES))]
    return torch.cat(shaped, dim=1)


def exchange(parts: list[Tensor], takes: list[int]) -> Tensor:
    """Part q goes to rank q; the answers stand one behind the other."""
    with span("exchange"):
        found = parts[0].new_empty(sum(takes))
        gives = [len(p) for p in parts]
        dist.all_to_all_single(found, torch.cat(parts), takes, gives)
    return found


class ToSamples(torch.autograd.Function):
    """Rows to their samples; backward, gradients to their tables."""

    @staticmethod
    def forward(ctx: Any, rows_BtD: Tensor) -> Tensor:
        return to_samples(rows_BtD)

    @staticmethod
    def backward(ctx: Any, d_rows_bTD: Tensor) -> Tensor:
        return to_tables(d_rows_bTD)


def lookup(tables_tRD: Tensor, index_Bt: Tensor) -> Tensor:
    """One row of every table for each sample."""
    t = torch.arange(len(tables_tRD), device=index_Bt.device)
    return tables_tRD[t, index_Bt]


def loss_of(rows_bTD: Tensor, dense_TD: Tensor) -> Tensor:
    """A dense layer on top, and the mean over the whole batch."""
    scores = (rows_bTD * dense_TD).flatten(1).sum(1)
    return torch.tanh(scores).square().sum() / SAMPLES


def problem(w: World) -> tuple[Tensor, Tensor, Tensor]:
    """All tables, the dense weights, and which rows each sample reads."""
    tables = w.randn(TABLES, ROWS, WIDTH, of_rank=0)
    source = torch.Generator().manual_seed(0)
    index = torch.randint(ROWS, (SAMPLES, TABLES), generator=source)
    return tables, w.randn(TABLES, WIDTH, of_rank=0), index.to(w.device)


def reference(w: World) -> list[Tensor]:
    """Whole tables, whole batch; of rows and gradients, this rank's."""
    tables, dense, index = problem(w)
    tables.requires_grad_(), dense.requires_grad_()
    rows = lookup(tables, index)
    d = torch.autograd.grad(loss_of(rows, dense), [tables, dense])
    return [mine(w, rows.detach()), mine(w, d[0]), d[1]]


def main(w: World) -> None:
    most = f"{w.size} ranks for {TABLES} tables: use at most {TABLES}"
    w.require(w.size <= TABLES, most)
    whole, dense, index = problem(w)
    tables = mine(w, whole).requires_grad_()
    dense.requires_grad_()
    index_bT = mine(w, index)
    memory = w.memory(tables=lambda: [tables], dense=lambda: [dense])
    with memory, meter() as forward:
        index_Bt = to_tables(index_bT)
        with span("lookup", cost=2):
            rows_BtD = lookup(tables, index_Bt)
        rows_bTD = ToSamples.apply(rows_BtD)
        with span("dense", cost=1):
            loss = loss_of(rows_bTD, dense)
    with meter() as backward:
        d_tables, d_dense = torch.autograd.grad(loss, [tables, dense])
        dist.all_reduce(d_dense)
    w.check("lookup", rows_bTD, lambda: reference(w)[0], slack=0)
    # Rows that several samples read get sums, in another order.
    ours = [d_tables, d_dense]
    w.check("gradients", ours, lambda: reference(w)[1:], slack=16)
    given = dict(s=SAMPLES, l=TABLES, rows=ROWS, h=WIDTH, b=8)
    sent = forward.calls["all_to_all"].payload
    back = backward.calls["all_to_all"].payload
    found = dict(forward=sent, backward=back, ranks=w.size)
    report(w, given=given, state=memory.live()["tables"], **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
