"""Tree all-reduce: sums climb a tree to its root, and the result comes down.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.collective.tree_all_reduce

Fold the ranks in half: the upper half sends to the lower half, which adds.
Fold the lower half again, until rank 0 has the sum. The same messages in the
opposite direction and order bring it back to everyone.

    distance 4    4 to 0    5 to 1    6 to 2    7 to 3
    distance 2    2 to 0    3 to 1
    distance 1    1 to 0

This is a binomial tree: a rank's parent is its number without the highest
bit. Any number of ranks will do; a partner that does not exist is left out.

Each of the p-1 edges carries the tensor once up and once down. That makes
2(p-1) tensors in all, as few as a ring sends, but in 2 ceil(lg p) rounds
instead of 2(p-1).

The load is uneven: half of the ranks are leaves and send one tensor, while
the root receives ceil(lg p) of them and then sends as many.

Source: Thakur et al. 2005 (binomial tree); Iandola et al. 2016 (FireCaffe).
"""

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world


def all_reduce(x: Tensor) -> None:
    """Sum x over all ranks, in place."""
    if not x.is_contiguous():
        raise ValueError(f"strides {x.stride()}: messages must be contiguous")
    r = dist.get_rank()
    parent, children = tree(r, dist.get_world_size())
    arrived = torch.empty_like(x)
    #: The farthest child has the smallest subtree and is ready first.
    for child in reversed(children):
        with span("reduce", label=child):
            dist.recv(arrived, child)
            x.add_(arrived)
    #: What a rank sends up is the sum of its subtree. Until the result comes
    #: down it can only wait: most of the time, most ranks of a tree are idle.
    if r > 0:
        with span("reduce", label=r):
            dist.send(x, parent)
        #: The result replaces the partial sum, so that all ranks hold the
        #: root's bits.
        with span("broadcast", label=r):
            dist.recv(x, parent)
    #: Down in the opposite order: the largest subtree has the longest way.
    for child in children:
        with span("broadcast", label=child):
            dist.send(x, child)


def tree(r: int, p: int) -> tuple[int, list[int]]:
    """The parent of rank r, and its children, nearest first."""
    bits = r.bit_length()
    #: Without its highest bit a number is smaller, so every way leads to 0.
    parent = r - (1 << bits >> 1)
    #: A child has one more bit, above all of the rank's own.
    above = [r + (1 << k) for k in range(bits, p.bit_length())]
    return parent, [child for child in above if child < p]


def reference(w: World, elements: int) -> Tensor:
    """The sum on one process, which folds the list of tensors in half."""
    sums = [w.randn(elements, seed=r) for r in range(w.size)]
    while len(sums) > 1:
        half = 1
        while 2 * half < len(sums):
            half *= 2
        for i, upper in enumerate(sums[half:]):
            sums[i] = sums[i] + upper
        del sums[half:]
    return sums[0]


def main(w: World, *, elements: int = 100_003) -> None:
    x = w.randn(elements, seed=w.rank)
    with meter() as moved:
        all_reduce(x)
    #: Slack 0: the order of additions is known, so every bit is, too.
    w.check("sum", x, lambda: reference(w, elements), slack=0)
    w.check_same("same", x)
    counts = {"bytes_sent": moved.bytes_sent}
    if not w.dry:
        total = torch.tensor(moved.bytes_sent, device=w.device)
        dist.all_reduce(total)
        counts["total"] = int(total)
    report(w, given={"itemsize": x.element_size()}, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
