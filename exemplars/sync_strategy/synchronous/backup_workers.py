"""Backup workers: the first N of N + b gradients make the update.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.synchronous.backup_workers

Rank 0 holds the weights, and the others are W = N + b workers. All of them
start each step, and the server steps as soon as N gradients have come. What
comes later was computed from old weights and is dropped; its worker reads the
newest weights and is back in the race. With W = 3, b = 1 and a stall now and
then:

    second    0     1     2     3     4     5     6
    worker 1  [       step 0    ]x[  3  ][  4  ][  5  ]
    worker 2  [  0  ][  1  ][  2  ][       step 3    ]x
    worker 3  [  0  ][  1  ][  2  ][  3  ][  4  ][  5  ]
    update          1     2     3     4     5     6

Waiting for all, step 0 and step 3 would take three seconds each. Yet no
gradient is ever stale, as it would be without a barrier: every update is the
one that synchronous SGD makes with N workers. The price is the work at x, and
that the samples of slow workers count less.

Time is virtual: the server knows by name whose gradient comes next.

Source: Chen et al. 2016, algorithms 3 and 4.
"""

import heapq
from collections.abc import Iterator
from functools import partial
from math import nan
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import Clock, World, meter, report, world
from exemplars.sync_strategy.asynchronous.downpour import work
from exemplars.workload import Step, Task, digits

Events = Iterator[tuple[str, int, int]]  # what, for whom, step of its weights


def schedule(workers: range, needed: int, steps: int, clock: Clock) -> Events:
    """In order of virtual time: answer, use or drop a gradient, update."""
    step, now, used = 0, 0.0, list[int]()
    due, reading = list[tuple[float, int, int]](), list(workers)
    while reading or due:
        for q in reading:
            yield "answer", q, step
            #: Of gradients that come at one moment, the newest is first: a
            #: straggler that arrives with an update reads what it made.
            heapq.heappush(due, (now + clock(q, step), -step, q))
        now, read, q = heapq.heappop(due)
        if -read < step:
            yield "drop", q, step
            #: It does not wait for the next update: it may still be among
            #: the first N of this step.
            reading = [q]
        else:
            yield "use", q, -read
            used.append(q)
            #: Whoever is in the update waits for it. This is the barrier,
            #: and it opens for N, not for all.
            reading = []
            if len(used) == needed:
                yield "update", 0, step
                step, reading, used = step + 1, used, []
        if step == steps:
            reading = []


def serve(w: World, task: Task, events: Events, rate: float) -> Iterator[Step]:
    """Average the first N gradients of every step."""
    model = task.model().to(w.device)
    weights = parameters_to_vector(model.parameters()).detach()
    gradient, total = torch.empty_like(weights), torch.zeros_like(weights)
    reads = list[int]()  # whose weights the gradients in the total came from
    for what, q, step in events:
        if what == "answer":
            dist.send(weights, q)
        elif what == "update":
            #: The mean over N gradients, not over the W that started.
            weights -= rate / len(reads) * total
            yield Step(nan, [weights], age=step - min(reads))
            total.zero_()
            reads.clear()
        else:
            #: A late gradient is on its way and has to be taken, used or not.
            dist.recv(gradient, q)
            if what == "use":
                total += gradient
                reads.append(step)


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    backups: int,
    local_batch: int,
    rate: float,
    clock: Clock,
) -> Iterator[Step]:
    """Rank 0 serves and the others work; a step is one update."""
    workers = range(1, w.size)
    events = schedule(workers, len(workers) - backups, steps, clock)
    if w.rank == 0:
        return serve(w, task, events, rate)
    #: The clock is a pure function, so each worker knows without a message
    #: which steps it will be in time to start.
    answers = [(q, step) for what, q, step in events if what == "answer"]
    mine = [step for q, step in answers if q == w.rank]
    seconds = [clock(w.rank, step) for step in mine]
    return work(w, task, len(mine), local_batch, lambda _, i: seconds[i])


def stalls(workers: int, slowdown: int) -> Clock:
    """A step takes a second; every k steps another worker needs k seconds."""

    def seconds(q: int, step: int) -> float:
        turn, rest = divmod(step, slowdown)
        return slowdown if (q - 1, rest) == (turn % workers, 0) else 1

    return seconds


def reference(w: World, clock: Clock, size: dict[str, Any]) -> Tensor:
    """Without a server: sort the times at which gradients would be ready."""
    model, now = digits.model().to(w.device), 0.0
    weights = parameters_to_vector(model.parameters()).detach()
    free, done = [0.0] * w.size, [0] * w.size  # of each worker
    for step in range(size["steps"]):
        start = {q: max(now, free[q]) for q in range(1, w.size)}
        ready = sorted((start[q] + clock(q, step), q) for q in start)
        first = ready[: len(ready) - size["backups"]]
        now = first[-1][0]
        vector_to_parameters(weights, model.parameters())
        total = torch.zeros_like(weights)
        for _, q in first:
            batch = digits.batch(done[q] * w.size + q, size["local_batch"])
            x, y = (t.to(w.device) for t in batch)
            loss = digits.loss(model, x, y) / y.numel()
            slope = torch.autograd.grad(loss, list(model.parameters()))
            total += parameters_to_vector(slope)
        weights = weights - size["rate"] / len(first) * total
        for end, q in ready:
            if start[q] < now:
                free[q], done[q] = end, done[q] + 1
    return weights


def main(
    w: World, *, steps: int = 8, backups: int = 1, slowdown: int = 3
) -> None:
    needed = w.size - 1 - backups
    few = f"{w.size} ranks, {backups} backups: nobody is left to wait for"
    w.require(backups >= 0 and needed > 0, few)
    w.require(min(steps, slowdown) > 0, f"{steps} steps, k = {slowdown}: none")
    clock = stalls(w.size - 1, slowdown)
    sizes: Any = dict(steps=steps, backups=backups, local_batch=8, rate=0.1)
    with meter() as moved:
        done = list(train(w, digits, clock=clock, **sizes))
    pushed = moved.calls["recv" if w.rank == 0 else "send"].count
    measured = dict(bytes_sent=moved.bytes_sent, gradients=pushed)
    if w.rank == 0:
        truth = partial(reference, w, clock, sizes)
        w.check("parameters", done[-1].weights[0], truth, slack=0)
        oldest = max(update.age for update in done)
        measured |= dict(dropped=pushed - needed * steps, staleness=oldest)
    elements = sum(p.numel() for p in digits.model().parameters())
    report(w, given={"elements": elements, "itemsize": 8}, **measured)


if __name__ == "__main__":
    with world() as w:
        main(w)
