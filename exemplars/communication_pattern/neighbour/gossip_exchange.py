"""Gossip: one message a step to one partner, and lg p steps make the mean.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.neighbour.gossip_exchange

Source: Daily et al. 2018 (GossipGraD); the shares are derived here.

In step k a rank sends to the one 2^k places on, receives from the one 2^k
places back, and takes the mean of both. The partner rotates:

    4 ranks   rank 0 holds           weights of ranks 0 1 2 3
    step 0    half of 0 and 3        2 . . 2  / 4
    step 1    half of that and of    1 1 1 1  / 4
              rank 2's, 2 and 1

After S = ceil(lg p) steps a rank's number is made of 2^S shares: one from
each of the 2^S ranks before it, itself included. If p is a power of two,
that is the mean, exactly. If not, those nearest before it count twice, and
2^S - p of them do: near the mean, not on it. What always holds is the sum
over all ranks, since every share that leaves one rank arrives at another,
and another sweep shrinks what is left: disagreement falls at least to

    min(2^S - p, 2p - 2^S) / 2^S    of itself, never more than a third.

One message a step whatever p: an all-reduce spread over lg p steps.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world

SIZE, SWEEPS = 10_007, 2


def gossip(x: Tensor, step: int) -> None:
    """Average with the partner of this step, in place."""
    r, p = dist.get_rank(), dist.get_world_size()
    shift, incoming = 1 << step, torch.empty_like(x)
    with span("average", label=shift):
        pair = [
            dist.P2POp(dist.isend, x, (r + shift) % p),
            dist.P2POp(dist.irecv, incoming, (r - shift) % p),
        ]
        for work in dist.batch_isend_irecv(pair):
            work.wait()
        x.add_(incoming).div_(2)


def steps_of(p: int) -> int:
    """S, the steps of a sweep: shifts 1, 2, 4, ... below p."""
    return (p - 1).bit_length()


def shares(p: int) -> Tensor:
    """Row r: how much of each rank's number rank r holds after a sweep."""
    table = torch.zeros(p, p, dtype=torch.double)
    for back in range(1 << steps_of(p)):
        for r in range(p):
            table[r, (r - back) % p] += 1
    return table / table.sum(1, keepdim=True)


def start(w: World) -> Tensor:
    """All ranks' numbers, a row each."""
    return torch.stack([w.randn(SIZE, of_rank=r) for r in range(w.size)])


def reference(w: World) -> Tensor:
    """The same mixing on one process; of it, this rank's row."""
    every = start(w)
    for _ in range(SWEEPS):
        every = shares(w.size).to(w.device) @ every
    return every[w.rank]


def check(w: World, x: Tensor) -> dict[str, float]:
    """What became of the sum, and of the distances from the mean."""
    total = x.clone()
    dist.all_reduce(total)
    w.check("sum", total, lambda: start(w).sum(0), slack=8)
    apart = (x - total / w.size).square().sum()
    dist.all_reduce(apart)
    if w.dry:
        return {}
    before = (start(w) - start(w).mean(0)).norm().clamp_min(1e-300)
    #: To 12 digits: where nothing should be left, roundings are.
    return {"disagreement": round((apart.sqrt() / before).item(), 12)}


def main(w: World) -> None:
    x = w.randn(SIZE)
    with meter() as moved:
        for _ in range(SWEEPS):
            for step in range(steps_of(w.size)):
                gossip(x, step)
    # Each step rounds once; the shares are added in another order.
    w.check("mixed", x, lambda: reference(w), slack=4)
    found = {"messages": moved.calls["send"].count, **check(w, x)}
    given = {"n": SIZE, "b": 8, "t": SWEEPS}
    report(w, given=given, bytes_sent=moved.bytes_sent, **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
