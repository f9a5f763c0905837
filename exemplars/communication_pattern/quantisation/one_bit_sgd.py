"""1-bit SGD: send the sign of every entry, and remember the error.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.quantisation.one_bit_sgd

Source: Seide et al. 2014.

Of each entry of its gradient g a rank sends one bit, the sign, and of all
entries together two numbers: the mean of those that are not negative, and
the mean of those that are. The error e goes into the next gradient:

    a = g + e      sent = high where a >= 0, else low      e' = a - sent

so that nothing is lost, only late: over any number of steps

    sum of sent  +  last error  =  sum of gradients

Eight signs make a byte, the first of them its lowest bit:

    + - - + + + - +   ->   1 + 8 + 16 + 32 + 128   =   0b10111001

A sum of signs needs more than one bit, so bits cannot be added on the way as
in an all-reduce: they are gathered, and each rank adds up what all have sent.
"""

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Step, Task, characters, digits

STEPS, BATCH, RATE = 5, 24, 0.2


def pack(signs: Tensor) -> Tensor:
    """Eight signs to a byte; the last byte is filled up with zeros."""
    bits = pad(signs, (0, -len(signs) % 8)).view(-1, 8).byte()
    return (bits << places(bits)).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, size: int) -> Tensor:
    """The first `size` signs."""
    bits = packed[:, None] >> places(packed) & 1
    return bits.flatten()[:size].bool()


def places(like: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=like.device)


class OneBit:
    """A compressor: makes bits of a gradient, and carries their error."""

    def __init__(self, like: Tensor) -> None:
        self.error = torch.zeros_like(like)
        self.seen, self.sent = torch.zeros_like(like), torch.zeros_like(like)

    def compress(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """A sign for each entry of gradient + error, and the two means."""
        wanted = gradient + self.error
        signs = wanted >= 0
        high = (wanted * signs).sum() / signs.sum().clamp_min(1)
        low = (wanted * ~signs).sum() / (~signs).sum().clamp_min(1)
        self.error = wanted - torch.where(signs, high, low)
        self.seen += gradient
        return pack(signs), torch.stack([low, high])

    def sum_of_all(self, packed: Tensor, means: Tensor) -> Tensor:
        """What all ranks sent, added up in the same order everywhere."""
        r, p = dist.get_rank(), dist.get_world_size()
        bits = packed.new_empty(p * len(packed))
        scales = means.new_empty(p * 2)
        dist.all_gather_single(bits, packed)
        dist.all_gather_single(scales, means)
        with span("decode", cost=1):
            size = len(self.error)
            every = [
                torch.where(unpack(b, size), high, low)
                for b, (low, high) in zip(bits.chunk(p), scales.chunk(p))
            ]
        #: Only to check the identity: what the others made of our bits.
        self.sent += every[r]
        return torch.stack(every).sum(0)


def train(
    w: World, task: Task, model: nn.Module, one_bit: OneBit
) -> Iterator[Step]:
    """SGD in which one bit of each entry travels."""
    parameters = list(model.parameters())
    weights = parameters_to_vector(parameters).detach()
    for step in range(STEPS):
        x, y = task.batch(step * w.size + w.rank, BATCH)
        with span("compute", label=step, cost=3):
            loss = task.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
            grads = torch.autograd.grad(loss, parameters)
        with span("quantise", label=step, cost=1):
            sent = one_bit.compress(torch.cat([g.view(-1) for g in grads]))
        weights = weights - RATE / w.size * one_bit.sum_of_all(*sent)
        vector_to_parameters(weights, parameters)
        yield Step(samples=BATCH * w.size, loss=loss.item())


def reference(one_bit: OneBit) -> Tensor:
    """What plain SGD would have sent: every gradient, whole."""
    return one_bit.seen


def main(w: World) -> None:
    for task in (digits, characters):
        model = task.model().to(w.device)
        one_bit = OneBit(parameters_to_vector(model.parameters()).detach())
        with meter() as moved:
            for _ in train(w, task, model, one_bit):
                pass
        # STEPS additions on either side, in another order.
        both = one_bit.sent + one_bit.error
        w.check(task.name, both, partial(reference, one_bit), slack=STEPS)
    w.check_same("same", list(model.parameters()))
    given = {"n": len(one_bit.error), "b": 8, "t": STEPS}
    report(w, given=given, calls=moved.count, payload=moved.payload)


if __name__ == "__main__":
    with world() as w:
        main(w)
