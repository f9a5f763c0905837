"""All-to-all: every rank has something for every other; a transpose.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.collective.all_to_all

Source: Thakur et al. 2005 (pairwise exchange).

A matrix is cut by rows. Cut each part by columns too, and send block (r, q)
from rank r to rank q: now the matrix is cut by columns.

    before                   after
    rank 0   00 01 02        rank 0   00 10 20
    rank 1   10 11 12        rank 1   01 11 21
    rank 2   20 21 22        rank 2   02 12 22

In round k a rank sends to the one k places on and receives from the one k
places back: every rank sends one block and takes one, in all p-1 rounds.
Unlike an all-reduce, nothing is added on the way and nothing is sent twice.
Done twice it is the identity: so tokens find their way to the experts, rows
to the embedding tables, and both find their way home again.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world

ROWS, COLUMNS = 1031, 1033  # primes: no number of ranks divides them


def all_to_all(blocks: list[Tensor], into: list[Tensor]) -> None:
    """Block q goes to rank q; what rank q has for us comes into place q."""
    r, p = dist.get_rank(), dist.get_world_size()
    into[r].copy_(blocks[r])
    for k in range(1, p):
        to, source = (r + k) % p, (r - k) % p
        with span("exchange", label=f"{r} to {to}"):
            pair = [
                dist.P2POp(dist.isend, blocks[to], to),
                dist.P2POp(dist.irecv, into[source], source),
            ]
            for work in dist.batch_isend_irecv(pair):
                work.wait()


def transpose(part: Tensor, rows: int) -> Tensor:
    """From my rows of a matrix to my rows of its transpose."""
    r, p = dist.get_rank(), dist.get_world_size()
    #: Copies: a block of columns is not contiguous, and messages must be.
    blocks = [b.t().contiguous() for b in part.tensor_split(p, dim=1)]
    heights = [len(t) for t in torch.arange(rows).tensor_split(p)]
    into = [part.new_empty(len(blocks[r]), h) for h in heights]
    all_to_all(blocks, into)
    return torch.cat(into, dim=1)


def reference(w: World) -> Tensor:
    """Those rows of the transpose that this rank should hold."""
    whole = w.randn(ROWS, COLUMNS, of_rank=0)
    return whole.t().tensor_split(w.size)[w.rank]


def main(w: World) -> None:
    whole = w.randn(ROWS, COLUMNS, of_rank=0)
    part = whole.tensor_split(w.size)[w.rank]
    with meter() as moved:
        once = transpose(part, ROWS)
    twice = transpose(once, COLUMNS)
    w.check("transpose", once, lambda: reference(w), slack=0)
    w.check("identity", twice, lambda: part, slack=0)
    given = {"n": ROWS, "m": COLUMNS, "b": 8}
    report(w, given=given, bytes_sent=moved.bytes_sent)


if __name__ == "__main__":
    with world() as w:
        main(w)
