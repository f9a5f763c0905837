"""Shard alternator parallelism: many models take turns on few devices.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.memory_tiers.shard_alternator

A model is a chain: each shard waits for the one before, forward and then
backward, step after step. Alone, it keeps one device busy at a time, and the
others wait. Ten models, as in a search for the best rate, are ten chains that
do not wait for each other. So all models live in the memory of the host, and
whenever a device is free it takes the next shard of whichever model can go on:

    device 0    a F0   c F0   b F1   a B1 ...
    device 1    b F0   a F1   c F1   b B1 ...

If several can, it takes the model that has most left to do, so that no long
chain remains at the end. The time is that of any list schedule: at most
W / p + (1 - 1/p) C for work W in all and C in the longest chain, where one
model after the other takes W.

A device holds one shard at a time. Weights come up for every turn, and after
backward they go down again, updated. Each model computes what it computes
alone, on whatever devices, so it has the same bits.

Here the devices are ranks of one machine, and the host's memory is a file that
all of them map. Who is next is known to all; a token tells that it may start.

Source: Nagrecha and Kumar 2021 (Hydra, SHARP; longest remaining time first).
"""

from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world
from exemplars.scratch import shared

FORWARD, BACKWARD = 1, 3  # seconds; backward computes the shard again
STEPS, BATCH, WIDTH = 2, 4, 12


class Turn(NamedTuple):
    """A shard of a model on a device."""

    start: int
    end: int
    rank: int
    model: int
    place: int  # in the model's chain


def alternate(ranks: int, models: int, costs: list[int]) -> list[Turn]:
    """Whatever device is free takes the model that has most left."""
    turns, free, done, ready = [], [0] * ranks, [0] * models, [0] * models
    while left := [m for m in range(models) if done[m] < len(costs)]:
        rank = min(range(ranks), key=lambda r: free[r])
        start = max(free[rank], min(ready[m] for m in left))
        #: All are chains of the same costs: most left is least done.
        able = [m for m in left if ready[m] <= start]
        model = min(able, key=lambda m: done[m])
        end = start + costs[done[model]]
        turns.append(Turn(start, end, rank, model, done[model]))
        free[rank] = ready[model] = end
        done[model] += 1
    return turns


class Device:
    """Takes a shard at a time from the memory of the host."""

    def __init__(self, w: World, *host: Tensor) -> None:
        self.w, self.bytes_moved = w, 0
        self.weights, self.inputs, self.slopes = host

    def fetch(self, x: Tensor) -> Tensor:
        """A copy in the memory of the device, for this turn."""
        self.bytes_moved += x.nbytes
        return x.to(self.w.device, copy=True).requires_grad_()

    def store(self, x: Tensor, into: Tensor) -> None:
        """Overwrite a tensor in the memory of the host."""
        self.bytes_moved += x.nbytes
        into.copy_(x.detach())

    def take(self, turn: Turn) -> None:
        """Run a shard: what it needs comes up, what it changes goes down."""
        m, shards = turn.model, self.weights.shape[1]
        step, i = divmod(turn.place, 2 * shards)
        if i == 0:
            self.store(samples(self.w, step), self.inputs[m, 0])
        i = min(i, 2 * shards - 1 - i)
        x = self.fetch(self.inputs[m, i])
        weight = self.fetch(self.weights[m, i])
        if turn.end - turn.start == FORWARD:
            with span("forward", label=m, cost=FORWARD), torch.no_grad():
                y = (x @ weight).tanh()
            #: For the next shard, and for this one's backward later.
            self.store(y, self.inputs[m, i + 1])
            return
        #: Of half the sum of squares, the slope at the output is the output.
        above = self.slopes[m] if i + 1 < shards else self.inputs[m, -1]
        with span("backward", label=m, cost=BACKWARD):
            y = (x @ weight).tanh()
            pair = torch.autograd.grad(y, (x, weight), self.fetch(above))
        self.store(pair[0], self.slopes[m])
        #: Updated at once: the next to take this shard has the new weights.
        self.store(weight - 0.01 / (1 + m) * pair[1], self.weights[m, i])


def run(w: World, turns: list[Turn], take: Callable[[Turn], None]) -> None:
    """This rank's turns, each when the one before in its chain is over."""
    ranks = {(t.model, t.place): t.rank for t in turns}
    #: Of no content: nobody looks at what is heard.
    token, heard = torch.zeros(2, 1, device=w.device)
    posted = dict[int, Any]()
    #: All ranks go through one list of turns and tokens, in the order of
    #: time. So what one waits for was posted before, on NCCL as well.
    events = [(t.start, 1, t) for t in turns] + [(t.end, 0, t) for t in turns]
    for _, starts, turn in sorted(events):
        to = ranks.get((turn.model, turn.place + 1), turn.rank)
        if starts and turn.rank == w.rank:
            if turn.model in posted:
                posted.pop(turn.model).wait()
            take(turn)
        elif not starts and to == w.rank != turn.rank:
            posted[turn.model] = dist.irecv(heard, turn.rank)
        elif not starts and to != w.rank == turn.rank:
            posted[-turn.end] = dist.isend(token, to)
    for work in posted.values():
        work.wait()


def samples(w: World, step: int) -> Tensor:
    """The same for all models."""
    return w.randn(BATCH, WIDTH, seed=step)


def network(w: World, shards: int) -> Tensor:
    """The matrices of a model, one for each shard."""
    return w.randn(shards, WIDTH, WIDTH, seed=0) / WIDTH**0.5


def mapped(path: Path, *shape: int) -> Tensor:
    """Memory of the host: a file that all ranks of the machine map."""
    whole = torch.from_file(str(path), True, prod(shape), dtype=torch.double)
    return whole.view(shape)


def reference(w: World, models: int, shards: int) -> list[Tensor]:
    """Each model alone, in one piece, on one process."""
    trained = list[Tensor]()
    for m in range(models):
        weights = network(w, shards)
        for step in range(STEPS):
            y = samples(w, step)
            for weight in weights.requires_grad_():
                y = torch.tanh(y @ weight)
            slope = torch.autograd.grad(y.square().sum() / 2, weights)[0]
            weights = (weights - 0.01 / (1 + m) * slope).detach()
        trained.append(weights.cpu())
    return trained


def main(w: World, *, models: int = 5, shards: int = 3) -> None:
    w.require(models * shards > 0, f"{models} models of {shards} shards: none")
    costs = STEPS * ([FORWARD] * shards + [BACKWARD] * shards)
    turns = alternate(w.size, models, costs)
    with shared(w) as folder, meter():
        weights = mapped(folder / "weights", models, shards, WIDTH, WIDTH)
        inputs = mapped(folder / "inputs", models, shards + 1, BATCH, WIDTH)
        slopes = mapped(folder / "slopes", models, BATCH, WIDTH)
        weights.copy_(network(w, shards))
        device = Device(w, weights, inputs, slopes)
        memory = w.memory(host=lambda: [weights, inputs, slopes])
        dist.barrier()
        with memory:
            run(w, turns, device.take)
        dist.barrier()
        truth = partial(reference, w, models, shards)
        w.check("parameters", [*weights], truth, slack=0)
    fast = [sum(s.values()) - s["host"] for s in memory.series]
    moved = torch.tensor(device.bytes_moved, device=w.device)
    dist.all_reduce(moved)
    given = dict(batch=BATCH, width=WIDTH, steps=STEPS, itemsize=8)
    report(w, given=given, resident=max(fast), moved=int(moved))


if __name__ == "__main__":
    with world() as w:
        main(w)
