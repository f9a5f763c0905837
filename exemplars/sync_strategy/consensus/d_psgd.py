"""D-PSGD: average with two neighbors, then step; no rank talks to all.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.consensus.d_psgd

Each rank holds weights of its own. At every step it replaces them by the mean
of its own and its two neighbors', and adds its own gradient step:

    x_r  <-  (x_r + x_left + x_right) / 3  -  rate * gradient_r(x_r)

The gradient is taken at the old weights, so it is computed while the messages
travel. Every row and every column of the mixing sums to one: the mean of all
ranks is kept by mixing, and moves by the mean gradient alone.

How fast they agree is the second-largest absolute eigenvalue of the mixing,

    (1 + 2 cos(2 pi / p)) / 3        0 for 3 ranks, 1/3 for 4, 0.8 for 8

which shrinks the slowest pattern, one wave around the ring, at every step. It
nears 1 like 1 - 13/p^2. A step costs two messages on 4 ranks and on 4000, but
news needs about p^2 steps to get around. (Two ranks have one neighbor each
and take halves; one rank is alone.)

Source: Lian et al. 2017, on a ring.
"""

import math
from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import Clock, World, jitter, meter, report, span, world
from exemplars.workload import Step, Task, digits

UNEVEN = jitter(spread=1.0)  # a step takes 1 to 2 virtual seconds


def neighbors(r: int, p: int) -> list[int]:
    """Left and right on the ring; the same rank where there are two."""
    #: A set: of two ranks the left neighbor is the right one too, and must
    #: not be counted twice.
    return list({(r - 1) % p, (r + 1) % p} - {r})


def start(x: Tensor) -> tuple[list[dist.Work], list[Tensor]]:
    """Send x to the neighbors; theirs are in the list when all is waited."""
    near = neighbors(dist.get_rank(), dist.get_world_size())
    theirs = [torch.empty_like(x) for _ in near]
    #: One batch: on NCCL a ring of separate sends would wait forever.
    ops = [dist.P2POp(dist.isend, x, q) for q in near]
    ops += [dist.P2POp(dist.irecv, t, q) for t, q in zip(theirs, near)]
    return dist.batch_isend_irecv(ops) if ops else [], theirs


def finish(x: Tensor, works: list[dist.Work], theirs: list[Tensor]) -> Tensor:
    """The mean of a rank and its neighbors: all weigh the same."""
    for work in works:
        work.wait()
    #: Equal weights on both ends of every edge: what one rank gives, the
    #: other receives, and the mean over the ring cannot drift.
    return sum(theirs, x) / (len(theirs) + 1)


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    local_batch: int,
    rate: float,
    clock: Clock = UNEVEN,
) -> Iterator[Step]:
    """Compute while the neighbors' weights are on their way."""
    model = task.model().to(w.device)
    x = parameters_to_vector(model.parameters()).detach()
    for step in range(steps):
        #: First of all, so that the messages travel while the gradient is
        #: computed; x itself is not touched until they have arrived.
        works, theirs = start(x)
        vector_to_parameters(x, model.parameters())
        rows, labels = task.batch(step * w.size + w.rank, local_batch)
        rows, labels = rows.to(w.device), labels.to(w.device)
        with span("gradient", label=step, cost=clock(w.rank, step)):
            loss = task.loss(model, rows, labels) / labels.numel()
            slope = torch.autograd.grad(loss, list(model.parameters()))
        #: At the weights before the mixing, though it is subtracted after it:
        #: this is what lets messages and gradient overlap.
        x = finish(x, works, theirs) - rate * parameters_to_vector(slope)
        yield Step(loss.item(), [x])


def mix(x: Tensor, rounds: int) -> Iterator[Tensor]:
    """Average without gradients; the weights after every round."""
    for _ in range(rounds):
        x = finish(x, *start(x))
        yield x


def reference(w: World, steps: int, samples: int, rate: float) -> Tensor:
    """All ranks on one process, mixed by a matrix; this rank's weights."""
    p, model = w.size, digits.model().to(w.device)
    once = torch.eye(p, dtype=torch.double, device=w.device)
    ring = (once + once.roll(1, 0) + once.roll(-1, 0)).clamp(max=1)
    mixing = ring / ring.sum(1)
    every = parameters_to_vector(model.parameters()).detach().repeat(p, 1)
    for step in range(steps):
        slopes = torch.empty_like(every)
        for r in range(p):
            vector_to_parameters(every[r], model.parameters())
            batch = digits.batch(step * p + r, samples)
            x, y = (t.to(w.device) for t in batch)
            loss = digits.loss(model, x, y) / y.numel()
            slope = torch.autograd.grad(loss, list(model.parameters()))
            slopes[r] = parameters_to_vector(slope)
        every = mixing @ every - rate * slopes
    return every[w.rank]


def total(w: World) -> Tensor:
    """What all ranks bring to the mixing, summed."""
    return torch.stack([w.randn(100, seed=r) for r in range(w.size)]).sum(0)


def wave(w: World, rounds: int) -> dict[str, int]:
    """One wave around the ring, on top of a constant that must stay."""
    height = math.cos(2 * math.pi * w.rank / w.size) if w.size > 1 else 0.0
    x = w.randn(1, seed=0).fill_(1 + height)
    seen = list(mix(x, rounds))
    d = len(neighbors(w.rank, w.size))
    shrink = (1 + d * math.cos(2 * math.pi / w.size)) / (d + 1)
    law = x.new_tensor([1 + shrink ** (i + 1) * height for i in range(rounds)])
    w.check("eigenvalue", torch.cat(seen), lambda: law, slack=rounds)
    if w.dry or w.rank > 0:
        return {}
    #: On rank 0 the wave is highest, so its height can be read off there.
    high = [abs(x.item() - 1) > height / 2 for x in seen]
    return {"halved": high.index(False) + 1 if False in high else rounds + 1}


def main(
    w: World,
    *,
    steps: int = 5,
    local_batch: int = 8,
    rate: float = 0.2,
    rounds: int = 40,
) -> None:
    w.require(min(steps, rounds) > 0, f"{steps} steps, {rounds} rounds: none")
    with meter() as moved:
        for done in train(
            w, digits, steps=steps, local_batch=local_batch, rate=rate
        ):
            x = done.weights[0]
    alone = partial(reference, w, steps, local_batch, rate)
    # float64; another order of additions, amplified by a few steps
    w.check("replicas", x, alone, slack=64)
    *_, mixed = mix(w.randn(100, seed=w.rank), rounds)
    dist.all_reduce(mixed)
    w.check("mean", mixed, partial(total, w), slack=rounds)
    given = {"elements": len(x), "itemsize": x.element_size()}
    halved = wave(w, rounds)
    report(w, given=given, bytes_sent=moved.bytes_sent, **halved)


if __name__ == "__main__":
    with world() as w:
        main(w)
