"""Hierarchical all-reduce: sum inside the node first, so less goes between.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.collective.hierarchical

Arrange the ranks in a table: a row is a node, whose links are fast, and a
column has one rank of every node, across slow links.

    1 inside    reduce-scatter along the row: each rank owns one chunk
    2 between   all-reduce of that chunk along the column
    3 inside    all-gather along the row

Only a chunk ever leaves the node: with c ranks in each of g nodes a rank
sends 2(c-1)/c of the tensor inside and 2(g-1)/g of a c-th of it between.
All columns work at once, so all ranks of a node share its uplink.

Each of the three is a ring, or half of one: a ring all-reduce is a
reduce-scatter followed by an all-gather.

Source: Mikami et al. 2018.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world


def all_reduce(x: Tensor, row: list[int], column: list[int]) -> None:
    """Sum x over all ranks, in place; row and column cross at this rank."""
    if not x.is_contiguous():
        raise ValueError(f"strides {x.stride()}: messages must be contiguous")
    #: Views of x: what is summed in a chunk is summed in x.
    chunk = x.view(-1).tensor_split(len(row))
    with span("inside: reduce"):
        mine = reduce_scatter(chunk, row)
    #: The same chunk is owned by the same place in every node, so a column
    #: sums one chunk, and only that chunk crosses the slow links.
    part = mine.tensor_split(len(column))
    with span("between"):
        reduce_scatter(part, column)
        all_gather(part, column)
    with span("inside: gather"):
        all_gather(chunk, row)


def reduce_scatter(chunk: tuple[Tensor, ...], ring: list[int]) -> Tensor:
    """Pass partial sums round the ring; return the chunk finished here."""
    i, m = ring.index(dist.get_rank()), len(ring)
    #: One buffer for all rounds: fresh memory costs more than the additions.
    arrived = torch.empty_like(chunk[0])
    into = chunk[i]
    for k in range(m - 1):
        #: Pass on the chunk just added to, and add to the one before it.
        outgoing, into = into, chunk[(i - k - 1) % m]
        pass_on(outgoing, arrived[: len(into)], ring)
        into.add_(arrived[: len(into)])
    #: Added to last: begun at place i+1, this chunk has been everywhere.
    return into


def all_gather(chunk: tuple[Tensor, ...], ring: list[int]) -> None:
    """Pass finished chunks round the ring."""
    i, m = ring.index(dist.get_rank()), len(ring)
    for k in range(m - 1):
        pass_on(chunk[(i - k + 1) % m], chunk[(i - k) % m], ring)


def pass_on(outgoing: Tensor, incoming: Tensor, ring: list[int]) -> None:
    """Send to the next of the ring while receiving from the one before."""
    i = ring.index(dist.get_rank())
    #: One batch: as two separate calls, NCCL would run them in order and
    #: every rank would wait in its send.
    pair = [
        dist.P2POp(dist.isend, outgoing, ring[(i + 1) % len(ring)]),
        dist.P2POp(dist.irecv, incoming, ring[i - 1]),
    ]
    for work in dist.batch_isend_irecv(pair):
        work.wait()


def nodes_of(p: int) -> int:
    """Nodes to pretend: the largest divisor of p up to its square root."""
    return max(g for g in range(1, p + 1) if p % g == 0 and g * g <= p)


def row_and_column(r: int, p: int) -> tuple[list[int], list[int]]:
    """The ranks of this rank's node, and its counterparts in all nodes."""
    table = torch.arange(p).view(nodes_of(p), -1)
    #: Neighbors in rank are neighbors in a node, as torchrun numbers them.
    node, place = divmod(r, table.shape[1])
    return table[node].tolist(), table[:, place].tolist()


def reference(w: World, elements: int) -> Tensor:
    """The same sum on one process."""
    every = [w.randn(elements, seed=r) for r in range(w.size)]
    return torch.stack(every).sum(0)


def main(w: World, *, elements: int = 100_003) -> None:
    row, column = row_and_column(w.rank, w.size)
    #: A prime: no number of ranks divides it, so the chunks are uneven.
    x = w.randn(elements, seed=w.rank)
    with meter() as moved:
        all_reduce(x, row, column)
    # Another order of additions: each of p may round.
    w.check("sum", x, lambda: reference(w, elements), slack=1)
    w.check_same("same", x)
    inside = sum(moved.sent_to.get(q, 0) for q in row)
    between = moved.bytes_sent - inside
    given = {"itemsize": x.element_size(), "node_size": len(row)}
    report(w, given=given, nodes=len(column), inside=inside, between=between)


if __name__ == "__main__":
    with world() as w:
        main(w)
