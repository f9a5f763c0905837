"""signSGD with majority vote: one bit per entry to the count, and one back.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.quantization.sign_majority_vote

A rank votes with the sign of every entry of its gradient, and all ranks step
by the sign that most of them have:

    vote  =  sign( sign(g_0) + sign(g_1) + ... + sign(g_{p-1}) )
    weights  =  weights - rate * vote

In a tie, and for an entry of 0, the sign is +: one bit has no third value.

The ranks share the counting. The entries are cut into p stripes, and rank q
counts the votes on stripe q: every rank sends each owner the signs of its
stripe, and every owner sends all ranks its verdict.

    rank 0   signs of stripes  00 01 02      rank q counts  0q 1q 2q
    rank 1                     10 11 12      and sends its verdict to all
    rank 2                     20 21 22

Each way carries (p-1)/p of the n bits, whatever p is. A count of p signs
needs more than one bit, but a verdict does not: that is why the vote, unlike
the sum, fits into one bit both ways.

How large an entry is counts for nothing, so a rank that lies or breaks has
one vote in p per entry, however large its gradient.

Eight signs make a byte:

    + - - + + + - +   ->   1 + 8 + 16 + 32 + 128   =   0b10111001

Source: Bernstein et al. 2018; Bernstein et al. 2019. There one server counts
all votes.
"""

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Step, Task, characters, digits


def pack(signs: Tensor) -> Tensor:
    """Eight signs to a byte; the last byte is filled up with zeros."""
    filled = pad(signs, (0, -len(signs) % 8))
    bits = filled.view(len(filled) // 8, 8).byte()
    #: The first of eight signs is the lowest bit.
    return (bits << places(bits)).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, size: int) -> Tensor:
    """The first `size` signs of every row."""
    bits = packed[..., None] >> places(packed) & 1
    return bits.flatten(-2)[..., :size].bool()


def places(like: Tensor) -> Tensor:
    """The places of a byte's bits, the lowest first."""
    return torch.arange(8, dtype=torch.uint8, device=like.device)


class Sign:
    """A compressor without state or scale: nothing but signs is sent."""

    def compress(self, gradient: Tensor) -> Tensor:
        """The sign of every entry, eight to a byte; a 0 counts as +."""
        return pack(gradient >= 0)


def majority(ballot: Tensor, size: int) -> Tensor:
    """What most ranks voted for each of `size` entries: +1 or -1."""
    p = dist.get_world_size()
    #: Whole bytes for everyone: a few ranks may count no entry, or fewer.
    stripes = pad(ballot, (0, -len(ballot) % p)).view(p, -1)
    votes = torch.empty_like(stripes)
    #: Row q goes to rank q; row q of what arrives is rank q's votes on the
    #: stripe that this rank owns.
    dist.all_to_all_single(votes, stripes)
    with span("count", cost=1):
        ayes = unpack(votes, 8 * votes.shape[1]).sum(0)
        #: Half of the votes are enough for a +: with an even number of
        #: ranks ties are common, and every rank must break them alike.
        verdict = pack(2 * ayes >= p)
    every = verdict.new_empty(p * len(verdict))
    #: The verdict is a bit again, so the way back costs what the way there
    #: did. A sum would need lg(p + 1) bits.
    dist.all_gather_single(every, verdict)
    return torch.where(unpack(every, size), 1, -1)


def train(
    w: World, task: Task, *, steps: int, local_batch: int, rate: float
) -> Iterator[Step]:
    """Every weight moves by the rate in every step, up or down."""
    model = task.model().to(w.device)
    parameters = list(model.parameters())
    weights = parameters_to_vector(parameters).detach()
    for step in range(steps):
        x, y = task.batch(step * w.size + w.rank, local_batch)
        with span("compute", label=step, cost=3):
            loss = task.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
            grads = torch.autograd.grad(loss, parameters)
        ballot = Sign().compress(parameters_to_vector(grads))
        #: Not divided by p: a vote has no size. The rate alone says how far
        #: a weight moves, as in Adam's first step.
        vote = majority(ballot, len(weights)).to(weights)
        weights = weights - rate * vote
        vector_to_parameters(weights, parameters)
        yield Step(loss.item(), parameters)


def reference(
    w: World, task: Task, steps: int, local_batch: int, rate: float
) -> list[Tensor]:
    """One process adds up the signs of every rank's gradient, unpacked."""
    model = task.model().to(w.device)
    parameters: list[Tensor] = list(model.parameters())
    weights = parameters_to_vector(parameters).detach()
    vector_to_parameters(weights, parameters)  # as views of it
    sgd = torch.optim.SGD([weights], lr=rate)
    for step in range(steps):
        total = torch.zeros_like(weights)
        for number in range(step * w.size, (step + 1) * w.size):
            x, y = (t.to(w.device) for t in task.batch(number, local_batch))
            loss = task.loss(model, x, y) / y.numel()
            grads = torch.autograd.grad(loss, parameters)
            total += parameters_to_vector(grads).sign()
            total += parameters_to_vector(grads) == 0
        weights.grad = total.sign() + (total == 0)
        sgd.step()
    return parameters


def lied_to(w: World, truth: Tensor) -> Tensor:
    """The vote when fewer than half of the ranks say the opposite, loudly."""
    liar = w.rank < (w.size - 1) // 2
    said = -1e6 * truth if liar else truth
    return majority(Sign().compress(said), len(truth)).to(truth)


def main(
    w: World, *, steps: int = 5, local_batch: int = 24, rate: float = 0.01
) -> None:
    for task in (digits, characters):
        run = train(w, task, steps=steps, local_batch=local_batch, rate=rate)
        with meter() as moved:
            *_, last = run
        #: Bit for bit: votes are whole numbers, which add up without
        #: rounding in any order.
        replay = partial(reference, w, task, steps, local_batch, rate)
        w.check(task.name, last.weights, replay, slack=0)
    w.check_same("same", last.weights)
    truth = w.randn(1003, seed=0)
    w.check("minority", lied_to(w, truth), truth.sign, slack=0)
    there, back = moved.calls["all_to_all"], moved.calls["all_gather"]
    report(
        w,
        given={"elements": sum(p.numel() for p in last.weights)},
        bytes_there=int(there.wire),
        bytes_back=int(back.wire),
        calls=moved.count,
    )


if __name__ == "__main__":
    with world() as w:
        main(w)
