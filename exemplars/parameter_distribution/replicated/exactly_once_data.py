"""Exactly-once data: every sample once an epoch, on any number of ranks.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.replicated.exactly_once_data

Who reads what is decided in two steps, and only the second knows of ranks:

    1. the samples of a step    the next B of the epoch's permutation
    2. a rank's share of them   its part of these B, among p ranks

So the position in the data is two numbers, the epoch and the samples taken,
and all ranks have the same two. When half of the ranks leave, the others go on
from there; when they come back, they are told the two numbers. Nobody has to
know who read what before.

The usual way is the other way round: first every rank is given its part of
the epoch, then it counts in that part. Its position k means p k samples, and
after a change of p it means another place. From p to q < p ranks, (p - q) k
samples come again; from q to p, as many never come. Here torch's sampler does
so, beside the other, and it hands out some samples twice even where p stays:
it fills up what p does not divide.

Source: Mohan et al. 2021 (CheckFreq: a position in the data is a part of the
state); torchtitan, pull request 816.
"""

from collections.abc import Iterator
from itertools import chain, islice

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DistributedSampler, TensorDataset

from exemplars.runtime import World, meter, report, span, world


class Reader:
    """Which samples come next: the same on every rank that reads."""

    def __init__(self, samples: int, batch: int) -> None:
        self.samples, self.batch = samples, batch
        self.epoch = self.taken = 0

    def next(self) -> Tensor:
        """The samples of one step, over all ranks."""
        #: From the epoch alone, not from the rank, nor from a generator whose
        #: state would have to be kept. Another epoch, another order.
        source = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(self.samples, generator=source)
        found = order[self.taken : self.taken + self.batch]
        #: By what all ranks have taken together, so p is not in it.
        self.taken += len(found)
        if self.taken == self.samples:
            self.epoch, self.taken = self.epoch + 1, 0
        return found


def tell(reader: Reader, device: torch.device) -> None:
    """All ranks continue where the first one is."""
    #: This is also all that a checkpoint has to hold, at any number of ranks.
    at = torch.tensor([reader.epoch, reader.taken], device=device)
    dist.broadcast(at, 0)
    reader.epoch, reader.taken = at.tolist()


def read(
    w: World, *, samples: int, batch: int, steps: int, fall: int, grow: int
) -> Iterator[Tensor]:
    """This rank's share of each step; half of the ranks leave and return."""
    reader, half = Reader(samples, batch), (w.size + 1) // 2
    for step in range(steps):
        if step == grow:
            #: Whoever comes back has missed what the others have taken since.
            tell(reader, w.device)
        members = half if fall <= step < grow else w.size
        if w.rank >= members:
            yield torch.empty(0, dtype=torch.long)
            continue
        with span("read", label=step, cost=1):
            #: As even as possible. Nothing is filled up and nothing dropped:
            #: the last step is smaller, and some rank may have no sample. So
            #: losses are summed, and divided by the samples of all.
            yield reader.next().tensor_split(members)[w.rank]


def reference(samples: int, batch: int, epochs: int) -> Tensor:
    """One process: in which step of its epoch each sample comes, from 1."""
    steps = torch.zeros(epochs, samples, dtype=torch.long)
    for epoch in range(epochs):
        source = torch.Generator().manual_seed(epoch)
        order = torch.randperm(samples, generator=source).tolist()
        for place, sample in enumerate(order):
            steps[epoch, sample] = place // batch + 1
    return steps


def portions(
    w: World, samples: int, batch: int, steps: int, fall: int, grow: int
) -> Tensor:
    """How many samples this rank has in each step, by arithmetic."""
    sizes = [min(batch, samples - k) for k in range(0, samples, batch)]
    found = []
    for step in range(steps):
        members = (w.size + 1) // 2 if fall <= step < grow else w.size
        each, more = divmod(sizes[step % len(sizes)], members)
        found.append((w.rank < members) * (each + (w.rank < more)))
    return torch.tensor(found)


def by_torch(
    samples: int, ranks: int, first: int, last: int | None = None
) -> list[int]:
    """What torch's sampler hands to all ranks between two positions."""
    data = TensorDataset(torch.arange(samples))
    every: list[DistributedSampler[int]] = [
        DistributedSampler(data, ranks, rank) for rank in range(ranks)
    ]
    #: Each rank counts in its own part, which is another on another p.
    return [*chain(*(islice(one, first, last) for one in every))]


def change(samples: int, taken: int, old: int, new: int) -> tuple[int, int]:
    """Samples that come again, and that never come, if p changes."""
    k = taken // old
    found = by_torch(samples, old, 0, k) + by_torch(samples, new, k)
    seen = len(set(found))
    return len(found) - seen, samples - seen


def seen(
    w: World, shares: list[Tensor], samples: int, length: int
) -> tuple[Tensor, Tensor]:
    """How often, and in which step, any rank has read each sample."""
    times = [own.bincount(minlength=samples) for own in shares]
    often = torch.stack(times).view(-1, length, samples)
    when = often * torch.arange(1, length + 1)[:, None]
    total = torch.stack([often, when]).sum(2).to(w.device)
    dist.all_reduce(total)
    first, second = total.cpu()
    return first, second


def main(
    w: World,
    *,
    samples: int = 101,
    batch: int = 8,
    epochs: int = 2,
    fall: int = 5,
    grow: int = 18,
) -> None:
    length = -(-samples // batch)
    steps, half = epochs * length, (w.size + 1) // 2
    order = f"{fall}, {grow}, {steps}: fall, then grow, then go on"
    w.require(0 <= fall < grow < steps, order)
    w.require(fall <= samples // batch, f"fall = {fall}: not in epoch 0")
    sizes = dict(samples=samples, batch=batch, steps=steps)
    with meter() as moved:
        shares = [*read(w, **sizes, fall=fall, grow=grow)]
    counts = torch.tensor([len(own) for own in shares])
    truth = portions(w, **sizes, fall=fall, grow=grow)
    w.check("shares", counts, lambda: truth, slack=0)
    often, when = seen(w, shares, samples, length)
    w.check("once", often, lambda: torch.ones_like(often), slack=0)
    w.check("order", when, lambda: reference(samples, batch, epochs), slack=0)
    found = by_torch(samples, w.size, 0)
    padded = len(found) - len(set(found))
    repeated, _ = change(samples, fall * batch, w.size, half)
    _, missed = change(samples, fall * batch, half, w.size)
    usual = {"padded": padded, "repeated": repeated, "missed": missed}
    sent = {"calls": moved.count, "sent": moved.payload}
    report(w, given={"itemsize": 8}, **sent, **usual)


if __name__ == "__main__":
    with world() as w:
        main(w)
