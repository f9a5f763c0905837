"""Halving and doubling: the ring's bytes in 2 lg p rounds instead of 2(p-1).

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.collective.halving_doubling

Partners swap halves. With the rank at distance d a rank keeps one half of
what it has, sends the other, and adds what it gets. The halves shrink until
each rank owns one finished chunk; then the same exchanges in reverse order
double them again.

    4 ranks     rank 0      rank 1      rank 2      rank 3
    halve, 2    0 1 . .     0 1 . .     . . 2 3     . . 2 3
    halve, 1    0 . . .     . 1 . .     . . 2 .     . . . 3
    double, 1   0 1 . .     0 1 . .     . . 2 3     . . 2 3
    double, 2   0 1 2 3     0 1 2 3     0 1 2 3     0 1 2 3

Half the tensor, then a quarter, then an eighth: the sizes add up to what a
ring sends, while the number of rounds is a logarithm. That needs a power of
two. For other p, the extra ranks are folded in first: each gives its whole
tensor to a partner, stands aside, and gets the whole result in the end.

Source: Rabenseifner 2004; Thakur et al. 2005.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world


def all_reduce(x: Tensor) -> None:
    """Sum x over all ranks, in place."""
    if not x.is_contiguous():
        raise ValueError(f"strides {x.stride()}: messages must be contiguous")
    r, p = dist.get_rank(), dist.get_world_size()
    core = 1 << p.bit_length() - 1  # the largest power of two up to p
    #: Ranks beyond the power of two send everything and wait for the result.
    if r >= core:
        with span("fold", label=r):
            dist.send(x, r - core)
        with span("unfold", label=r):
            dist.recv(x, r - core)
        return
    #: The first p - core ranks each stand for two, themselves and a folded
    #: one: they send up to 1.5 times what the others send.
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
    flat = x.view(-1)
    size = len(flat) // core

    def chunks(first: int, count: int) -> Tensor:
        #: All chunks have one size; the last one takes what is left over.
        end = (first + count) * size if first + count < core else len(flat)
        return flat[first * size : end]

    distances = [1 << k for k in range(core.bit_length() - 1)]
    #: One buffer for all rounds: fresh memory costs more than the additions.
    arrived = torch.empty_like(chunks(core // 2, core - core // 2))
    for d in reversed(distances):
        #: Clearing the bits below d gives the first chunk of a window of d;
        #: flipping bit d gives the partner's, the other half.
        keep, give = r & -d, (r ^ d) & -d
        with span("halve", label=d):
            kept = chunks(keep, d)
            swap(chunks(give, d), arrived[: len(kept)], r ^ d)
            kept.add_(arrived[: len(kept)])
    #: Back the same way: what a rank has finished, its partner still wants.
    for d in distances:
        have, want = r & -d, (r ^ d) & -d
        with span("double", label=d):
            swap(chunks(have, d), chunks(want, d), r ^ d)


def swap(outgoing: Tensor, incoming: Tensor, partner: int) -> None:
    """Send to the partner while receiving from it."""
    #: One batch, or both partners would wait in their sends.
    pair = [
        dist.P2POp(dist.isend, outgoing, partner),
        dist.P2POp(dist.irecv, incoming, partner),
    ]
    for work in dist.batch_isend_irecv(pair):
        work.wait()


def reference(w: World, elements: int) -> Tensor:
    """The same sum on one process."""
    every = [w.randn(elements, seed=r) for r in range(w.size)]
    return torch.stack(every).sum(0)


def main(w: World, *, elements: int = 100_003) -> None:
    #: A prime: no number of ranks divides it, so the last chunk is longer.
    x = w.randn(elements, seed=w.rank)
    # NCCL wants every rank in a group's first batch; folded ones have none.
    dist.barrier()
    with meter() as moved:
        all_reduce(x)
    # Another order of additions: each of p may round.
    w.check("sum", x, lambda: reference(w, elements), slack=1)
    w.check_same("same", x)
    given = {"itemsize": x.element_size()}
    report(w, given=given, bytes_sent=moved.bytes_sent)


if __name__ == "__main__":
    with world() as w:
        main(w)
