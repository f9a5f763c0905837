"""Staleness-aware rate: the older a gradient, the shorter the step it makes.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.asynchronous.staleness_aware_rate

Downpour with one line more. The server knows at which version each worker
read the weights, so it knows how old a gradient is when it comes, and divides
the learning rate by that number of updates:

    weights  <-  weights - gradient * rate / max(1, age)

W equally fast workers make gradients that are all W-1 updates old. Then the
rule is a lower rate, the same for all: a round of W gradients moves the
weights by W/(W-1) of a full step. That is nearly the mean of W gradients, as
in synchronous SGD, and why a rate tuned for one worker does for many.

Beside a worker that is k times slower it is not so even. In k seconds that
worker makes one gradient where another makes k, and it counts for 1/k of one
of theirs, since it is k times as old. Its samples weigh about

    1/k * 1/k = 1/k^2

of another worker's. The rule protects the weights from old gradients, and
the model from the data of slow machines.

Source: Zhang, Gupta, Lian and Liu 2016; the shares are derived here.
"""

from collections.abc import Iterator
from fractions import Fraction
from functools import partial
from math import nan
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import (
    Clock,
    World,
    constant,
    meter,
    one_slow,
    report,
    world,
)
from exemplars.sync_strategy.asynchronous import downpour
from exemplars.workload import Step, Task, digits


class Told(Task):
    """A task whose gradient tells which rank made it: minus a unit vector."""

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Every sample of rank q asks for more of weight q."""
        #: Its gradient does not depend on the weights, so all that a move can
        #: tell is whose gradient it was and how much it counted for.
        return -model(x).sum()


def problem(ranks: int) -> Task:
    """One weight per rank, all 0 at first."""

    def model() -> nn.Module:
        layer = nn.Linear(ranks, 1, bias=False).double()
        nn.init.zeros_(layer.weight)
        return layer

    def batch(index: int, size: int) -> tuple[Tensor, Tensor]:
        who = torch.full((size,), index % ranks)
        return one_hot(who, ranks).double(), who

    return Told("told", model, batch)


def serve(
    w: World, task: Task, events: downpour.Events, rate: float
) -> Iterator[Step]:
    """Apply gradients on arrival, by a rate that their age decides."""
    model = task.model().to(w.device)
    weights = parameters_to_vector(model.parameters()).detach()
    gradient = torch.empty_like(weights)
    version, read_at = 0, dict[int, int]()
    for what, q in events:
        if what == "answer":
            dist.send(weights, q)
            #: One integer per worker is all that the rule needs. No worker
            #: has to send it: the server has answered every read itself.
            read_at[q] = version
        else:
            dist.recv(gradient, q)
            age = version - read_at[q]
            #: Of age 0 and 1 alike the whole rate: a fresh gradient must not
            #: divide by zero, and cannot count for more than itself.
            weights -= rate / max(1, age) * gradient
            yield Step(nan, [weights], age=age)
            version += 1


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
    events = partial(downpour.arrivals, duration=duration, clock=clock)
    if w.rank == 0:
        return serve(w, task, events(range(1, w.size)), rate)
    #: A worker is the same as with Downpour. It does not know how old its
    #: gradient will be: that is decided while it computes.
    mine = events(range(w.rank, w.rank + 1))
    steps = sum(what == "answer" for what, _ in mine)
    return downpour.work(w, task, steps, local_batch, clock)


def reference(w: World, order: downpour.Updates, rate: float) -> list[Tensor]:
    """Updates in this order on one process: the last weights, and all ages."""
    model, ages = digits.model().to(w.device), list[int]()
    every = [parameters_to_vector(model.parameters()).detach()]
    for step, q, seen in order:
        vector_to_parameters(every[seen], model.parameters())
        x, y = digits.batch(step * w.size + q, 8)
        loss = digits.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
        slope = torch.autograd.grad(loss, list(model.parameters()))
        ages.append(len(every) - 1 - seen)
        part = rate / ages[-1] if ages[-1] > 1 else rate
        every.append(every[-1] - part * parameters_to_vector(slope))
    return [every[-1], torch.tensor(ages)]


def moves(w: World, duration: int, clock: Clock) -> Tensor:
    """On rank 0, what every update adds to each rank's weight, a row each."""
    sizes: Any = dict(duration=duration, local_batch=8, rate=1, clock=clock)
    seen = [w.randn(w.size) * 0]
    for update in train(w, problem(w.size), **sizes):
        seen += [weights.clone() for weights in update.weights]
    return torch.stack(seen).diff(dim=0)


def nearest(x: Tensor) -> float:
    """The simple fraction that a sum of roundings stands for."""
    #: 1/3 is no binary number: three of them added up one by one, and taken
    #: apart again, are off in the last digit.
    return float(Fraction(x.item()).limit_denominator(10_000))


def main(w: World, *, duration: int = 9, slowdown: int = 3) -> None:
    w.require(w.size > 2, f"{w.size} ranks: use 3 or more, to have 2 workers")
    most = duration // 3
    w.require(0 < slowdown <= most, f"slowdown {slowdown}: use 1 to {most}")
    uneven = one_slow(rank=1, factor=slowdown)
    sizes: Any = dict(duration=duration, local_batch=8, rate=0.1)
    with meter() as moved:
        updates = list(train(w, digits, clock=uneven, **sizes))
    equal, slowed = moves(w, duration, constant()), moves(w, duration, uneven)
    measured: dict[str, float] = {"bytes_sent": moved.bytes_sent}
    if w.rank == 0:
        order = downpour.by_definition(range(1, w.size), duration, uneven)
        truth = partial(reference, w, order, sizes["rate"])
        ages = torch.tensor([update.age for update in updates])
        w.check("order", [*updates[-1].weights, ages], truth, slack=0)
        #: From the slow worker's last push but one to its last: one of its
        #: gradients, and k of each other worker's.
        came = [e.peer for e in moved.events if e.kind == "recv"]
        slow = [i for i, q in enumerate(came) if q == 1]
        measured |= dict(straggler=int(ages[slow[-1]]))
        if not w.dry:
            between = slowed[slow[-2] + 1 : slow[-1] + 1].sum(0)
            measured |= dict(share=nearest(between[1] / between[2]))
            measured |= dict(round=nearest(equal[1 - w.size :].sum()))
    elements = sum(p.numel() for p in digits.model().parameters())
    report(w, given={"elements": elements, "itemsize": 8}, **measured)


if __name__ == "__main__":
    with world() as w:
        main(w)
