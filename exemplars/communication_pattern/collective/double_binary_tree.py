"""Double binary tree: two trees share the load, so no rank sends over 2n.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.collective.double_binary_tree

Half of the ranks of a binary tree are leaves, which have little to do. So use
two trees, the second numbered backwards: a rank that is inside one tree is a
leaf of the other. Each tree sums one half of the tensor.

    first half      0           second half      5
                  1   2                        4   3
                 3 4 5                        2 1 0

Inside a tree, a rank sends its half up once and down twice; in the other tree
it sends the other half up: 2n elements in all, however many ranks there are.
The root of a binomial tree sends n lg p.

The halves are cut into k pieces, which follow one another through the trees.
A step takes two rounds: odd ranks send up the first tree and then up the
second, even ranks the other way round. Of two siblings one is odd and one is
even, so in each round a rank sends at most one piece and receives at most
one. There are k + lg p - 1 steps up, and as many down:

    4(k + lg p - 1) rounds of n / 2k elements    (lg p rounded down)

With many pieces that is the time of 2n elements, the bandwidth of a ring;
with few pieces it is a logarithm of rounds, the latency of a tree.

Source: Sanders, Speck and Träff 2009; in NCCL since version 2.4.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world

Pieces = list[tuple[Tensor, ...]]  # of each half


class Message(NamedTuple):
    """One piece that one rank sends to another."""

    source: int
    to: int
    tree: int
    piece: int


def all_reduce(x: Tensor, pieces: int) -> None:
    """Sum x over all ranks, in place."""
    if not x.is_contiguous():
        raise ValueError(f"strides {x.stride()}: messages must be contiguous")
    r, p = dist.get_rank(), dist.get_world_size()
    sums, arrived = cut(x, pieces), cut(torch.empty_like(x), pieces)
    #: One schedule for all: a rank picks its own messages, and sits out the
    #: rounds in which it has none.
    every = climb(p, pieces)
    mine = [[m for m in some if r in (m.source, m.to)] for some in every]
    rounds = [messages for messages in mine if messages]
    for messages in rounds:
        with span("reduce", label=messages[0].piece):
            exchange(messages, sums, arrived)
            for m in messages:
                if m.to == r:
                    sums[m.tree][m.piece].add_(arrived[m.tree][m.piece])
    #: Backwards in time and in direction, the same rounds are a broadcast.
    for messages in reversed(rounds):
        with span("broadcast", label=messages[0].piece):
            back = [m._replace(source=m.to, to=m.source) for m in messages]
            exchange(back, sums, sums)


def cut(x: Tensor, pieces: int) -> Pieces:
    """Two halves, one for each tree, in pieces."""
    return [half.tensor_split(pieces) for half in x.view(-1).tensor_split(2)]


def climb(p: int, pieces: int) -> Iterator[list[Message]]:
    """The rounds in which all pieces climb to the roots of both trees."""
    levels = p.bit_length() - 1
    for step in range(pieces + levels - 1):
        #: In the first round of a step, odd ranks send up the first tree and
        #: even ranks up the second; in the second round, vice versa.
        for turn in (1, 0):
            sent = [upward(r, (r + turn) % 2, step, p) for r in range(p)]
            due = [m for m in sent if 0 <= m.piece < pieces]
            yield [m for m in due if m.source != m.to]


def upward(r: int, tree: int, step: int, p: int) -> Message:
    """What a rank sends to its parent in a step; a root's parent is itself."""
    place = mirror(r, tree, p)
    #: Places are numbered as in a heap: 1 and 2 below 0, 3 and 4 below 1.
    parent = mirror(max(0, place - 1) // 2, tree, p)
    #: The lowest level begins. Each level above is one step later, when it
    #: has the sum of everything below.
    height = p.bit_length() - (place + 1).bit_length()
    return Message(r, parent, tree, step - height)


def mirror(place: int, tree: int, p: int) -> int:
    """The rank at a place of a tree, or the place of a rank."""
    #: The upper half of the places are leaves. Counted backwards they are the
    #: lower half, so that no rank is inside both trees.
    return place if tree == 0 else p - 1 - place


def exchange(
    messages: list[Message], outgoing: Pieces, incoming: Pieces
) -> None:
    """One round: at most one piece leaves and at most one arrives."""
    batch = []
    for source, to, tree, piece in messages:
        if source == dist.get_rank():
            op = dist.P2POp(dist.isend, outgoing[tree][piece], to)
        else:
            op = dist.P2POp(dist.irecv, incoming[tree][piece], source)
        batch.append(op)
    #: One batch, or two ranks that swap pieces would both wait in their sends.
    for work in dist.batch_isend_irecv(batch):
        work.wait()


def reference(w: World, elements: int) -> Tensor:
    """The same sum on one process."""
    every = [w.randn(elements, seed=r) for r in range(w.size)]
    return torch.stack(every).sum(0)


def main(w: World, *, elements: int = 100_003, pieces: int = 4) -> None:
    w.require(pieces > 0, f"{pieces} pieces: use at least 1")
    x = w.randn(elements, seed=w.rank)
    # NCCL wants every rank in a group's first batch; here some sit it out.
    dist.barrier()
    with meter() as moved:
        all_reduce(x, pieces)
    # Another order of additions: each of p may round.
    w.check("sum", x, lambda: reference(w, elements), slack=1)
    w.check_same("same", x)
    counts = {"bytes_sent": moved.bytes_sent}
    if not w.dry:
        most = torch.tensor(moved.bytes_sent, device=w.device)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        counts["busiest"] = int(most)
    report(w, given={"itemsize": x.element_size()}, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
