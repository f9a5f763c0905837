"""Halving and doubling: the ring's bytes in 2 lg p rounds instead of 2(p-1).

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.collective.halving_doubling

Source: Rabenseifner 2004; Thakur et al. 2005.

Partners swap halves. With the rank at distance d a rank keeps one half of
what it has, sends the other, and adds what it gets. The halves shrink until
each rank owns one finished chunk; then the way back doubles them again.

    4 ranks     rank 0      rank 1      rank 2      rank 3
    halve, 2    0 1 . .     0 1 . .     . . 2 3     . . 2 3
    halve, 1    0 . . .     . 1 . .     . . 2 .     . . . 3
    double, 1   0 1 . .     0 1 . .     . . 2 3     . . 2 3
    double, 2   0 1 2 3     0 1 2 3     0 1 2 3     0 1 2 3

Half the tensor, then a quarter, an eighth: the sizes add up to what a ring
sends, while the number of rounds is a logarithm. That needs a power of two.
Of other numbers the ranks beyond it are folded: such a rank gives its whole
tensor to a partner, stands aside, and gets the whole result in the end.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world

SIZE = 100_003  # prime: no number of ranks divides it


def all_reduce(x: Tensor) -> None:
    """Sum x over all ranks, in place."""
    r, p = dist.get_rank(), dist.get_world_size()
    core = 1 << p.bit_length() - 1  # the largest power of two up to p
    if r >= core:
        with span("fold", label=r):
            dist.send(x, r - core)
        with span("unfold", label=r):
            dist.recv(x, r - core)
        return
    if r + core < p:
        with span("fold", label=r + core):
            folded = torch.empty_like(x)
            dist.recv(folded, r + core)
            x.add_(folded)
    halve_and_double(x, r, core)
    if r + core < p:
        with span("unfold", label=r + core):
            dist.send(x, r + core)


def halve_and_double(x: Tensor, r: int, core: int) -> None:
    """The same among the first `core` ranks, a power of two."""
    flat, size = x.view(-1), x.numel() // core

    def chunks(first: int, count: int) -> Tensor:
        #: All chunks are of one size; the last one takes what is left over.
        end = (first + count) * size if first + count < core else len(flat)
        return flat[first * size : end]

    distances = [1 << k for k in range(core.bit_length() - 1)]
    #: One buffer for all rounds: fresh memory costs more than the additions.
    arrived = torch.empty_like(chunks(core // 2, core - core // 2))
    for d in reversed(distances):
        keep, give = r & -d, (r ^ d) & -d  # first chunks of the two halves
        with span("halve", label=d):
            kept = chunks(keep, d)
            swap(chunks(give, d), arrived[: len(kept)], r ^ d)
            kept.add_(arrived[: len(kept)])
    for d in distances:
        have, want = r & -d, (r ^ d) & -d
        with span("double", label=d):
            swap(chunks(have, d), chunks(want, d), r ^ d)


def swap(outgoing: Tensor, incoming: Tensor, partner: int) -> None:
    """Send to the partner while receiving from it."""
    pair = [
        dist.P2POp(dist.isend, outgoing, partner),
        dist.P2POp(dist.irecv, incoming, partner),
    ]
    for work in dist.batch_isend_irecv(pair):
        work.wait()


def reference(w: World) -> Tensor:
    """The same sum on one process."""
    every = [w.randn(SIZE, of_rank=r) for r in range(w.size)]
    return torch.stack(every).sum(0)


def main(w: World) -> None:
    x = w.randn(SIZE)
    #: NCCL wants every rank in a group's first batch; folded ones have none.
    dist.barrier()
    with meter() as moved:
        all_reduce(x)
    # Another order of additions: each of p may round.
    w.check("sum", x, lambda: reference(w), slack=1)
    w.check_same("same", x)
    report(w, given={"n": SIZE, "b": 8}, bytes_sent=moved.bytes_sent)


if __name__ == "__main__":
    with world() as w:
        main(w)
