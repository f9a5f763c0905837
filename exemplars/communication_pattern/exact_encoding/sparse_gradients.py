"""Sparse gradients: send the rows of a table that a batch has touched.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.exact_encoding.sparse_gradients

A batch looks up few rows of a large embedding table. The gradient of all
other rows is exactly zero, so it is enough to send each touched row once,
with its number:

    table   R rows of h entries      dense     R h entries
    batch   touches s of the rows    sparse    s (h entries + 1 place)

Nothing is rounded, dropped or delayed: the sum of all ranks' pairs is the
dense sum. But ranks touch different rows, so their pairs cannot be added on
the way as in an all-reduce, and each rank needs those of all p - 1 others.
They are not even equally many: ranks first tell one another how many rows
come, and then exchange them.

A ring all-reduce of the table sends about 2 R h entries per rank, whatever p
is. So pairs win while the ranks together touch fewer than two tables' worth
of rows: p s (h + 1) < 2 R h, if a place takes the bytes of an entry.

Source: Abadi et al. 2016, section 4.2; Kim et al. 2019 (Parallax).
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from exemplars.runtime import World, meter, report, span, world

Pairs = tuple[Tensor, Tensor]


def compress(rows: Tensor, places: Tensor) -> Pairs:
    """Each place once, with the sum of its rows."""
    #: Backward makes one row for each lookup. What a batch has looked up
    #: several times is added up before it is sent.
    once, of = places.unique(return_inverse=True)
    total = rows.new_zeros(len(once), rows.shape[1])
    #: 32-bit places: half the bytes of torch's own 64-bit ones.
    return total.index_add(0, of, rows), once.to(torch.int32)


def sum_of_all(rows: Tensor, places: Tensor) -> Pairs:
    """What all ranks sent, each touched row once."""
    every = exchange(rows, places)
    #: Still sparse: the union of what the ranks have touched, added up rank
    #: after rank, in the same order everywhere.
    every_row = torch.cat([theirs for theirs, _ in every])
    every_place = torch.cat([theirs for _, theirs in every])
    return compress(every_row, every_place)


def exchange(rows: Tensor, places: Tensor) -> list[Pairs]:
    """Everyone's rows and places, by rank."""
    r, p = dist.get_rank(), dist.get_world_size()
    own = torch.tensor([len(rows)], device=rows.device)
    counts = own.new_zeros(p)
    #: The ranks have touched different numbers of rows: nobody knows how
    #: much to expect before it is told.
    dist.all_gather_single(counts, own)
    shapes = [(count, rows.shape[1]) for count in counts.tolist()]
    every = [(rows.new_zeros(s), places.new_zeros(s[0])) for s in shapes]
    every[r] = (rows, places)
    ops = []
    for q in range(p):
        if q != r:
            #: Two messages each way, rows and then places.
            for mine, theirs in zip(every[r], every[q]):
                ops.append(dist.P2POp(dist.isend, mine, q))
                ops.append(dist.P2POp(dist.irecv, theirs, q))
    #: One batch: every rank sends to all and receives from all at once.
    for work in dist.batch_isend_irecv(ops) if ops else []:
        work.wait()
    return every


def all_reduce_table(rows: Tensor, places: Tensor, table_rows: int) -> Tensor:
    """The other way: a whole table of mostly zeros, summed over all ranks."""
    table = rows.new_zeros(table_rows, rows.shape[1])
    table.index_add_(0, places, rows)
    dist.all_reduce(table)
    return table


def samples(
    w: World, rank: int, touched: int, table_rows: int, width: int
) -> Pairs:
    """Errors at what a rank has looked up, and the places looked up."""
    source = torch.Generator().manual_seed(rank)
    #: Rank r touches r rows more than rank 0, and looks up each of them once
    #: or more: as many lookups again are repeats.
    places = torch.randperm(table_rows, generator=source)[: touched + rank]
    again = torch.randint(len(places), places.shape, generator=source)
    lookups = torch.cat([places, places[again]]).to(w.device)
    # Whole numbers: their sums do not round.
    errors = (w.randn(len(lookups), width, seed=rank) * 2**30).round()
    return errors, lookups


def reference(w: World, touched: int, table_rows: int, width: int) -> Tensor:
    """Autograd's dense gradient of the table, of all ranks' lookups."""
    table = torch.zeros(table_rows, width, dtype=torch.double)
    table = table.to(w.device).requires_grad_()
    for rank in range(w.size):
        errors, lookups = samples(w, rank, touched, table_rows, width)
        F.embedding(lookups, table).backward(errors)
    assert table.grad is not None
    return table.grad


def main(
    w: World, *, touched: int = 40, table_rows: int = 2000, width: int = 16
) -> None:
    most = touched + w.size - 1
    said = f"{table_rows} rows: the last of {w.size} ranks touches {most}"
    w.require(touched > 0 and most <= table_rows, said)
    sizes = (touched, table_rows, width)
    errors, lookups = samples(w, w.rank, *sizes)
    with meter() as pairs:
        with span("compress", cost=1):
            sent = compress(errors, lookups)
        rows, places = sum_of_all(*sent)
    with meter() as dense:
        table = all_reduce_table(errors, lookups, table_rows)
    total = torch.zeros_like(table).index_copy(0, places.long(), rows)
    truth = partial(reference, w, *sizes)
    w.check("sum", total, truth, slack=0)
    w.check("dense", table, truth, slack=0)
    w.check_same("same", [rows, places])
    wins = int(pairs.bytes_sent < dense.wire)
    given = {"itemsize": errors.element_size()}
    report(w, given=given, bytes_sent=pairs.bytes_sent, wins=wins)


if __name__ == "__main__":
    with world() as w:
        main(w)
