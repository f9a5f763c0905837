"""1-bit SGD: send signs and remember the error, on the way there and back.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.quantization.one_bit_sgd

A rank sends one bit for each entry of its gradient g, the sign, and two
numbers for all entries together: the mean of those that are not negative,
and the mean of those that are. The error e goes into the next gradient:

    a = g + e      sent = high where a >= 0, else low      e' = a - sent

A sum of signs needs more than one bit, so bits cannot be added on the way as
in an all-reduce. Instead rank q owns stripe q of the gradient. It gets the
bits of its stripe from every rank, adds up what they stand for, makes bits of
the sum in the same way, with an error of its own, and sends them to all:

    rank 0   bits of stripes  00 01 02     rank q adds  0q 1q 2q
    rank 1                    10 11 12     and sends bits of the sum to all
    rank 2                    20 21 22

Each way carries (p-1)/p of n bits, so a rank sends about 2n bits, whatever p
is; to gather all bits on all ranks would take (p-1)n. Nothing is lost, only
delayed, though it now waits in two places. Over any number of steps

    sums received  +  errors of ranks  +  errors of owners  =  all gradients

Source: Seide et al. 2014; stripes as in CNTK's own implementation of it.
"""

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.communication_pattern.quantization.sign_majority_vote import (
    pack,
    unpack,
)
from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Step, Task, characters, digits


class OneBit:
    """A compressor: makes bits of a gradient, and carries their error."""

    def __init__(self, like: Tensor) -> None:
        self.error = torch.zeros_like(like)

    def compress(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """A sign for each entry of gradient + error, and what they mean."""
        wanted = gradient + self.error
        signs = wanted >= 0
        levels = self.levels(wanted, signs)
        #: What the others will decode, not what was wanted, is sent; the
        #: difference waits for the next step.
        self.error = wanted - self.decode(signs, levels)
        return pack(signs), levels

    def levels(self, wanted: Tensor, signs: Tensor) -> Tensor:
        """The mean of the negative entries, and the mean of the others."""
        #: The mean of a group is the one number that is nearest to all of
        #: it. Of an empty group it is 0 / 0, and no sign asks for it.
        low = (wanted * ~signs).sum() / (~signs).sum()
        high = (wanted * signs).sum() / signs.sum()
        return torch.stack([low, high])

    def decode(self, signs: Tensor, levels: Tensor) -> Tensor:
        """The entries that these signs stand for, row by row."""
        return torch.where(signs, levels[..., 1:], levels[..., :1])


class Owner:
    """Adds up one stripe of what all ranks send, and makes it bits again."""

    def __init__(self, like: Tensor, kind: type[OneBit] = OneBit) -> None:
        r, p = dist.get_rank(), dist.get_world_size()
        self.size = len(like)
        #: Whole bytes for every rank: the last stripes may be short, or
        #: empty.
        self.bytes = -(-self.size // (8 * p))
        self.stripe = slice(8 * self.bytes * r, 8 * self.bytes * (r + 1))
        #: The second error is state too: of a stripe, not of the gradient.
        self.again = kind(like[self.stripe])

    def sum_of_all(self, packed: Tensor, levels: Tensor) -> Tensor:
        """What all ranks sent, added up, and rounded to bits once more."""
        p, decode = dist.get_world_size(), self.again.decode
        filled = pad(packed, (0, p * self.bytes - len(packed)))
        bits = torch.empty_like(filled)
        #: Every rank has its own means, so bits of different ranks stand for
        #: different numbers: the owner gets both.
        dist.all_to_all_single(bits, filled)
        rows = unpack(bits.view(p, -1), len(self.again.error))
        total = decode(rows, from_all(levels)).sum(0)
        packed, levels = self.again.compress(total)
        bits = from_all(pad(packed, (0, self.bytes - len(packed))))
        #: The owner decodes its own stripe too, like everyone else: all
        #: ranks apply the same bits.
        signs = unpack(bits, 8 * self.bytes)
        return decode(signs, from_all(levels)).flatten()[: self.size]


def from_all(part: Tensor) -> Tensor:
    """Every rank's part, a row each."""
    every = part.new_empty(dist.get_world_size() * len(part))
    dist.all_gather_single(every, part)
    return every.view(-1, len(part))


def train(
    w: World, task: Task, *, steps: int, local_batch: int, rate: float
) -> Iterator[Step]:
    """SGD in which one bit of each entry travels, both ways."""
    model = task.model().to(w.device)
    parameters = list(model.parameters())
    weights = parameters_to_vector(parameters).detach()
    #: One of each per rank for the whole run: their errors are state, and
    #: belong into a checkpoint as an optimizer's momentum does.
    one_bit, owner = OneBit(weights), Owner(weights)
    for step in range(steps):
        x, y = task.batch(step * w.size + w.rank, local_batch)
        with span("compute", label=step, cost=3):
            loss = task.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
            grads = torch.autograd.grad(loss, parameters)
        sent = one_bit.compress(parameters_to_vector(grads))
        weights = weights - rate / w.size * owner.sum_of_all(*sent)
        vector_to_parameters(weights, parameters)
        yield Step(loss.item(), parameters)


def reference(
    w: World, task: Task, steps: int, local_batch: int, rate: float
) -> list[Tensor]:
    """One process that keeps all errors; nothing is packed or cut up."""
    model = task.model().to(w.device)
    parameters: list[Tensor] = list(model.parameters())
    weights = parameters_to_vector(parameters).detach()
    vector_to_parameters(weights, parameters)  # as views of it
    errors = [torch.zeros_like(weights)] * (w.size + 1)  # last, the owners'
    stripe = 8 * ((len(weights) - 1) // (8 * w.size) + 1)
    for step in range(steps):
        total = errors[-1]
        for r in range(w.size):
            x, y = task.batch(step * w.size + r, local_batch)
            loss = task.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
            grads = torch.autograd.grad(loss, parameters)
            wanted = errors[r] + parameters_to_vector(grads)
            errors[r] = wanted - two_means(wanted)
            total = total + two_means(wanted)
        rounded = torch.cat([two_means(t) for t in total.split(stripe)])
        errors[-1] = total - rounded
        weights.sub_(rounded, alpha=rate / w.size)
    return parameters


def two_means(a: Tensor) -> Tensor:
    """Every entry replaced by the mean of its sign's, for the reference."""
    return torch.where(a < 0, a[a < 0].mean(), a[a >= 0].mean())


def account(given: Tensor, kind: type[OneBit] = OneBit) -> Tensor:
    """All that was made of these on all ranks, and all that still waits."""
    one_bit, owner = kind(given[0]), Owner(given[0], kind)
    sums = [owner.sum_of_all(*one_bit.compress(g)) for g in given]
    waiting = one_bit.error
    waiting[owner.stripe] += owner.again.error
    dist.all_reduce(waiting)
    return torch.stack(sums).sum(0) + waiting


def main(
    w: World, *, steps: int = 5, local_batch: int = 24, rate: float = 0.2
) -> None:
    for task in (digits, characters):
        run = train(w, task, steps=steps, local_batch=local_batch, rate=rate)
        with meter() as moved:
            *_, last = run
        replay = partial(reference, w, task, steps, local_batch, rate)
        # Sums over ranks and steps, in another order.
        w.check(task.name, last.weights, replay, slack=8)
    w.check_same("same", last.weights)
    every = torch.stack([w.randn(steps, 1003, seed=r) for r in range(w.size)])
    #: Also of gradients in which no entry is negative, or all are.
    for given in (every, every.abs() + 1, -every.abs() - 1):
        truth = partial(given.sum, (0, 1))
        w.check("identity", account(given[w.rank]), truth, slack=4 * steps)
    vector = parameters_to_vector(last.weights).detach()
    with meter(shown=False) as other:
        from_all(pack(vector >= 0))
    sizes = {"elements": len(vector), "itemsize": vector.element_size()}
    bits = {"sent": int(moved.wire), "gathered": int(other.wire)}
    report(w, given=sizes, calls=moved.count, **bits)


if __name__ == "__main__":
    with world() as w:
        main(w)
