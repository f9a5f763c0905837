"""Hogwild: all workers read and write one vector in shared memory, unlocked.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.asynchronous.hogwild

There is no server and there are no messages. A worker reads the weights where
they lie, computes, and subtracts its step there, whatever the others do. Two
things can go wrong, and both grow with the entries that two updates share:

    stale    A reads x, B adds to x, A adds what it computed from the old x
    lost     A loads 5, B loads 5, A stores 6, B stores 6: one addition is gone

The first is a matter of any asynchronous SGD: with p equal workers a gradient
is p-1 updates old. The second needs an addition that is not atomic: load, add
and store as three steps. The paper assumes atomic additions. In PyTorch
`x += step` is not atomic, and an addition is lost wherever two workers load
an entry before the first of them stores it.

Where updates touch different entries neither can happen, and the result is
that of one process, bit for bit, with no synchronization at all. So Hogwild
is for sparse gradients: a sample touches a few of very many weights.

Real races differ from run to run. Here those that matter run in slow motion:
a barrier after every read and write fixes one order out of the many.

Source: Recht et al. 2011, section 3, algorithm 1.
"""

import os
from collections.abc import Iterator
from functools import partial
from math import nan
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.communication_pattern.transport import (
    shared_memory_all_reduce as memory,
)
from exemplars.runtime import (
    Clock,
    World,
    meter,
    one_slow,
    report,
    span,
    world,
)
from exemplars.sync_strategy.asynchronous import downpour
from exemplars.workload import Step, Task, digits


def shared(w: World, start: Tensor) -> Tensor:
    """One vector that every rank of this host reads and writes."""
    #: A file in memory, of which only the name is sent. It is the host's,
    #: also where gradients are computed on an accelerator.
    x = memory.shared_rows(memory.agreed_file(w.device), start)[0]
    x.copy_(start.detach())  # all ranks write the same numbers
    dist.barrier()
    return x


def gradient(
    w: World, task: Task, weights: Tensor, batch: int, samples: int
) -> Tensor:
    """At the weights as they lie there now."""
    model = task.model().to(w.device)
    vector_to_parameters(weights.to(w.device), model.parameters())
    x, y = (t.to(w.device) for t in task.batch(batch, samples))
    loss = task.loss(model, x, y) / y.numel()
    slope = torch.autograd.grad(loss, list(model.parameters()))
    return parameters_to_vector(slope).cpu()


def train(
    w: World,
    task: Task,
    *,
    duration: float,
    local_batch: int,
    rate: float,
    clock: Clock,
) -> Iterator[Step]:
    """In slow motion, by a virtual clock; every rank sees every update."""
    weights = shared(w, parameters_to_vector(task.model().parameters()))
    version, step, read_at = 0, 0, dict[int, int]()
    for what, q in downpour.arrivals(range(w.size), duration, clock):
        if q == w.rank and what == "answer":
            with span("read", label=step, cost=1):
                batch = step * w.size + q
                slope = gradient(w, task, weights, batch, local_batch)
        if q == w.rank and what == "take":
            with span("write", label=step, cost=1):
                #: Subtracted from what is there now, not from what was read:
                #: that would undo what others have done in the meantime.
                weights -= rate * slope
            step += 1
        #: The slow motion. In earnest there are no barriers and no turns.
        dist.barrier()
        if what == "answer":
            #: Nobody keeps versions in earnest either; here the order is
            #: known, and with it the age of every gradient.
            read_at[q] = version
        else:
            yield Step(nan, [weights], age=version - read_at[q])
            version += 1


def add_freely(x: Tensor, updates: Tensor) -> None:
    """Hogwild itself: no turns, no barrier, no lock."""
    for update in updates:
        x += update


def add_at_once(x: Tensor) -> None:
    """Add 1 to every entry; everyone loads before anyone stores."""
    loaded = x.clone()
    dist.barrier()
    #: Whoever shares an entry has loaded the same number and stores the same
    #: sum, so it does not matter who stores last.
    x.copy_(loaded + 1)
    dist.barrier()


def reference(w: World, steps: int, support: int) -> Tensor:
    """All updates of disjoint entries, one rank after the other."""
    totals = torch.zeros(w.size, support, dtype=torch.double)
    for r, total in enumerate(totals):
        for update in w.randn(steps, support, seed=r).cpu():
            total += update
    return totals.flatten()


def races(w: World, steps: int, support: int, overlap: int) -> dict[str, Any]:
    """Updates of a few entries: apart from all others', or partly shared."""
    zeros = torch.zeros(w.size * support, dtype=torch.double)
    apart, torn = shared(w, zeros), shared(w, zeros)
    updates = w.randn(steps, support, seed=w.rank).cpu()
    add_freely(apart.view(w.size, support)[w.rank], updates)
    #: Each rank shares some entries with the next.
    first = w.rank * (support - overlap)
    for _ in range(steps):
        add_at_once(torn[first : first + support])
    w.check("disjoint", apart, partial(reference, w, steps, support), slack=0)
    #: In a dry run nobody else adds anything.
    return {} if w.dry else {"applied": int(torn.sum())}


def main(
    w: World,
    *,
    duration: int = 9,
    slowdown: int = 3,
    steps: int = 5,
    support: int = 8,
    overlap: int = 2,
) -> None:
    here = int(os.environ.get("LOCAL_WORLD_SIZE", w.size))
    w.require(here == w.size, f"{w.size} ranks, {here} here: use one host")
    fit = 0 < 2 * slowdown <= duration
    w.require(fit, f"slowdown {slowdown}: use 1 to {duration // 2}")
    fit = 0 <= overlap <= support and min(steps, support) > 0
    w.require(fit, f"{overlap} of {support} entries shared, {steps} steps")
    found = races(w, steps, support, overlap)
    sizes: Any = dict(duration=duration, local_batch=8, rate=0.05)
    clock = one_slow(rank=0, factor=slowdown)
    with meter() as moved:
        updates = list(train(w, digits, clock=clock, **sizes))
    trained = updates[-1].weights[0].to(w.device)
    ages = torch.tensor([update.age for update in updates])
    order = downpour.by_definition(range(w.size), duration, clock)
    truth = partial(downpour.reference, w, order, 8, 0.05)
    w.check("order", [trained, ages], truth, slack=0)
    sent = moved.bytes_sent + moved.payload
    report(w, staleness=int(ages.max()), bytes_sent=sent, **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
