"""Reduce-scatter and all-gather: an all-reduce in two halves, with a pause.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.collective.reduce_scatter_all_gather

The first half leaves each rank with one shard of the sum. The second half
gives all shards to everyone.

                      rank 0        rank 1        rank 2
    at first          a0 a1 a2      b0 b1 b2      c0 c1 c2
    reduce-scatter    a0+b0+c0      a1+b1+c1      a2+b2+c2     = s0, s1, s2
    all-gather        s0 s1 s2      s0 s1 s2      s0 s1 s2

In each half a rank sends (p-1)/p of the tensor, so the two cost what a ring
all-reduce costs. But between them the sum exists only once, cut into p
shards: whatever is done there, dividing by p or a step of the optimizer, is
done once and not p times, and needs 1/p of the memory. ZeRO and FSDP live in
this pause. They also use each half alone: gather weights, scatter gradients.

Here shards go straight to their owners. In round k each rank sends to the
rank k places to its right and receives from the rank k places to its left, so
no rank ever receives from two at once.

Source: Thakur et al. 2005 (pairwise exchange); Rabenseifner 2004.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world


def reduce_scatter(x: Tensor) -> Tensor:
    """This rank's shard of the sum of x over all ranks."""
    shard = shards(x)
    #: A copy: a view would keep the memory of the whole tensor alive.
    mine = shard[dist.get_rank()].clone()
    arrived = torch.empty_like(mine)
    #: Everyone sends p-1 different pieces, each to the rank that owns it.
    for right, left in partners():
        with span("scatter", label=right):
            exchange(shard[right], right, arrived, left)
            mine.add_(arrived)
    return mine


def all_gather(mine: Tensor, x: Tensor) -> None:
    """Fill x with the shards of all ranks."""
    shard = shards(x)
    shard[dist.get_rank()].copy_(mine)
    #: The same walk with one piece, and what arrives is kept, not added.
    #: The gradient of one half is the other half, so training needs both.
    for right, left in partners():
        with span("gather", label=left):
            exchange(mine, right, shard[left], left)


def shards(x: Tensor) -> tuple[Tensor, ...]:
    """One shard of x for each rank; the first n mod p are one longer."""
    if not x.is_contiguous():
        raise ValueError(f"strides {x.stride()}: messages must be contiguous")
    #: Uneven shards need no padding, but the library's fastest calls do:
    #: reduce_scatter_tensor takes equal shards only.
    return x.view(-1).tensor_split(dist.get_world_size())


def partners() -> Iterator[tuple[int, int]]:
    """In each round, the rank to send to and the rank to receive from."""
    r, p = dist.get_rank(), dist.get_world_size()
    for k in range(1, p):
        yield (r + k) % p, (r - k) % p


def exchange(outgoing: Tensor, to: int, incoming: Tensor, source: int) -> None:
    """Send to one rank while receiving from another."""
    #: One batch, or every rank would wait in its send.
    pair = [
        dist.P2POp(dist.isend, outgoing, to),
        dist.P2POp(dist.irecv, incoming, source),
    ]
    for work in dist.batch_isend_irecv(pair):
        work.wait()


def reference(w: World, elements: int) -> Tensor:
    """The sum on one process."""
    every = [w.randn(elements, seed=r) for r in range(w.size)]
    return torch.stack(every).sum(0)


def main(w: World, *, elements: int = 100_003) -> None:
    #: A prime: no number of ranks divides it, so the shards are uneven.
    x = w.randn(elements, seed=w.rank)
    with meter() as scattered:
        shard = reduce_scatter(x)
    held = shard.untyped_storage().nbytes()
    # Another order of additions: each of p may round.
    w.check(
        "shard",
        shard,
        lambda: reference(w, elements).tensor_split(w.size)[w.rank],
        slack=1,
    )
    #: The pause: each element of the sum is divided by one rank alone.
    shard.div_(w.size)
    with meter() as gathered:
        all_gather(shard, x)
    w.check("mean", x, lambda: reference(w, elements) / w.size, slack=1)
    w.check_same("same", x)
    report(
        w,
        given={"itemsize": x.element_size()},
        held=held,
        scatter_bytes=scattered.bytes_sent,
        gather_bytes=gathered.bytes_sent,
    )


if __name__ == "__main__":
    with world() as w:
        main(w)
