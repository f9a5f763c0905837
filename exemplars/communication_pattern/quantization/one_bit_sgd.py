"""1-bit SGD: send the sign of every entry, and remember the error.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.quantization.one_bit_sgd

A rank sends one bit for each entry of its gradient g, the sign, and two
numbers for all entries together: the mean of those that are not negative,
and the mean of those that are. The error e goes into the next gradient:

    a = g + e      sent = high where a >= 0, else low      e' = a - sent

so nothing is lost, only delayed: over any number of steps

    sum of sent  +  last error  =  sum of gradients

Eight signs make a byte, the first of them its lowest bit:

    + - - + + + - +   ->   1 + 8 + 16 + 32 + 128   =   0b10111001

A sum of signs needs more than one bit, so bits cannot be added on the way as
in an all-reduce. Here they are gathered, and each rank adds up what all have
sent; production reduces first and quantizes the sum a second time.

Source: Seide et al. 2014.
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


def pack(signs: Tensor) -> Tensor:
    """Eight signs to a byte; the last byte is filled up with zeros."""
    bits = pad(signs, (0, -len(signs) % 8)).view(-1, 8).byte()
    return (bits << places(bits)).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, size: int) -> Tensor:
    """The first `size` signs."""
    bits = packed[:, None] >> places(packed) & 1
    return bits.flatten()[:size].bool()


def places(like: Tensor) -> Tensor:
    """The places of a byte's bits, the lowest first."""
    return torch.arange(8, dtype=torch.uint8, device=like.device)


class OneBit:
    """A compressor: makes bits of a gradient, and carries their error."""

    def __init__(self, like: Tensor) -> None:
        self.error = torch.zeros_like(like)

    def compress(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """A sign for each entry of gradient + error, and the two means."""
        wanted = gradient + self.error
        signs = wanted >= 0
        #: The mean of a group is the one number that is nearest to all of
        #: it. Of an empty group it is 0 / 0, and no sign asks for it.
        high = (wanted * signs).sum() / signs.sum()
        low = (wanted * ~signs).sum() / (~signs).sum()
        #: What the others will decode, not what was wanted, is sent; the
        #: difference waits for the next step.
        self.error = wanted - torch.where(signs, high, low)
        return pack(signs), torch.stack([low, high])


def restore(packed: Tensor, means: Tensor, size: int) -> Tensor:
    """The entries that these bits stand for."""
    low, high = means
    return torch.where(unpack(packed, size), high, low)


def sum_of_all(packed: Tensor, means: Tensor, size: int) -> Tensor:
    """What all ranks sent, restored and added up."""
    p = dist.get_world_size()
    bits = packed.new_empty(p * len(packed))
    scales = means.new_empty(p * 2)
    #: Gathered: every rank has its own two means, so bits of different
    #: ranks mean different numbers.
    dist.all_gather_single(bits, packed)
    dist.all_gather_single(scales, means)
    with span("decode", cost=1):
        #: Rank after rank, in the same order everywhere: the same bits.
        both = zip(bits.chunk(p), scales.chunk(p))
        return torch.stack([restore(*sent, size) for sent in both]).sum(0)


def train(
    w: World, task: Task, *, steps: int, local_batch: int, rate: float
) -> Iterator[Step]:
    """SGD in which one bit of each entry travels."""
    model = task.model().to(w.device)
    parameters = list(model.parameters())
    weights = parameters_to_vector(parameters).detach()
    #: One compressor per rank for the whole run: its error is state, and
    #: belongs into a checkpoint as an optimizer's momentum does.
    one_bit = OneBit(weights)
    for step in range(steps):
        x, y = task.batch(step * w.size + w.rank, local_batch)
        with span("compute", label=step, cost=3):
            loss = task.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
            grads = torch.autograd.grad(loss, parameters)
        with span("quantize", label=step, cost=1):
            sent = one_bit.compress(parameters_to_vector(grads))
        weights = weights - rate / w.size * sum_of_all(*sent, len(weights))
        vector_to_parameters(weights, parameters)
        yield Step(loss.item(), parameters)


def reference(
    w: World, task: Task, steps: int, local_batch: int, rate: float
) -> list[Tensor]:
    """One process that keeps every rank's error; nothing is packed."""
    model = task.model().to(w.device)
    weights = parameters_to_vector(model.parameters()).detach()
    vector_to_parameters(weights, model.parameters())  # as views of it
    sgd = torch.optim.SGD([weights], lr=rate)
    errors = [torch.zeros_like(weights)] * w.size
    for step in range(steps):
        total = torch.zeros_like(weights)
        for r in range(w.size):
            number = step * w.size + r
            wanted = errors[r] + slope(task, model, number, local_batch)
            rounded = two_means(wanted)
            errors[r] = wanted - rounded
            total = total + rounded
        weights.grad = total / w.size
        sgd.step()
    return list(model.parameters())


def two_means(a: Tensor) -> Tensor:
    """Every entry replaced by the mean of its sign's, for the reference."""
    rounded = torch.empty_like(a)
    for group in (a < 0, a >= 0):
        if group.any():
            rounded[group] = a[group].mean()
    return rounded


def slope(task: Task, model: nn.Module, step: int, size: int) -> Tensor:
    """The gradient of one batch's mean loss, for the reference."""
    weights = list(model.parameters())
    x, y = (t.to(weights[0].device) for t in task.batch(step, size))
    loss = task.loss(model, x, y) / y.numel()
    return parameters_to_vector(torch.autograd.grad(loss, weights))


def account(given: Tensor) -> Tensor:
    """All that a compressor sends of these, and what it still has."""
    one_bit = OneBit(given[0])
    sent = [restore(*one_bit.compress(g), len(g)) for g in given]
    return torch.stack(sent).sum(0) + one_bit.error


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
    drawn = torch.stack([w.randn(1003, seed=w.rank + i) for i in range(steps)])
    #: Also of gradients in which no entry is negative, or all are.
    for given in (drawn, drawn.abs() + 1, -drawn.abs() - 1):
        w.check("identity", account(given), partial(given.sum, 0), slack=steps)
    sizes = {"elements": sum(p.numel() for p in last.weights), "itemsize": 8}
    report(w, given=sizes, calls=moved.count, payload=moved.payload)


if __name__ == "__main__":
    with world() as w:
        main(w)
