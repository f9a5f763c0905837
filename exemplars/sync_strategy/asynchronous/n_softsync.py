"""n-softsync: the server makes one update of every c gradients that arrive.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.asynchronous.n_softsync

Rank 0 holds the weights; the others are W = p-1 workers. Nobody waits: a
worker pushes its gradient and reads again at once. The server only collects,
until it has c = W // n gradients, and steps by their mean. So a round of all
W gradients makes n updates. For W = 4 and n = 2:

    gradient of worker    1  2  3  4  1  2  3  4
    update                   1     2     3     4
    version it read       0  0  0  0  0  1  1  2
    age                   0  0  1  1  2  1  2  1

Beside Downpour, which is c = 1, an update is less noisy and counts for less
age. How much less is a law: between a worker's push and its next one, W-1
other gradients come and every c-th makes an update. So the ages of the c
gradients of one update add up to W-1, whatever n is. Their mean is

    (W-1) / c

which is below n if n divides W, and may be far above it if not: of 7 workers
with n = 4, c is 1 and every gradient is 6 updates old. Even n = 1 is not
synchronous SGD: of the W gradients of an update only the last is fresh, and
all others are one update old.

Source: Gupta, Zhang and Wang 2016; the law of ages is derived here.
"""

from collections.abc import Iterator
from functools import partial
from math import nan
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import Clock, World, meter, one_slow, report, world
from exemplars.sync_strategy.asynchronous import downpour
from exemplars.workload import Step, Task, digits


def serve(
    w: World,
    task: Task,
    events: downpour.Events,
    needed: int,
    rate: float,
) -> Iterator[Step]:
    """Answer reads at once; step when enough gradients have come."""
    model = task.model().to(w.device)
    weights = parameters_to_vector(model.parameters()).detach()
    gradient, total = torch.empty_like(weights), torch.zeros_like(weights)
    version, reads, read_at = 0, list[int](), dict[int, int]()
    for what, q in events:
        if what == "answer":
            #: Whatever the version: it may be the one that this worker has
            #: just used. Nobody waits for the update, so this is no barrier,
            #: not even with n = 1.
            dist.send(weights, q)
            read_at[q] = version
            continue
        dist.recv(gradient, q)
        total += gradient
        reads.append(read_at[q])
        #: By count, not by name: a fast worker may be in one update twice,
        #: and a slow one in none.
        if len(reads) == needed:
            weights -= rate / needed * total
            yield Step(nan, [weights], age=version - min(reads))
            #: Versions count updates, not gradients.
            version += 1
            total.zero_()
            reads.clear()


def train(
    w: World,
    task: Task,
    *,
    duration: float,
    splits: int,
    local_batch: int,
    rate: float,
    clock: Clock,
) -> Iterator[Step]:
    """Rank 0 serves and the others work, for so many virtual seconds."""
    events = partial(downpour.arrivals, duration=duration, clock=clock)
    if w.rank == 0:
        #: Rounded down, as in the paper: where n does not divide W, the
        #: updates are more than n in a round.
        needed = (w.size - 1) // splits
        return serve(w, task, events(range(1, w.size)), needed, rate)
    #: A worker is the same as with Downpour: it cannot tell how many
    #: gradients the server waits for.
    mine = events(range(w.rank, w.rank + 1))
    steps = sum(what == "answer" for what, _ in mine)
    return downpour.work(w, task, steps, local_batch, clock)


def reference(
    w: World, order: downpour.Updates, needed: int, samples: int, rate: float
) -> list[Tensor]:
    """Gradients in this order on one process: the last weights, and ages."""
    model, oldest, reads = digits.model().to(w.device), [], list[int]()
    every = [parameters_to_vector(model.parameters()).detach()]
    total = torch.zeros_like(every[0])
    for count, (step, q, seen) in enumerate(order, 1):
        reads.append(seen // needed)  # of so many gradients, all read them
        vector_to_parameters(every[reads[-1]], model.parameters())
        x, y = digits.batch(step * w.size + q, samples)
        loss = digits.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
        slope = torch.autograd.grad(loss, list(model.parameters()))
        total = total + parameters_to_vector(slope)
        if count % needed == 0:
            oldest.append(len(every) - 1 - min(reads))
            every.append(every[-1] - rate / needed * total)
            total, reads = torch.zeros_like(total), []
    return [every[-1], torch.tensor(oldest)]


def observe(
    updates: Iterator[Step], events: list[Any]
) -> tuple[list[Step], list[list[tuple[int, int]]]]:
    """Of every update, whose gradients it is made of, and how old they are."""
    kept, made = list[Step](), list[list[tuple[int, int]]]()
    seen, read_at = 0, dict[int, int]()
    for version, update in enumerate(updates):
        kept.append(update)
        made.append([])
        for e in events[seen:]:
            if e.kind == "send":
                read_at[e.peer] = version
            elif e.kind == "recv" and e.peer > 0:
                made[-1].append((e.peer, version - read_at[e.peer]))
        seen = len(events)
    return kept, made


def main(
    w: World, *, duration: int = 9, splits: int = 1, slowdown: int = 3
) -> None:
    w.require(w.size > 1, "1 rank: one serves, the rest work; use 2 or more")
    fit = 0 < splits < w.size and 0 < slowdown <= duration // 2
    w.require(fit, f"n = {splits}, {slowdown} times slower in {duration} s")
    workers, runs = range(1, w.size), []
    even, uneven = (one_slow(rank=1, factor=k) for k in (1, slowdown))
    sizes: Any = dict(duration=duration, local_batch=8, rate=0.1)
    #: With n = W every gradient is an update: that is Downpour.
    for clock, n in (uneven, len(workers)), (even, splits), (uneven, splits):
        w.meters.clear()  # only the last run is shown
        with meter() as moved:
            training = train(w, digits, splits=n, clock=clock, **sizes)
            updates, made = observe(training, moved.events)
        runs.append(made)
        if w.rank == 0:
            order = downpour.by_definition(workers, duration, clock)
            alone = partial(reference, w, order, len(workers) // n, 8, 0.1)
            ages = torch.tensor([update.age for update in updates])
            w.check("order", [*updates[-1].weights, ages], alone, slack=0)
    measured: dict[str, float] = {"bytes_sent": moved.bytes_sent}
    if w.rank == 0:
        #: A worker's first gradient is younger: all began at version 0.
        steady = runs[1][-(-len(workers) // len(made[0])) :]
        old = [age for update in steady for _, age in update]
        measured |= dict(youngest=min(old), oldest=max(old))
        measured |= dict(mean_staleness=sum(old) / len(old))
        slow = [age for update in made for q, age in update if q == 1]
        measured |= dict(straggler=slow[-1], per_update=max(map(len, made)))
    elements = sum(p.numel() for p in digits.model().parameters())
    report(w, given={"elements": elements, "itemsize": 8}, **measured)


if __name__ == "__main__":
    with world() as w:
        main(w)
