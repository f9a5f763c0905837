"""Asynchronous gossip: whoever finishes a step averages with one other rank.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.asynchronous.asynchronous_gossip

Each rank holds weights of its own. When its gradient is ready, it picks any
other rank at random, and both take the mean of their two copies; then it adds
its own step:

    x_q, x_other  <-  (x_q + x_other) / 2
    x_q           <-  x_q - rate * gradient        of what x_q was at first

There are no rounds. The other rank is in the middle of a step: its weights
change while its gradient is computed, which is as stale as that. But it does
not wait, and a slow rank is met as often as any.

An exchange keeps the sum of the pair, so the mean of all ranks moves by the
gradients alone. And it takes half of the squared distance between the two off

    spread  =  sum over all ranks of |x - mean|^2

exactly, so mixing never drives the ranks apart. Averaged over all pairs that
is a share of 1/(p-1): after p exchanges, one started by each rank, about 1/e
of the spread is left, on 4 ranks and on 4000. A ring needs p^2 rounds.

Source: Lian et al. 2018 (AD-PSGD); the shares are derived here.
"""

import heapq
from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import (
    Clock,
    World,
    meter,
    one_slow,
    report,
    span,
    world,
)
from exemplars.workload import Step, Task, digits

Meetings = Iterator[tuple[float, int, int, int]]  # when, who, step, with whom


def meetings(p: int, duration: float, clock: Clock) -> Meetings:
    """In order of virtual time: who has finished a step, and picks whom."""
    due = [(clock(q, 0), q, 0) for q in range(p)]
    heapq.heapify(due)
    while due[0][0] <= duration:
        now, q, step = due[0]
        #: Random, but by a seed: every rank knows all choices, so the one
        #: that is picked knows when to answer, and no message is needed.
        other = (q + Random(f"{q} {step}").randrange(1, p)) % p
        yield now, q, step, other
        heapq.heapreplace(due, (now + clock(q, step + 1), q, step + 1))


def average(x: Tensor, other: int) -> None:
    """Both ends of an exchange do the same, and end with the same bits."""
    theirs = torch.empty_like(x)
    #: All exchanges have one order, so nobody waits in a circle. Without it,
    #: three ranks may each wait for the next one; the paper splits the ranks
    #: in two halves, and only one half may start an exchange.
    pair = [
        dist.P2POp(dist.isend, x, other),
        dist.P2POp(dist.irecv, theirs, other),
    ]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    #: In place, so that an average is what the next exchange sends.
    x.add_(theirs).div_(2)


def train(
    w: World,
    task: Task,
    *,
    duration: float,
    local_batch: int,
    rate: float,
    clock: Clock,
) -> Iterator[Step]:
    """A rank's own steps; in between it answers whoever has picked it."""
    model = task.model().to(w.device)
    x = parameters_to_vector(model.parameters()).detach()
    read, since = x.clone(), 0.0
    for now, q, step, other in meetings(w.size, duration, clock):
        if w.rank not in (q, other):
            continue
        #: A piece of this rank's step. It goes on after the exchange, as in
        #: earnest, where another thread answers.
        with span("compute", label=step, cost=now - since):
            since = now
            if w.rank == q:
                #: At x as it was when the step began, whatever has been
                #: averaged into it since.
                vector_to_parameters(read, model.parameters())
                rows, y = task.batch(step * w.size + q, local_batch)
                rows, y = rows.to(w.device), y.to(w.device)
                loss = task.loss(model, rows, y) / y.numel()
                slope = torch.autograd.grad(loss, list(model.parameters()))
        average(x, other if w.rank == q else q)
        if w.rank == q:
            x -= rate * parameters_to_vector(slope)
            yield Step(loss.item(), [x])
            read = x.clone()


def reference(
    w: World, clock: Clock, duration: float, samples: int, rate: float
) -> Tensor:
    """All ranks on one process, by time; of them, this rank's weights."""
    due, model = list[tuple[float, int, int]](), digits.model().to(w.device)
    for q in range(w.size):
        end, step = clock(q, 0), 0
        while end <= duration:
            due.append((end, q, step))
            end, step = end + clock(q, step + 1), step + 1
    every = [parameters_to_vector(model.parameters()).detach()] * w.size
    read = list(every)
    for _, q, step in sorted(due):
        vector_to_parameters(read[q], model.parameters())
        x, y = digits.batch(step * w.size + q, samples)
        loss = digits.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
        slope = torch.autograd.grad(loss, list(model.parameters()))
        other = (q + Random(f"{q} {step}").randrange(1, w.size)) % w.size
        every[other] = (every[q] + every[other]) / 2
        every[q] = read[q] = every[other] - rate * parameters_to_vector(slope)
    return every[w.rank]


def mixing(w: World, duration: int, clock: Clock) -> dict[str, float]:
    """The same exchanges without gradients, each seen from outside."""
    x, spreads, halves = w.randn(100, seed=w.rank), [], []
    rows = torch.empty(w.size, 100, dtype=x.dtype, device=x.device)
    for _, q, _, other in meetings(w.size, duration, clock):
        dist.all_gather(list(rows), x)
        spreads.append((rows - rows.mean(0)).square().sum())
        halves.append((rows[q] - rows[other]).square().sum() / 2)
        if w.rank in (q, other):
            average(x, other if w.rank == q else q)
    #: What an exchange leaves is what the next one finds.
    taken, law = -torch.stack(spreads).diff(), torch.stack(halves[:-1])
    w.check("spread", taken, lambda: law, slack=64)
    start = torch.stack([w.randn(100, seed=r) for r in range(w.size)])
    w.check("mean", rows.mean(0), lambda: start.mean(0), slack=64)
    left = spreads[w.size] / spreads[0]
    return {} if w.dry else {"left": round(left.item(), 6)}


def main(w: World, *, duration: int = 9, slowdown: int = 3) -> None:
    w.require(w.size > 1, "1 rank has nobody to meet; use 2 or more")
    w.require(0 < 2 * slowdown <= duration, f"{duration} s: too short")
    clock = one_slow(rank=0, factor=slowdown)
    sizes: Any = dict(duration=duration, local_batch=8, rate=0.2)
    with meter() as moved:
        steps = list(train(w, digits, clock=clock, **sizes))
    alone = partial(reference, w, clock, duration, 8, sizes["rate"])
    w.check("order", steps[-1].weights, lambda: [alone()], slack=0)
    total = torch.tensor(moved.bytes_sent, device=w.device)
    dist.all_reduce(total)
    measured = {} if w.dry else {"total_bytes": total.item()}
    measured |= mixing(w, duration, clock)
    given = {"elements": steps[-1].weights[0].numel(), "itemsize": 8}
    report(w, given=given, updates=len(steps), **measured)


if __name__ == "__main__":
    with world() as w:
        main(w)
