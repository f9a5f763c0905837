"""Adaptive rerouting: a dead stage's micro-batches go to its peers.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.elastic.adaptive_rerouting

Several pipelines train one model, each with its own part of every batch. So
each stage is on several ranks with the same weights. When one of them dies,
its peers can do its work, and nothing has to be copied or restored:

    pipeline 0   [stage 0] -> [stage 1]      [stage 0] -> [stage 1]
                                                         /
    pipeline 1   [stage 0] -> [stage 1]      [stage 0] -'    dead

The dead stage's micro-batches are dealt to its peers in turn, come back the
way they went, and pass all other stages as before. A gradient is the sum over
micro-batches, whoever computed them, so the update is the same. Any set of
deaths is survived that leaves one peer for each stage: of two pipelines that
have lost a stage each, one whole pipeline is left.

The price is time. The busiest peer has n micro-batches instead of m, and a
batch takes (n + s-1)(f + b) seconds, for s stages of which the last one has
died. That is as long as if the other pipelines had taken over all
micro-batches of the broken one: the gain is in what need not move.

A rank supervises here: its worker, which computes and dies, is a process of
its own (exemplars/elastic.py).

Source: Gandhi et al. 2024 (ReCycle), abstract.
"""

import os
import signal
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.elastic import Crew
from exemplars.runtime import Schedule, World, meter, report, world
from exemplars.sync_strategy.pipeline_flush.schedule_as_data import (
    Stage,
    Work,
    reference,
    run_batch,
)
from exemplars.workload import Step, Task, digits, equal_layers

Shape = tuple[int, int, int]  # pipelines, stages, micro-batches of each


def rerouted(living: Sequence[int], d: int, s: int, m: int) -> Schedule:
    """1F1B on the living of d pipelines of s stages, m micro-batches each."""

    def taker(i: int, stage: int) -> int:
        home = i % d * s + stage
        peers = [r for r in living if r % s == stage]
        #: The dead one's micro-batches are dealt to its peers in turn.
        return home if home in living else peers[i // d % len(peers)]

    def works(r: int) -> Iterator[Work]:
        mine = [i for i in range(m * d) if taker(i, r % s) == r]
        #: Who has twice as many has twice as many on their way.
        ahead = -(-len(mine) // m) * (s - 1 - r % s)
        yield from (("F", i, r % s) for i in mine[:ahead])
        for n, i in enumerate(mine, ahead):
            yield from (("F", j, r % s) for j in mine[n : n + 1])
            yield "B", i, r % s

    return Schedule.of(works(r) for r in living)


def die(_: Tensor) -> None:
    """No exception and no goodbye: the kernel ends the process here."""
    os.kill(os.getpid(), signal.SIGKILL)


class Worker:
    """One stage of one pipeline, in a process that may die."""

    def __init__(self, w: World, task: Task, batch: int, of: Shape) -> None:
        self.w, self.task, self.batch, self.of = w, task, batch, of
        self.own = w.rank % of[1]
        self.stage = Stage(w, task, self.own, rerouted(range(w.size), *of))
        self.weights = [*self.stage.layers.parameters()]

    def route(self, living: Sequence[int]) -> None:
        """The schedule of the living, and a group for each stage."""
        # A function of who lives, so all of them make the same one.
        self.plan = rerouted(living, *self.of)
        homes, groups = [r % self.of[1] for r in living], []
        for s in range(self.of[1]):
            same = [i for i, home in enumerate(homes) if home == s]
            groups.append(dist.new_group(same))
        #: A group that is held keeps its sockets open when it breaks, and a
        #: peer would wait for one who has left already.
        self.peers = weakref.ref(groups[self.own])

    def take(self, step: int, dies: bool) -> bool:
        """The gradient of the batch for this stage, and the loss behind it."""
        #: After a death all is computed again, and what a broken try has
        #: left behind must not be counted twice.
        self.stage.layers.zero_grad()
        if dies:
            self.weights[0].register_hook(die)  # in its first backward
        place = replace(self.w, rank=dist.get_rank())
        x, y = (t.to(self.w.device) for t in self.task.batch(step, self.batch))
        parts = (t.tensor_split(self.plan.microbatches) for t in (x, y))
        own = {self.own: self.stage}
        loss = run_batch(place, own, self.plan, [*zip(*parts)])
        slopes = [t.grad.ravel() for t in self.weights if t.grad is not None]
        #: Each pass divides by the whole batch, so that parts of it add up.
        self.total = torch.cat([*slopes, slopes[0].new_tensor([loss])])
        dist.all_reduce(self.total, group=self.peers())
        return True

    def update(self, rate: float) -> list[Any]:
        """Plain SGD; the loss, where it is known, and the weights."""
        old = parameters_to_vector(self.weights).detach()
        new = old - rate * self.total[:-1]
        vector_to_parameters(new, self.weights)
        return [self.total[-1].item(), [new]]


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    batch: int,
    rate: float,
    of: Shape,
    deaths: Mapping[int, int],
) -> Iterator[Step]:
    """The supervisor, which knows of a death only by what it hears."""
    with Crew(w, Worker, w, task, batch, of) as crew:
        for step in range(steps):
            done, dies = False, deaths.get(w.rank) == step
            while not done:
                heard = crew.agree(crew.alive)
                living = [r for r, alive in heard.items() if alive]
                #: No weights move: each stage is where it has always been.
                if living != crew.members:
                    crew.form(living)
                    crew.ask("route", living)
                done = crew.unanimous(crew.ask("take", step, dies))
            yield Step(*(crew.ask("update", rate) or [float("nan"), []]))


def main(
    w: World,
    *,
    pipelines: int = 2,
    microbatches: int = 4,
    steps: int = 3,
    batch: int = 24,
    fall: int = 1,
    kills: int = 2,
) -> None:
    p, m = w.size, microbatches
    w.require(p > 1, f"{p} rank: it has no peer; use 2 or more")
    #: As many pipelines as asked for, or the next number that divides p.
    d = next((d for d in range(max(2, pipelines), p) if p % d == 0), p)
    of, kills = (d, p // d, m), min(kills, p // d) if d == 2 else 1
    fits = 2 < m * d <= batch and 0 < kills <= steps - fall
    w.require(fits, f"{m} micro-batches of {batch} samples, {kills} kills")
    #: The last stage of the last pipeline, then the one before of each.
    deaths = {p - 1 - k * (of[1] + 1): fall + k for k in range(kills)}
    task = replace(digits, model=lambda: equal_layers(of[1], 64))
    sizes: dict[str, Any] = dict(steps=steps, batch=batch, rate=0.5)
    with meter() as moved:
        *_, last = train(w, task, of=of, deaths=deaths, **sizes)
    truth = partial(reference, w, task, rerouted(range(p), *of), **sizes)
    # Another order of additions, amplified by the steps.
    if last.weights:
        w.check("parameters", last.weights, lambda: truth()[1:], slack=16)
    forwards = sum(e.name == "F" for e in moved.events)
    killed = sum(e.kind == "killed" for e in moved.events)
    payload, given = moved.calls["all_reduce"].payload, {"pipelines": d}
    given |= dict(kills=kills, width=64, itemsize=8, forward=1, backward=2)
    report(w, given=given, killed=killed, forwards=forwards, payload=payload)


if __name__ == "__main__":
    with world() as w:
        main(w)
