"""Downpour: a server applies each gradient on arrival, however old it is.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.asynchronous.downpour

Rank 0 holds the weights and counts their versions; the others are W = p-1
workers. A worker reads, computes, pushes, and reads again. No worker waits
for another, so other updates slip in between a worker's read and its push:

    staleness = version when the gradient is applied - version it was read at

At equal speeds all others push once in the meantime: staleness W-1. Beside a
worker that is k times slower they push k times: its gradients are k(W-1)
versions old, and the others hardly notice it. Nothing bounds that number:
double k and it doubles. What is saved in waiting is paid in age.

Time is virtual: the server knows by name whose gradient comes next.

Source: Dean et al. 2012, section 4.1, fetching and pushing at every step.
"""

import heapq
from collections.abc import Callable, Iterator
from functools import partial
from math import nan
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import World, meter, one_slow, report, span, world
from exemplars.workload import Step, Task, digits

Clock = Callable[[int, int], float]  # rank, step: virtual seconds
Events = Iterator[tuple[str, int]]  # what the server does, and for whom
Updates = Iterator[tuple[int, int, int]]  # step, worker, version it read


def arrivals(workers: range, duration: float, clock: Clock) -> Events:
    """In order of virtual time: take q's gradient, answer q's read."""
    #: A heap, not a scan: the next of a thousand workers in ten steps.
    due = [(0.0, q, 0) for q in workers]
    while due:
        now, q, step = heapq.heappop(due)
        if step > 0:  # at first there is nothing to take
            yield "take", q
        #: Whoever has pushed reads again at once, whatever the others do.
        ends = now + clock(q, step)
        if ends <= duration:
            yield "answer", q
            heapq.heappush(due, (ends, q, step + 1))


def serve(w: World, task: Task, events: Events, rate: float) -> Iterator[Step]:
    """Apply gradients on arrival, and answer reads."""
    model = task.model().to(w.device)
    weights = parameters_to_vector(model.parameters()).detach()
    gradient = torch.empty_like(weights)
    version, read_at = 0, dict[int, int]()
    for what, q in events:
        if what == "answer":
            dist.send(weights, q)
            read_at[q] = version
        else:
            #: By name: NCCL cannot receive from whoever comes first, and the
            #: virtual clock says who that is.
            dist.recv(gradient, q)
            #: At once and in full, although the weights have moved on since
            #: they were read: that is the idea, and its price.
            weights -= rate * gradient
            #: The server knows no loss: only gradients travel.
            yield Step(nan, [weights], age=version - read_at[q])
            version += 1


def work(
    w: World, task: Task, steps: int, samples: int, clock: Clock
) -> Iterator[Step]:
    """Read, compute, push."""
    model = task.model().to(w.device)
    weights = parameters_to_vector(model.parameters()).detach()
    for step in range(steps):
        dist.recv(weights, 0)
        vector_to_parameters(weights, model.parameters())
        x, y = task.batch(step * w.size + w.rank, samples)
        with span("compute", label=step, cost=clock(w.rank, step)):
            loss = task.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
            gradients = torch.autograd.grad(loss, list(model.parameters()))
        dist.send(parameters_to_vector(gradients), 0)
        yield Step(loss.item())


def train(
    w: World,
    task: Task,
    *,
    duration: float,
    local_batch: int,
    rate: float,
    clock: Clock,
) -> Iterator[Step]:
    """Rank 0 serves and the others work, for so many virtual seconds."""
    if w.rank == 0:
        events = arrivals(range(1, w.size), duration, clock)
        return serve(w, task, events, rate)
    #: No worker waits for another, so each knows without a message how often
    #: it will be answered: as often as if it were the only one.
    alone = arrivals(range(w.rank, w.rank + 1), duration, clock)
    steps = sum(what == "answer" for what, _ in alone)
    return work(w, task, steps, local_batch, clock)


def by_definition(workers: range, duration: float, clock: Clock) -> Updates:
    """Every update in order, from a plain list: who reads what, until when."""
    reads = [(clock(q, 0), q, 0, 0) for q in workers]
    version = 0
    while min(reads)[0] <= duration:
        ends, q, step, seen = min(reads)
        yield step, q, seen
        version += 1
        reads.remove((ends, q, step, seen))
        reads.append((ends + clock(q, step + 1), q, step + 1, version))


def reference(
    w: World, order: Updates, samples: int, rate: float
) -> list[Tensor]:
    """Updates in this order on one process: the last weights, and all ages."""
    model, ages = digits.model().to(w.device), []
    versions = [parameters_to_vector(model.parameters()).detach()]
    for step, q, seen in order:
        vector_to_parameters(versions[seen], model.parameters())
        x, y = digits.batch(step * w.size + q, samples)
        loss = digits.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
        slope = torch.autograd.grad(loss, list(model.parameters()))
        ages.append(len(versions) - 1 - seen)
        versions.append(versions[-1] - rate * parameters_to_vector(slope))
    return [versions[-1], torch.tensor(ages)]


def main(w: World, *, duration: int = 9, slowdown: int = 3) -> None:
    w.require(w.size > 1, "1 rank: one serves, the rest work; use 2 or more")
    most = duration // 2
    w.require(0 < slowdown <= most, f"slowdown {slowdown}: use 1 to {most}")
    samples, rate = 8, 0.05
    sizes: Any = dict(duration=duration, local_batch=samples, rate=rate)
    uneven = one_slow(rank=1, factor=slowdown)

    def even(rank: int, step: int) -> float:
        return 1 + step // 2  # later steps take longer, on every worker

    equal = list(train(w, digits, clock=even, **sizes))
    with meter() as moved:
        updates = list(train(w, digits, clock=uneven, **sizes))
    measured = dict(updates=len(updates), bytes_sent=moved.bytes_sent)
    if w.rank == 0:
        for seen, clock in ((equal, even), (updates, uneven)):
            order = by_definition(range(1, w.size), duration, clock)
            alone = partial(reference, w, order, samples, rate)
            ages = [update.age for update in seen]
            w.check("order", [*seen[-1].weights, torch.tensor(ages)], alone, 0)
        came = [e.peer for e in moved.events if e.kind == "recv"]
        slow = [age for age, q in zip(ages, came) if q == 1]
        rest = [age for age, q in zip(ages, came) if q > 1]
        #: A worker's first gradient is younger: all began at version 0.
        others = max(rest[w.size - 2 :], default=0)
        old = [update.age for update in equal]
        measured |= dict(youngest=min(old[w.size - 1 :]), oldest=max(old))
        measured |= dict(straggler=slow[-1], others=others)
    elements = sum(p.numel() for p in digits.model().parameters())
    report(w, given={"elements": elements, "itemsize": 8}, **measured)


if __name__ == "__main__":
    with world() as w:
        main(w)
