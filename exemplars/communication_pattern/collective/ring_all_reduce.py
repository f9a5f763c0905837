"""Ring all-reduce: every rank ends with the sum, sending at most 2 tensors.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.collective.ring_all_reduce

Source: Patarasuk and Yuan 2009.

Cut the tensor into p chunks and lay the ranks on a ring. For p-1 rounds every
rank passes a partial sum to its right; now each rank owns one finished chunk.
For p-1 more rounds the finished chunks go round.

    round k   send           receive into
    reduce    chunk r-k      chunk r-k-1   (add)
    gather    chunk r-k+1    chunk r-k     (keep)

Each link carries one chunk in every round, so a rank sends all chunks but
r+1, then all but r+2: about 2(p-1)/p of the tensor, nearly the same for 4
ranks as for 4000. What grows with p is the number of rounds, 2(p-1).
"""

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world

SIZE = 100_003  # prime: no number of ranks divides it, chunks are uneven


def ring_all_reduce(x: Tensor) -> None:
    """Sum x over all ranks, in place."""
    r, p = dist.get_rank(), dist.get_world_size()
    #: Views, not copies: what is added into a chunk is added into x. The
    #: first n mod p chunks are one element longer.
    chunk = x.view(-1).tensor_split(p)
    #: One buffer for all rounds: fresh memory costs more than the additions.
    arrived = torch.empty_like(chunk[0])
    for k in range(p - 1):
        into = chunk[(r - k - 1) % p]
        with span("reduce", label=(r - k) % p):
            pass_right(chunk[(r - k) % p], arrived[: len(into)])
            into.add_(arrived[: len(into)])
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


def reference(w: World) -> Tensor:
    """The same sum on one process."""
    every = [w.randn(SIZE, of_rank=r) for r in range(w.size)]
    return torch.stack(every).sum(0)


def main(w: World) -> None:
    x = w.randn(SIZE)
    with meter() as moved:
        ring_all_reduce(x)
    # The ring adds in another order: each of p additions may round.
    w.check("sum", x, lambda: reference(w), slack=1)
    w.check_same("same", x)
    report(w, given={"n": SIZE, "b": 8}, bytes_sent=moved.bytes_sent)


if __name__ == "__main__":
    with world() as w:
        main(w)
