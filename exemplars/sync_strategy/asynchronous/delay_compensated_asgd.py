"""Delay compensation: the server brings an old gradient up to date by a guess.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.asynchronous.delay_compensated_asgd

While a worker computed, the weights moved on, from `old` to `now`. With the
Hessian H at `old`, the gradient it would get now is, to first order,

    gradient(now)  =  gradient(old) + H (now - old)

So the server keeps, for each worker, the weights that it sent to it. H has
the square of their number of entries, too many to compute or to keep. It is
replaced by a diagonal, and the diagonal by something that is already there:

    H   ~   diagonal of H   ~   strength * gradient * gradient

Each of the two steps loses something, and the run measures how much. On a
quadratic whose H is diagonal and known, the result is exact; with the square
of the gradient in its place, an error remains. On the digits the product with
the whole H removes most of what is wrong with an old gradient, its diagonal
alone about a hundredth, and the squared gradient a few thousandths.

The last step has a reason: the mean square of the gradients of single samples
is near the diagonal when the model is good, but the server has the gradient
of a batch. Its square is smaller by about the batch size, as samples average
out.

Source: Zheng et al. 2017 (DC-ASGD-c, which has a constant strength).
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.functional import jacobian
from torch.nn.functional import cross_entropy, linear
from torch.nn.utils import parameters_to_vector

from exemplars.runtime import Clock, World, meter, one_slow, report, world
from exemplars.sync_strategy.asynchronous import downpour
from exemplars.workload import Step, Task, digits


def guessed(gradient: Tensor, strength: float) -> Tensor:
    """What stands for the diagonal of the Hessian: it is never negative."""
    return strength * gradient * gradient


def compensate(gradient: Tensor, diagonal: Tensor, moved: Tensor) -> Tensor:
    """The gradient where the weights are now, to first order."""
    #: The sign matters: from where it was computed to where it is applied.
    return gradient + diagonal * moved


def serve(
    w: World,
    task: Task,
    events: downpour.Events,
    rate: float,
    strength: float,
    sent: dict[int, Tensor],
) -> Iterator[Step]:
    """Apply gradients on arrival, each brought up to date."""
    model = task.model().to(w.device)
    weights = parameters_to_vector(model.parameters()).detach()
    gradient = torch.empty_like(weights)
    for what, q in events:
        if what == "answer":
            dist.send(weights, q)
            #: A copy for every worker: the weights change in place, and a
            #: reference to them would always be up to date.
            sent[q] = weights.clone()
        else:
            dist.recv(gradient, q)
            #: No message is added: the server has both ends of the way.
            moved, diagonal = weights - sent[q], guessed(gradient, strength)
            weights -= rate * compensate(gradient, diagonal, moved)
            yield Step(float("nan"), [weights])


def train(
    w: World,
    task: Task,
    *,
    duration: float,
    local_batch: int,
    rate: float,
    clock: Clock,
    strength: float = 2.0,
    sent: dict[int, Tensor] | None = None,
) -> Iterator[Step]:
    """Rank 0 serves and the others work, for so many virtual seconds."""
    if w.rank == 0:
        events = downpour.arrivals(range(1, w.size), duration, clock)
        kept = {} if sent is None else sent
        return serve(w, task, events, rate, strength, kept)
    #: A worker is that of Downpour: it does not know what becomes of its
    #: gradient.
    sizes: Any = dict(duration=duration, local_batch=local_batch, rate=rate)
    return downpour.train(w, task, clock=clock, **sizes)


def loss_of(device: Any, batch: int) -> Callable[[Tensor], Tensor]:
    """The loss on a batch of digits, as a function of all weights in a row."""
    parameters = list(digits.model().parameters())
    sizes = [p.numel() for p in parameters]
    x, y = (t.to(device) for t in digits.batch(batch, 8))

    def loss(at: Tensor) -> Tensor:
        parts = zip(at.split(sizes), parameters)
        w1, b1, w2, b2 = (part.view_as(p) for part, p in parts)
        return cross_entropy(linear(linear(x, w1, b1).tanh(), w2, b2), y)

    return loss


def reference(
    w: World, order: downpour.Updates, rate: float, strength: float
) -> Tensor:
    """Updates in this order on one process, each brought up to date."""
    start = parameters_to_vector(digits.model().parameters()).detach()
    every = [start.to(w.device)]
    for step, q, seen in order:
        g = jacobian(loss_of(w.device, step * w.size + q), every[seen])
        g = g + strength * g * g * (every[-1] - every[seen])
        every.append(every[-1] - rate * g)
    return every[-1]


def quadratic(w: World, strength: float) -> None:
    """Of sum(h x^2 / 2) the Hessian is h, and the gradient h x."""
    #: Here h has both signs, as a network's curvature has. A square has one.
    h, old, now = (w.randn(20, seed=seed) for seed in range(3))
    exact = compensate(h * old, h, now - old)
    w.check("exact_hessian", exact, lambda: h * now, slack=4)
    square = compensate(h * old, guessed(h * old, strength), now - old)
    left = (h - strength * (h * old) ** 2) * (now - old)
    w.check("residual", h * now - square, lambda: left, slack=16)


def left(
    old: Tensor, now: Tensor, batch: int, strength: float
) -> dict[str, float]:
    """Which share of a stale gradient's error is left, by three guesses."""
    loss, moved = loss_of(old.device, batch), now - old
    stale, true = jacobian(loss, old), jacobian(loss, now)
    #: The whole of H, for once: a square with as many rows as the model has
    #: weights. That is why nobody trains with it.
    curvature = torch.func.hessian(loss)(old)
    diagonal, guess = curvature.diagonal(), guessed(stale, strength)
    names = ("left_squared", "left_diagonal", "left_hessian")
    steps = (guess * moved, diagonal * moved, curvature @ moved)
    wrong = true - stale
    shares = [(wrong - step).norm() / wrong.norm() for step in steps]
    return {k: round(x.item(), 4) for k, x in zip(names, shares)}


def main(
    w: World, *, duration: int = 9, slowdown: int = 3, strength: float = 2.0
) -> None:
    w.require(w.size > 2, f"{w.size} ranks: use 3 or more, to have 2 workers")
    w.require(0 < 2 * slowdown <= duration, f"{duration} s: too short")
    clock, sent = one_slow(rank=1, factor=slowdown), dict[int, Tensor]()
    sizes: Any = dict(duration=duration, local_batch=8, clock=clock, rate=0.1)
    start = parameters_to_vector(digits.model().parameters()).detach()
    every = [start.to(w.device)]
    with w.memory(backups=sent.values) as memory, meter() as moved:
        for update in train(w, digits, strength=strength, sent=sent, **sizes):
            every += [] if w.dry else [x.clone() for x in update.weights]
    measured: dict[str, float] = {"bytes_sent": moved.bytes_sent}
    if w.rank == 0:
        measured["backups"] = memory.live()["backups"]
        order = list(downpour.by_definition(range(1, w.size), duration, clock))
        truth = partial(reference, w, iter(order), sizes["rate"], strength)
        w.check("order", every[-1], truth, slack=0)
        slow = [i for i, (_, q, _) in enumerate(order) if q == 1][-1]
        step, _, seen = order[slow]
        if not w.dry:
            ends = every[seen].cpu(), every[slow].cpu()
            measured |= left(*ends, step * w.size + 1, strength)
    quadratic(w, strength)
    report(w, given={"elements": len(every[0]), "itemsize": 8}, **measured)


if __name__ == "__main__":
    with world() as w:
        main(w)
