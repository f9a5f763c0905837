"""Recursive doubling: all ranks have the sum after lg p rounds, the fewest.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.collective.recursive_doubling

In each round a rank swaps its whole partial sum with a partner, and both add.
The partner is one rank away, then two, then four, so the number of ranks in a
partial sum doubles every time.

    in the sum of   rank 0      rank 1      rank 2      rank 3
    at first        0 . . .     . 1 . .     . . 2 .     . . . 3
    distance 1      0 1 . .     0 1 . .     . . 2 3     . . 2 3
    distance 2      0 1 2 3     0 1 2 3     0 1 2 3     0 1 2 3

No all-reduce needs fewer rounds: in one round, the number of ranks in a sum
can at most double. The price is bandwidth: each rank sends the whole tensor
lg p times, where a ring sends it less than twice, in 2(p-1) rounds.

Doubling needs a power of two. For other p, the extra ranks are folded in
first: each gives its tensor to a partner, stands aside, and gets the result
in the end, which takes two more rounds.

Source: Thakur et al. 2005; Rabenseifner 2004.
"""

import math

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world


def all_reduce(x: Tensor) -> None:
    """Sum x over all ranks, in place."""
    if not x.is_contiguous():
        raise ValueError(f"strides {x.stride()}: messages must be contiguous")
    r, p = dist.get_rank(), dist.get_world_size()
    rounds = p.bit_length() - 1
    core = 1 << rounds  # the largest power of two up to p
    #: Ranks beyond the power of two hand in their tensor and wait.
    if r >= core:
        with span("fold", label=r):
            dist.send(x, r - core)
        with span("unfold", label=r):
            dist.recv(x, r - core)
        return
    #: Nothing is cut into chunks, so the buffer is as large as the tensor.
    arrived = torch.empty_like(x)
    #: A rank that takes in an extra one works for two, and sends one more
    #: tensor than the others: the result, in the end.
    if r + core < p:
        with span("fold", label=r + core):
            dist.recv(arrived, r + core)
            x.add_(arrived)
    #: Flipping one bit of a rank's number gives its partner, and flipping it
    #: again leads back: the two name each other, and nobody is left out.
    for k in range(rounds):
        distance = 1 << k
        with span("double", label=distance):
            swap(x, arrived, r ^ distance)
            #: One adds a + b and the other b + a, which is the same to the
            #: last bit (unless both are NaN: the first one is kept). So
            #: partners stay equal, and in the end all ranks are.
            x.add_(arrived)
    if r + core < p:
        with span("unfold", label=r + core):
            dist.send(x, r + core)


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
    """The sum on one process, which adds in pairs: 0 + 1, 2 + 3, and so on."""
    sums = [w.randn(elements, seed=r) for r in range(w.size)]
    power = 2 ** int(math.log2(w.size))
    for i, extra in enumerate(sums[power:]):
        sums[i] = sums[i] + extra
    del sums[power:]
    while len(sums) > 1:
        sums = [sums[i] + sums[i + 1] for i in range(0, len(sums), 2)]
    return sums[0]


def main(w: World, *, elements: int = 100_003) -> None:
    x = w.randn(elements, seed=w.rank)
    # NCCL wants every rank in a group's first batch; folded ones have none.
    dist.barrier()
    with meter() as moved:
        all_reduce(x)
    #: Slack 0: the order of additions is known, so every bit is, too.
    w.check("sum", x, lambda: reference(w, elements), slack=0)
    w.check_same("same", x)
    given = {"itemsize": x.element_size()}
    report(w, given=given, bytes_sent=moved.bytes_sent)


if __name__ == "__main__":
    with world() as w:
        main(w)
