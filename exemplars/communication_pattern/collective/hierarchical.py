"""Hierarchical all-reduce: sum inside the node first, so less goes between.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.collective.hierarchical

Source: Mikami et al. 2018.

Ranks stand in a table: a row is a node, whose links are fast, and a column
has one rank of every node, across slow links.

    1 inside    reduce-scatter along the row: each rank owns one chunk
    2 between   all-reduce of that chunk along the column
    3 inside    all-gather along the row

Only a chunk ever leaves the node: with c ranks in each of g nodes a rank
sends 2(c-1)/c of the tensor inside and 2(g-1)/g of a c-th of it between.
All columns work at once, so the node's way out is used by all its ranks.

Each of the three is a ring, or half of one: the first two lines of a ring
all-reduce are reduce-scatter, its last are all-gather.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world

SIZE = 100_003  # prime: chunks are uneven


def nodes_of(p: int) -> int:
    """Nodes to pretend: the largest divisor of p up to its square root."""
    return max(g for g in range(1, p + 1) if p % g == 0 and g * g <= p)


def all_reduce(x: Tensor, row: list[int], column: list[int]) -> None:
    """Sum x over all ranks, in place."""
    chunk = x.view(-1).tensor_split(len(row))
    with span("inside: reduce"):
        mine = reduce_scatter(chunk, row)
    part = mine.tensor_split(len(column))
    with span("between"):
        reduce_scatter(part, column)
        all_gather(part, column)
    with span("inside: gather"):
        all_gather(chunk, row)


def reduce_scatter(chunk: tuple[Tensor, ...], ring: list[int]) -> Tensor:
    """Partial sums go round the ring; the chunk that ends here, finished."""
    i, m = ring.index(dist.get_rank()), len(ring)
    #: One buffer for all rounds: fresh memory costs more than the additions.
    arrived = torch.empty_like(chunk[0])
    for k in range(m - 1):
        into = chunk[(i - k - 1) % m]
        pass_on(chunk[(i - k) % m], arrived[: len(into)], ring)
        into.add_(arrived[: len(into)])
    return chunk[(i + 1) % m]


def all_gather(chunk: tuple[Tensor, ...], ring: list[int]) -> None:
    """Finished chunks go round the ring."""
    i, m = ring.index(dist.get_rank()), len(ring)
    for k in range(m - 1):
        pass_on(chunk[(i - k + 1) % m], chunk[(i - k) % m], ring)


def pass_on(outgoing: Tensor, incoming: Tensor, ring: list[int]) -> None:
    """Send to the next of the ring while receiving from the one before."""
    i = ring.index(dist.get_rank())
    pair = [
        dist.P2POp(dist.isend, outgoing, ring[(i + 1) % len(ring)]),
        dist.P2POp(dist.irecv, incoming, ring[i - 1]),
    ]
    for work in dist.batch_isend_irecv(pair):
        work.wait()


def reference(w: World) -> Tensor:
    """The same sum on one process."""
    every = [w.randn(SIZE, of_rank=r) for r in range(w.size)]
    return torch.stack(every).sum(0)


def main(w: World) -> None:
    nodes = nodes_of(w.size)
    table = torch.arange(w.size).view(nodes, -1)
    node, place = divmod(w.rank, w.size // nodes)
    row, column = table[node].tolist(), table[:, place].tolist()
    x = w.randn(SIZE)
    with meter() as moved:
        all_reduce(x, row, column)
    # Another order of additions: each of p may round.
    w.check("sum", x, lambda: reference(w), slack=1)
    w.check_same("same", x)
    inside = sum(moved.sent_to.get(q, 0) for q in row)
    between = moved.bytes_sent - inside
    given = {"n": SIZE, "b": 8, "c": len(row)}
    report(w, given=given, inside=inside, between=between)


if __name__ == "__main__":
    with world() as w:
        main(w)
