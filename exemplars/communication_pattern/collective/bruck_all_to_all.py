"""Bruck all-to-all: blocks hop by powers of two, in ceil(lg p) rounds.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.collective.bruck_all_to_all

Every rank has a block for every rank. Block i, counted from the own rank on,
has to move i places to the right. Write i in binary: bit k says whether the
block takes part in round k, in which everyone sends 2^k places to the right.

    1 rotate     block i is now the one for the rank i places to the right
    2 exchange   for each bit k: send all blocks whose number has this bit
    3 rotate     block i has come from the rank i places to the left

    p = 4        block 0     block 1     block 2     block 3
    round 0      stays       hops 1      stays       hops 1
    round 1      stays       stays       hops 2      hops 2

A pairwise exchange takes p-1 rounds, and sends each block once. Here there
are only ceil(lg p), but block i is sent as often as i has ones: about half of
ceil(lg p) times. So Bruck's way suits blocks that are small enough for
latency to matter more than bytes.

Source: Bruck et al. 1997; Thakur et al. 2005.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world


def all_to_all(x: Tensor) -> Tensor:
    """As dist.all_to_all_single: row block q goes to rank q."""
    r, p = dist.get_rank(), dist.get_world_size()
    if x.dim() == 0 or len(x) % p:
        raise ValueError(
            f"shape {tuple(x.shape)}: {p} ranks need equal blocks"
        )
    blocks = x.reshape(p, x.numel() // p)
    #: The first rotation. By distance, all ranks have the same problem: in
    #: each round, the same numbers of blocks are sent.
    blocks = blocks.roll(-r, dims=0)
    number = torch.arange(p, device=x.device)
    for k in range((p - 1).bit_length()):
        distance = 2**k
        #: Blocks in transit take part, too: they are stored under the number
        #: they began with, until all its bits are done.
        moving = number[number // distance % 2 == 1]
        #: The blocks that move are not neighbors: they are packed into one
        #: message, and unpacked into the places of those that left.
        with span("exchange", label=distance):
            blocks[moving] = pass_on(blocks[moving], distance)
    #: The second rotation, which also reverses: number i has come from the
    #: rank i places to the left.
    return blocks[(r - number) % p].view(x.shape)


def pass_on(outgoing: Tensor, distance: int) -> Tensor:
    """Send so many places to the right while receiving from the left."""
    r, p = dist.get_rank(), dist.get_world_size()
    incoming = torch.empty_like(outgoing)
    #: One batch: as two separate calls, NCCL would run them in order and
    #: every rank would wait in its send.
    pair = [
        dist.P2POp(dist.isend, outgoing, (r + distance) % p),
        dist.P2POp(dist.irecv, incoming, (r - distance) % p),
    ]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    return incoming


def reference(w: World, block: int) -> Tensor:
    """The blocks for this rank, in the order of their senders."""
    every = [w.randn(w.size * block, 2, seed=q)[:, 0] for q in range(w.size)]
    return torch.cat([x.tensor_split(w.size)[w.rank] for x in every])


def main(w: World, *, block: int = 1009) -> None:
    #: A column of a matrix: its elements are not neighbors in memory.
    x = w.randn(w.size * block, 2, seed=w.rank)[:, 0]
    with meter() as moved:
        y = all_to_all(x)
    #: The second witness is the library, with its own algorithm.
    theirs = torch.empty_like(y)
    dist.all_to_all_single(theirs, x.contiguous())
    w.check("blocks", y, lambda: reference(w, block), slack=0)
    w.check("library", y, lambda: theirs, slack=0)
    given = {"itemsize": x.element_size()}
    report(w, given=given, bytes_sent=moved.bytes_sent)


if __name__ == "__main__":
    with world() as w:
        main(w)
