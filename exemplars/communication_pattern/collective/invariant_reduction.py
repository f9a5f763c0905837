"""Invariant reduction: the same sum, bit for bit, on any number of ranks.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.collective.invariant_reduction

Rounded sums depend on their order. An all-reduce adds what each rank has
summed, so its last bits change with the number of ranks. Here the order is
fixed before anyone knows p: a binary tree over the leaves, the partial sums
of which there are as many on 1 rank as on 1000.

    leaves     0   1   2   3   4   5   6   7        on 3 ranks
    size 1     0+1     2+3     4+5     6+7          leaf 3 travels
    size 2     0+..+3          4+..+7               leaves 6 and 7 travel
    size 4     0+.....+7                            leaves 4 to 7 travel

A rank holds a run of neighboring leaves. Each sum is made where its first
leaf is. If the second half is on another rank, its sum travels, and only
then. The result goes back down by a broadcast, so all ranks hold its bits.

Who holds a leaf decides who sends, never what is added to what. A leaf may be
the gradient of a micro-batch, or the product of one slice of a matrix: then
training and inference, cut differently, agree to the last bit.

Source: Zhang et al. 2025 (tree-based invariant kernels).
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.communication_pattern.collective.binomial_broadcast import (
    broadcast,
)
from exemplars.communication_pattern.collective.ring_all_reduce import (
    ring_all_reduce,
)
from exemplars.runtime import World, meter, report, span, world


class Node(NamedTuple):
    """A sum of two neighbors: the run from `first`, the run from `second`."""

    first: int
    second: int


def all_reduce(mine: Tensor, leaves: int) -> Tensor:
    """The sum of all leaves; `mine` are this rank's, in order, in a stack."""
    r = dist.get_rank()
    owner = owners(leaves, dist.get_world_size())
    #: By number: the sum of the run that begins there. At first, one leaf.
    here = [leaf for leaf, rank in enumerate(owner) if rank == r]
    copy = mine.clone(memory_format=torch.contiguous_format)
    sums = dict(zip(here, copy, strict=True))
    for node in tree(leaves):
        left, right = owner[node.first], owner[node.second]
        #: The sum travels only if its two halves are on different ranks: a
        #: message, or none, changes nothing in the order.
        if r == right != left:
            with span("reduce", label=node.second):
                dist.send(sums[node.second], left)
        if r == left != right:
            sums[node.second] = torch.empty_like(sums[node.first])
            with span("reduce", label=node.second):
                dist.recv(sums[node.second], right)
        #: In place, always left plus right.
        if r == left:
            sums[node.first] += sums.pop(node.second)
    #: Leaf 0 began the last sum, so rank 0, which owns it, has the result.
    total = sums[0] if r == 0 else mine.new_empty(mine.shape[1:])
    return broadcast(total, root=0)


def tree(leaves: int) -> Iterator[Node]:
    """The additions in order; neither p nor any rank is known here."""
    size = 1
    while size < leaves:
        #: Runs of this size are added to their left neighbors. A run at the
        #: end that has no partner waits for a larger one.
        for first in range(0, leaves - size, 2 * size):
            yield Node(first, first + size)
        size *= 2


def owners(leaves: int, p: int) -> list[int]:
    """The rank of each leaf: neighbors, and as evenly as possible."""
    runs = torch.arange(leaves).tensor_split(p)
    return [rank for rank, run in enumerate(runs) for _ in run]


def reference(w: World, leaves: int, elements: int) -> Tensor:
    """The sum on one process, which adds neighbors until one is left."""
    sums = [w.randn(elements, seed=leaf) for leaf in range(leaves)]
    while len(sums) > 1:
        alone = sums[len(sums) // 2 * 2 :]
        pairs = zip(sums[0::2], sums[1::2], strict=False)
        sums = [left + right for left, right in pairs] + alone
    return sums[0]


def main(w: World, *, leaves: int = 16, elements: int = 10_007) -> None:
    w.require(leaves > 7, f"{leaves} leaves: with under 8, orders may agree")
    here = torch.arange(leaves).tensor_split(w.size)[w.rank]
    every = torch.stack([w.randn(elements, seed=i) for i in range(leaves)])
    mine = every[here.to(w.device)]
    # NCCL wants every rank in a group's first message; here some wait.
    dist.barrier()
    with meter() as moved:
        total = all_reduce(mine, leaves)
    #: Slack 0: the leaves and their tree are the same for every p, so this
    #: one check on each number of ranks says that all agree.
    w.check("tree", total, lambda: reference(w, leaves, elements), slack=0)
    w.check_same("same", total)
    counts = {"bytes_sent": moved.bytes_sent}
    if not w.dry:
        #: The usual way: a rank adds up its own leaves, and a ring the rest.
        usual, alone = mine.sum(0), every.sum(0)
        ring_all_reduce(usual)
        counts["plain"] = int((usual != alone).sum())
    report(w, given={"itemsize": total.element_size()}, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
