"""Gossip: one message per step to one partner, and lg p steps make the mean.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.neighbor.gossip_exchange

In step k each rank sends to the rank 2^k places on, receives from the rank
2^k places back, and takes the mean of both. The partner rotates:

    4 ranks   rank 0 holds           weights of ranks 0 1 2 3
    step 0    half of 0 and 3        2 . . 2  / 4
    step 1    half of that and of    1 1 1 1  / 4
              rank 2's, 2 and 1

After S = ceil(lg p) steps a rank's number is made of 2^S shares: one from
each of the 2^S ranks before it, itself included. If p is a power of two,
that is the mean, exactly. If not, the nearest 2^S - p of those ranks count
twice: near the mean, but not equal to it. The sum over all ranks never
changes, since every share that leaves one rank arrives at another, and each
further sweep shrinks what is left: disagreement falls at least to

    min(2^S - p, 2p - 2^S) / 2^S    of itself, never more than a third.

One message per step whatever p: an all-reduce spread over lg p steps.

Source: Daily et al. 2018 (GossipGraD); the shares are derived here.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world


def gossip(x: Tensor, step: int) -> None:
    """Average with the partner of this step, in place."""
    r, p = dist.get_rank(), dist.get_world_size()
    #: Twice as far in every step: what a rank hears already holds as many
    #: ranks' shares as its own number does.
    shift = 1 << step
    incoming = torch.empty_like(x)
    with span("average", label=shift):
        #: To one rank and from another: all ranks send at once, and nobody
        #: has two messages to handle.
        pair = [
            dist.P2POp(dist.isend, x, (r + shift) % p),
            dist.P2POp(dist.irecv, incoming, (r - shift) % p),
        ]
        #: The old x is on its way until then, and must not be changed.
        for work in dist.batch_isend_irecv(pair):
            work.wait()
        #: Half of what leaves is kept and half is passed on: the sum over
        #: all ranks stays the same.
        x.add_(incoming).div_(2)


def sweep(x: Tensor) -> None:
    """Gossip with every partner once: shifts 1, 2, 4, ... below p."""
    p = dist.get_world_size()
    #: After the last shift every rank has heard of all, directly or not.
    for step in range((p - 1).bit_length()):
        gossip(x, step)


def shares(p: int) -> Tensor:
    """Row r: how much of each rank's number rank r holds after a sweep."""
    table = torch.zeros(p, p, dtype=torch.double)
    count = 1
    while count < p:
        count *= 2
    for r in range(p):
        for back in range(count):
            table[r, (r - back) % p] += 1 / count
    return table


def start(w: World, elements: int) -> Tensor:
    """All ranks' numbers, a row each."""
    return torch.stack([w.randn(elements, seed=r) for r in range(w.size)])


def reference(w: World, elements: int, sweeps: int) -> Tensor:
    """The same mixing on one process; of it, this rank's row."""
    every = start(w, elements)
    for _ in range(sweeps):
        every = shares(w.size).to(w.device) @ every
    return every[w.rank]


def disagreement(w: World, x: Tensor, total: Tensor) -> dict[str, float]:
    """Distance of all ranks from their mean, as a share of what it was."""
    apart = (x - total / w.size).square().sum()
    dist.all_reduce(apart)
    if w.dry:
        return {}
    before = start(w, len(x))
    spread = (before - before.mean(0)).norm().clamp_min(1e-300)
    #: To 12 digits: where nothing should be left, roundings are.
    return {"disagreement": round((apart.sqrt() / spread).item(), 12)}


def main(w: World, *, elements: int = 10_007, sweeps: int = 2) -> None:
    x = w.randn(elements, seed=w.rank)
    with meter() as moved:
        for _ in range(sweeps):
            sweep(x)
    # Each step rounds once; the shares are added in another order.
    w.check("mixed", x, lambda: reference(w, elements, sweeps), slack=4)
    total = x.clone()
    dist.all_reduce(total)
    w.check("sum", total, lambda: start(w, elements).sum(0), slack=8)
    counts = {"messages": moved.calls["send"].count}
    counts["bytes_sent"] = moved.bytes_sent
    given = {"itemsize": x.element_size()}
    report(w, given=given, **counts, **disagreement(w, x, total))


if __name__ == "__main__":
    with world() as w:
        main(w)
