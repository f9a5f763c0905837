"""Asynchronous elastic averaging: each worker meets the centre alone.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.asynchronous.elastic_averaging_asynchronous

Source: Zhang, Choromanska and LeCun 2015.

Rank 0 holds the centre c. A worker takes H steps of its own, then meets the
centre, whoever else is where; a spring pulls the two towards each other:

    x_i  <-  x_i - alpha (x_i - c)
    c    <-  c   + alpha (x_i - c)          with the old x_i and c

Nobody waits, and nothing is ever as stale as a gradient: a slow worker brings
weights of its own, which are good weights, if fewer steps on.

One at a time, a meeting multiplies the gap between the two by 1 - 2 alpha, so
the springs hold up to alpha = 1, however many workers there are. When all W
workers meet at once their pulls add up, and the limit is 2/(W+1). The pulls
at the two ends of a spring cancel in both cases: c + sum x_i is kept.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import World, meter, one_slow, report, span, world
from exemplars.workload import digits

SECONDS, PERIOD = 12, 2  # virtual; a step takes one, a meeting nothing
SLOWDOWN = 3  # of worker 1
ALPHA = 0.9  # above 2/(W+1) from 2 workers on
RATE, BATCH = 0.2, 8
seconds = one_slow(rank=1, factor=SLOWDOWN)


def periods(q: int) -> range:
    """Those that worker q has the time for."""
    return range(int(SECONDS // (PERIOD * seconds(q, 0))))


def meetings(workers: int) -> list[int]:
    """Who meets the centre next, in order of virtual time."""
    who = range(1, workers + 1)
    due = [((i + 1) * seconds(q, 0), q) for q in who for i in periods(q)]
    return [q for _, q in sorted(due)]


def serve(w: World, centre: Tensor) -> None:
    """Meet the workers, one at a time."""
    x = torch.empty_like(centre)
    for q in meetings(w.size - 1):
        dist.recv(x, q)
        dist.send(centre, q)
        centre += ALPHA * (x - centre)


def work(w: World, x: Tensor, model: nn.Module | None) -> None:
    """H steps alone (none without a model), then a meeting; x is moved."""
    centre, cost = torch.empty_like(x), seconds(w.rank, 0)
    for period in periods(w.rank):
        for step in range(PERIOD * period, PERIOD * (period + 1)):
            with span("step", label=step, cost=cost):
                if model is not None:
                    x -= RATE * gradient_of(model, x, w.rank, step)
        dist.send(x, 0)
        dist.recv(centre, 0)
        x -= ALPHA * (x - centre)


def gradient_of(model: nn.Module, x: Tensor, q: int, step: int) -> Tensor:
    """Of worker q's batch at a step, at the weights x."""
    vector_to_parameters(x.clone(), model.parameters())
    i = 1000 * q + step
    rows, labels = (t.to(x.device) for t in digits.batch(i, BATCH))
    loss = digits.loss(model, rows, labels) / labels.numel()
    grads = torch.autograd.grad(loss, [*model.parameters()])
    return torch.cat([g.view(-1) for g in grads])


def reference(w: World) -> Tensor:
    """The centre, after the same meetings on one process."""
    model = digits.model().to(w.device)
    centre = parameters_to_vector(model.parameters()).detach()
    every, steps = centre.repeat(w.size, 1), [0] * w.size
    for q in meetings(w.size - 1):
        x = every[q]
        for _ in range(PERIOD):
            x -= RATE * gradient_of(model, x, q, steps[q])
            steps[q] += 1
        pull = ALPHA * (x - centre)
        x -= pull
        centre = centre + pull
    return centre


def springs(w: World) -> dict[str, float]:
    """Without gradients: the mass is kept, and all come together."""
    x = w.randn(20)
    before, apart = state(w, x)
    serve(w, x) if w.rank == 0 else work(w, x, None)
    after, left = state(w, x)
    w.check("mass", after, lambda: before, slack=SECONDS)
    return {} if w.dry else {"left": (left / apart).item()}


def state(w: World, x: Tensor) -> tuple[Tensor, Tensor]:
    """The mass, and how far all ranks are from their mean."""
    mass = x.clone()
    dist.all_reduce(mass)
    apart = (x - mass / w.size).square().sum()
    dist.all_reduce(apart)
    return mass, apart.sqrt()


def main(w: World) -> None:
    w.require(w.size > 1, "1 rank: one is the centre; use 2 or more")
    model = digits.model().to(w.device)
    x = parameters_to_vector(model.parameters()).detach()
    with meter() as moved:
        serve(w, x) if w.rank == 0 else work(w, x, model)
    if w.rank == 0:
        w.check("order", x, lambda: reference(w), slack=0)
    given = dict(n=len(x), b=8, t=SECONDS, h=PERIOD, k=SLOWDOWN)
    counts = dict(meetings=moved.calls["send"].count)
    counts["bytes_sent"] = moved.bytes_sent
    report(w, given=given, **counts, **springs(w))


if __name__ == "__main__":
    with world() as w:
        main(w)
