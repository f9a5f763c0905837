"""Stale-synchronous parallel: fast workers run ahead, by at most s steps.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.bounded_staleness.stale_synchronous_parallel

Rank 0 holds the weights. A worker reads them, computes for one step (the
paper calls it a clock), and pushes its gradient, which is applied on arrival.
Its read for step c is granted once the slowest worker has finished c - s:

    c - min(finished) <= s            s = 0 is bulk synchrony

So a read at step c sees every update of steps up to c-s-1, and the worker's
own. A read that comes too early *waits*, and the server must wake it when
the slowest worker moves. Time is virtual, a pure function of worker and step:
the server knows by name whose gradient comes next, and order and weights are
the same on every run and every backend.

Source: Ho et al. 2013.
"""

import heapq
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from exemplars.runtime import Clock, World, meter, one_slow, report, world
from exemplars.sync_strategy.asynchronous.downpour import (
    Events,
    Updates,
    reference,
    serve,
    work,
)  # fmt: skip
from exemplars.workload import Step, Task, digits


class Server:
    """Who may read, and whose gradient comes next. Holds no tensor."""

    def __init__(self, workers: int, steps: int, staleness: int) -> None:
        self.finished = dict.fromkeys(range(1, workers + 1), 0)  # steps
        self.slowest: int  # steps that every worker has finished
        self.steps = steps
        self.staleness = staleness

    def may_read(self, q: int) -> bool:
        """Whether worker q is close enough to the slowest."""
        #: From the slowest, not from the mean: one straggler is enough to
        #: stop all others, s steps later.
        return self.finished[q] - self.slowest <= self.staleness

    def run(self, clock: Clock) -> Events:
        """In order of virtual time: answer q's read, or take q's gradient."""
        now, waiting = 0.0, list(self.finished)
        #: A heap, not a scan: the next of a thousand workers in ten steps.
        due: list[tuple[float, int]] = []
        while True:
            self.slowest = min(self.finished.values())
            #: Every worker that may go on now is woken, not only the one
            #: that has just pushed: it may have been the slowest.
            for ready in [x for x in waiting if self.may_read(x)]:
                waiting.remove(ready)
                lasts = clock(ready, self.finished[ready])
                heapq.heappush(due, (now + lasts, ready))
                yield "answer", ready
            if not due:
                return
            now, q = heapq.heappop(due)
            yield "take", q
            self.finished[q] += 1
            #: Its next read is queued like any other; whether it waits is
            #: decided at the top of the loop.
            if self.finished[q] < self.steps:
                waiting.append(q)


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    staleness: int,
    local_batch: int,
    rate: float,
    clock: Clock,
) -> Iterator[Step]:
    """Rank 0 serves, the others work; a step is one gradient."""
    if w.rank == 0:
        events = Server(w.size - 1, steps, staleness).run(clock)
        return serve(w, task, events, rate)
    #: A worker receives the weights before every step. The server sends them
    #: when it may go on: that receive is all the synchronization there is.
    return work(w, task, steps, local_batch, clock)


def by_definition(
    workers: range, steps: int, staleness: int, clock: Clock
) -> Updates:
    """Every update in order, without a server; an event is (time, worker).

    A read must see the worker's last push and every push of step c-s-1, and
    happens at the latest of these.
    """
    read: dict[tuple[int, int], tuple[float, int]] = {}
    push: dict[tuple[int, int], tuple[float, int]] = {}
    for c in range(steps):
        for q in workers:
            must_see = [push[c - 1, q]] if c > 0 else [(0.0, 0)]
            if c > staleness:
                must_see += [push[c - staleness - 1, x] for x in workers]
            read[c, q] = max(must_see)
            push[c, q] = (read[c, q][0] + clock(q, c), q)
    for c, q in sorted(push, key=push.__getitem__):
        yield c, q, sum(event <= read[c, q] for event in push.values())


def observe(messages: list[tuple[str, int]], workers: range) -> dict[str, int]:
    """What the server's messages tell: a send answers a read."""
    finished, last = dict.fromkeys(workers, 0), 0
    gap = waits = 0
    for kind, q in messages:
        if kind == "recv":
            finished[q] += 1
            last = q
        elif kind == "send":
            gap = max(gap, finished[q] - min(finished.values()))
            #: It waited if another worker's push came before its answer.
            waits += finished[q] > 0 and last != q
    return {"gap": gap, "waits": waits}


def main(
    w: World, *, steps: int = 6, staleness: int = 1, slowdown: int = 3
) -> None:
    w.require(w.size > 1, "1 rank: one serves, the rest work; use 2 or more")
    w.require(steps > 0, f"{steps} steps: nothing is trained; use 1 or more")
    w.require(staleness >= 0, f"staleness {staleness}: use 0 or more")
    w.require(slowdown > 0, f"slowdown {slowdown}: use 1 or more")
    samples, rate = 8, 0.05
    clock, workers = one_slow(rank=1, factor=slowdown), range(1, w.size)
    sizes: Any = dict(steps=steps, staleness=staleness, clock=clock)
    with meter() as moved:
        updates = list(
            train(w, digits, local_batch=samples, rate=rate, **sizes)
        )
    measured = dict(updates=len(updates), bytes_sent=moved.bytes_sent)
    if w.rank == 0:
        ages = torch.tensor([update.age for update in updates])
        order = by_definition(workers, **sizes)
        replay = partial(reference, w, order, samples, rate)
        w.check("order", [*updates[-1].weights, ages], replay, slack=0)
        messages = [(e.kind, e.peer) for e in moved.events]
        measured |= observe(messages, workers)
    elements = sum(p.numel() for p in digits.model().parameters())
    report(w, given={"elements": elements, "itemsize": 8}, **measured)


if __name__ == "__main__":
    with world() as w:
        main(w)
