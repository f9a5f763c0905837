"""Ring all-reduce: every rank ends with the sum, sending at most 2 tensors.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.collective.ring_all_reduce

Cut the tensor into p chunks and lay the ranks on a ring. For p-1 rounds every
rank passes a partial sum to its right; now each rank owns one finished chunk.
For p-1 more rounds the finished chunks go round.

    round k   send           receive into
    reduce    chunk r-k      chunk r-k-1   (add)
    gather    chunk r-k+1    chunk r-k     (keep)

Each link carries one chunk in every round, so a rank sends all chunks but
r+1, then all but r+2: about 2(p-1)/p of the tensor, nearly the same for 4
ranks as for 4000. What grows with p is the number of rounds, 2(p-1).

Source: Patarasuk and Yuan 2009.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world


def ring_all_reduce(x: Tensor) -> None:
    """Sum x over all ranks, in place."""
    if not x.is_contiguous():
        raise ValueError(f"strides {x.stride()}: messages must be contiguous")
    r, p = dist.get_rank(), dist.get_world_size()
    #: Views, not copies: what is added into a chunk is added into x. The
    #: first n mod p chunks are one element longer.
    chunk = x.view(-1).tensor_split(p)
    #: One buffer for all rounds: fresh memory costs more than the additions.
    arrived = torch.empty_like(chunk[0])
    #: Rank r passes on what it has just added to, so each chunk collects one
    #: rank's numbers per round; after p-1 rounds chunk r+1 is complete here.
    for k in range(p - 1):
        into = chunk[(r - k - 1) % p]
        with span("reduce", label=(r - k) % p):
            pass_right(chunk[(r - k) % p], arrived[: len(into)])
            into.add_(arrived[: len(into)])
    #: The same walk with finished chunks: what arrives replaces, and all
    #: ranks end with the same bits, since each chunk was added up only once.
    for k in range(p - 1):
        with span("gather", label=(r - k + 1) % p):
            pass_right(chunk[(r - k + 1) % p], chunk[(r - k) % p])


def pass_right(outgoing: Tensor, incoming: Tensor) -> None:
    """Send to the right while receiving from the left."""
    r, p = dist.get_rank(), dist.get_world_size()
    #: One batch: as two separate calls, NCCL would run them in order and
    #: every rank would wait in its send.
    pair = [
        dist.P2POp(dist.isend, outgoing, (r + 1) % p),
        dist.P2POp(dist.irecv, incoming, (r - 1) % p),
    ]
    for work in dist.batch_isend_irecv(pair):
        work.wait()


def reference(w: World, elements: int) -> Tensor:
    """The same sum on one process."""
    every = [w.randn(elements, seed=r) for r in range(w.size)]
    return torch.stack(every).sum(0)


def main(w: World, *, elements: int = 100_003) -> None:
    #: A prime: no number of ranks divides it, so the chunks are uneven.
    x = w.randn(elements, seed=w.rank)
    with meter() as moved:
        ring_all_reduce(x)
    #: The ring adds in another order than one process: each of p additions
    #: may round, so the sum is close and not equal.
    w.check("sum", x, lambda: reference(w, elements), slack=1)
    w.check_same("same", x)
    given = {"itemsize": x.element_size()}
    report(w, given=given, bytes_sent=moved.bytes_sent)


if __name__ == "__main__":
    with world() as w:
        main(w)
