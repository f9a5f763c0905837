"""Binomial broadcast: those who have the tensor double in every round.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.collective.binomial_broadcast

Number the ranks from the root on: the root is at place 0, the next rank at
place 1. In each round, everyone who has the tensor sends it to one more.

    distance 1    0 to 1
    distance 2    0 to 2    1 to 3
    distance 4    0 to 4    1 to 5    2 to 6    3 to 7

After k rounds 2^k places have it, so all p have it after ceil(lg p) rounds.
Any number of ranks will do; a place beyond the last is left out.

Every rank but the root receives the tensor exactly once: p-1 tensors in all,
and no broadcast can do with fewer. But the root sends the tensor once in
every round, ceil(lg p) times in all, while half of the ranks or more send
nothing.
For large tensors that is the cost: the root's link is busy lg p times as long
as one copy takes.

Source: Thakur et al. 2005 (binomial tree).
"""

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world


def broadcast(x: Tensor, root: int = 0) -> Tensor:
    """The root's x; on the other ranks, x only says its shape and type."""
    r, p = dist.get_rank(), dist.get_world_size()
    #: Any rank may be the root: only places, counted from it, matter.
    place = (r - root) % p
    #: A copy: messages are contiguous, x may be a slice or a transpose, and
    #: it stays as it is.
    tensor = x.clone(memory_format=torch.contiguous_format)
    distance = 1
    while distance < p:
        #: Places below the distance have the tensor. Each sends it on to the
        #: place one distance further, if there is one.
        if place < distance and place + distance < p:
            with span("broadcast", label=distance):
                dist.send(tensor, (r + distance) % p)
        #: Each place receives once, from the place without its highest bit.
        #: Before that round it waits, and afterwards it only sends.
        if distance <= place < 2 * distance:
            with span("broadcast", label=distance):
                dist.recv(tensor, (r - distance) % p)
        #: Twice as many have it now.
        distance *= 2
    return tensor


def reference(w: World, elements: int, root: int) -> Tensor:
    """The root's tensor."""
    return w.randn(elements, 2, seed=root)[:, 0]


def main(w: World, *, elements: int = 100_003) -> None:
    #: The last rank, so that nothing works only because the root is rank 0.
    root = w.size - 1
    #: A column of a matrix: its elements are not neighbors in memory.
    x = w.randn(elements, 2, seed=w.rank)[:, 0]
    # NCCL wants every rank in a group's first message; here some wait.
    dist.barrier()
    with meter() as moved:
        y = broadcast(x, root)
    w.check("copy", y, lambda: reference(w, elements, root), slack=0)
    w.check_same("same", y)
    given = {"itemsize": x.element_size(), "root": root}
    received = moved.calls["recv"].payload
    sent = moved.bytes_sent
    report(w, given=given, bytes_sent=sent, bytes_received=received)


if __name__ == "__main__":
    with world() as w:
        main(w)
