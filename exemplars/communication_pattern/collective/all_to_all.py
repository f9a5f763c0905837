"""All-to-all: every rank has something for every other; a transpose.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.collective.all_to_all

A matrix is cut by rows. Cut each part by columns too, and send block (r, q)
from rank r to rank q: now the matrix is cut by columns.

    before                   after
    rank 0   00 01 02        rank 0   00 10 20
    rank 1   10 11 12        rank 1   01 11 21
    rank 2   20 21 22        rank 2   02 12 22

In round k each rank sends to the rank k places on and receives from the rank
k places back, so every rank sends one block and receives one in each of p-1
rounds. Unlike in an all-reduce, nothing is added on the way and nothing is
sent twice. Done twice it is the identity: tokens reach their experts, rows
reach their embedding tables, and both come home the same way.

Source: Thakur et al. 2005 (pairwise exchange).
"""

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world


def all_to_all(blocks: list[Tensor], into: list[Tensor]) -> None:
    """Send block q to rank q; receive rank q's block for us into place q."""
    r, p = dist.get_rank(), dist.get_world_size()
    #: What a rank has for itself never travels.
    into[r].copy_(blocks[r])
    #: Round k pairs every rank with the one k places on: each rank sends one
    #: block and receives one, so no link is used twice in a round.
    for k in range(1, p):
        to, source = (r + k) % p, (r - k) % p
        with span("exchange", label=f"{r} to {to}"):
            #: One batch: as two separate calls, NCCL would run them in order
            #: and every rank would wait in its send.
            pair = [
                dist.P2POp(dist.isend, blocks[to], to),
                dist.P2POp(dist.irecv, into[source], source),
            ]
            for work in dist.batch_isend_irecv(pair):
                work.wait()


def transpose(part: Tensor, rows: int) -> Tensor:
    """From my part of a matrix's rows to my part of its transpose's."""
    r, p = dist.get_rank(), dist.get_world_size()
    #: Copies: a block of columns is not contiguous, and messages must be.
    blocks = [b.t().contiguous() for b in part.tensor_split(p, dim=1)]
    #: Every rank can work out how many rows each of the others holds, so
    #: sizes need not be exchanged first.
    heights = [len(t) for t in torch.arange(rows).tensor_split(p)]
    into = [part.new_empty(len(blocks[r]), h) for h in heights]
    all_to_all(blocks, into)
    #: By sender, not by arrival: block q holds the columns of rank q.
    return torch.cat(into, dim=1)


def reference(w: World, rows: int, columns: int) -> Tensor:
    """Those rows of the transpose that this rank should hold."""
    whole = w.randn(rows, columns, seed=0)
    return whole.t().tensor_split(w.size)[w.rank]


def main(w: World, *, rows: int = 1031, columns: int = 1033) -> None:
    #: Both are primes: no number of ranks divides them, blocks are uneven.
    whole = w.randn(rows, columns, seed=0)
    part = whole.tensor_split(w.size)[w.rank]
    with meter() as moved:
        once = transpose(part, rows)
    twice = transpose(once, columns)
    w.check("transpose", once, lambda: reference(w, rows, columns), slack=0)
    w.check("identity", twice, lambda: part, slack=0)
    given = {"itemsize": part.element_size()}
    report(w, given=given, bytes_sent=moved.bytes_sent)


if __name__ == "__main__":
    with world() as w:
        main(w)
