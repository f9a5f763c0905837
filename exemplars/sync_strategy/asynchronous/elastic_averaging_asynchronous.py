"""Asynchronous elastic averaging: each worker meets the center alone.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.asynchronous.elastic_averaging_asynchronous

Rank 0 holds the center c. A worker takes H steps on its own, then meets the
center, wherever the other workers are. A spring pulls the two together:

    x_i  <-  x_i - alpha (x_i - c)
    c    <-  c   + alpha (x_i - c)          with the old x_i and c

No worker waits for another, and nothing is as stale as an old gradient: a
slow worker brings its weights, which are good weights, if fewer steps on.

A meeting multiplies the gap between the two by 1 - 2 alpha, so the springs
hold for any alpha below 1, however many workers there are. When all W workers
meet the center at once, their pulls add up, and the limit is 2/(W+1). The
pulls at the two ends of a spring cancel in both cases: c + sum x_i is kept.

Source: Zhang, Choromanska and LeCun 2015.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate, count, takewhile
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import World, meter, one_slow, report, span, world
from exemplars.workload import Step, Task, digits

Clock = Callable[[int, int], float]  # rank, step: virtual seconds


def answer(center: Tensor, q: int, alpha: float) -> None:
    """The center's end of a meeting with worker q."""
    x = torch.empty_like(center)
    dist.recv(x, q)
    #: The old center, before it is pulled: the worker must feel the same
    #: force, or the pulls would not cancel.
    dist.send(center, q)
    center += alpha * (x - center)


def meet(x: Tensor, alpha: float) -> None:
    """A worker's end of a meeting: two messages, whatever the others do."""
    center = torch.empty_like(x)
    dist.send(x, 0)
    dist.recv(center, 0)
    x -= alpha * (x - center)


def meetings(
    workers: range, duration: float, period: int, clock: Clock
) -> list[int]:
    """Who meets the center, in order of virtual time: after every H steps."""
    due = []
    for q in workers:
        ends = accumulate(clock(q, step) for step in count())
        in_time = takewhile(lambda end: end <= duration, ends)
        due += [(end, q) for end in list(in_time)[period - 1 :: period]]
    return [q for _, q in sorted(due)]


def train(
    w: World,
    task: Task,
    *,
    duration: float,
    period: int,
    alpha: float,
    local_batch: int,
    rate: float,
    clock: Clock,
) -> Iterator[Step]:
    """Rank 0 keeps the center; a worker steps alone and meets it."""
    model = task.model().to(w.device)
    x = parameters_to_vector(model.parameters()).detach()
    if w.rank == 0:
        #: Time is virtual, so the center knows by name who comes next.
        for q in meetings(range(1, w.size), duration, period, clock):
            answer(x, q, alpha)
            yield Step(float("nan"), [x])
        return
    #: From here on the model computes with the memory of x: what a step or a
    #: meeting does to the one, it does to the other.
    vector_to_parameters(x, model.parameters())
    alone = meetings(range(w.rank, w.rank + 1), duration, period, clock)
    for step in range(period * len(alone)):
        rows, labels = task.batch(step * w.size + w.rank, local_batch)
        rows, labels = rows.to(w.device), labels.to(w.device)
        with span("step", label=step, cost=clock(w.rank, step)):
            loss = task.loss(model, rows, labels) / labels.numel()
            slope = torch.autograd.grad(loss, list(model.parameters()))
            x -= rate * parameters_to_vector(slope)
        if (step + 1) % period == 0:
            meet(x, alpha)
        yield Step(loss.item())


def reference(w: World, slowdown: int, size: dict[str, Any]) -> Tensor:
    """All ranks on one process, without a clock; this rank's weights."""
    model, period = digits.model().to(w.device), size["period"]
    due = []
    for q in range(1, w.size):
        lasts = period * (slowdown if q == 1 else 1)
        ends = range(lasts, size["duration"] + 1, lasts)
        due += [(end, q, first) for first, end in enumerate(ends)]
    every = [parameters_to_vector(model.parameters()).detach()] * w.size
    for _, q, first in sorted(due):
        for step in range(first * period, (first + 1) * period):
            vector_to_parameters(every[q], model.parameters())
            batch = digits.batch(step * w.size + q, size["local_batch"])
            x, y = (t.to(w.device) for t in batch)
            loss = digits.loss(model, x, y) / y.numel()
            slope = torch.autograd.grad(loss, list(model.parameters()))
            every[q] = every[q] - size["rate"] * parameters_to_vector(slope)
        pull = size["alpha"] * (every[q] - every[0])
        every[q] = every[q] - pull
        every[0] = every[0] + pull
    return every[w.rank]


def springs(w: World, alpha: float, rounds: int) -> None:
    """Without gradients: rank 1 meets the center again and again."""
    x, before = w.randn(20, seed=w.rank), w.randn(20, seed=w.rank)
    for _ in range(rounds):
        if w.rank == 0:
            answer(x, 1, alpha)
        if w.rank == 1:
            meet(x, alpha)
    if w.rank < 2:
        #: Both are as far from their middle, and on the same sides or not.
        middle = (w.randn(20, seed=0) + w.randn(20, seed=1)) / 2
        left = middle + (1 - 2 * alpha) ** rounds * (before - middle)
        w.check("gap", x, lambda: left, slack=64)
    dist.all_reduce(before)
    dist.all_reduce(x)
    w.check("mass", x, lambda: before, slack=64)


def main(
    w: World,
    *,
    duration: int = 24,
    period: int = 3,
    slowdown: int = 4,
    alpha: float = 0.9,
) -> None:
    w.require(w.size > 1, "1 rank: one is the center; use 2 or more")
    w.require(0 < period * slowdown <= duration, f"{duration} s: too short")
    #: 0.9 is above 2/(W+1) for 2 workers and more: only one at a time holds.
    size: Any = dict(duration=duration, period=period, alpha=alpha)
    size |= dict(local_batch=8, rate=0.2)
    #: A model that outlives the training shows where each worker ended.
    model = digits.model().to(w.device)
    task = replace(digits, model=lambda: model)
    clock = one_slow(rank=1, factor=slowdown)
    with meter() as moved:
        steps = list(train(w, task, clock=clock, **size))
    mine = parameters_to_vector(steps[-1].weights or model.parameters())
    w.check("order", mine.detach(), lambda: reference(w, slowdown, size), 0)
    springs(w, alpha, rounds=5)
    given = {"elements": len(mine), "itemsize": mine.element_size()}
    counts = dict(meetings=moved.calls["send"].count)
    report(w, given=given, bytes_sent=moved.bytes_sent, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
