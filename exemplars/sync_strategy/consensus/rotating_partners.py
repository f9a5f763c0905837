"""Rotating partners: one exchange per step, and a new partner every time.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.consensus.rotating_partners

Each rank holds weights of its own. In a step it averages them with those of
one partner and adds its own gradient step. Partners are neighbors on a
hypercube, one dimension after the other:

    step k    place i and place i XOR 2^k        places 0 1 2 3
    step 0    0-1   2-3                          pairs differ in bit 0
    step 1    0-2   1-3                          pairs differ in bit 1

Without gradients, two equal halves that each agree agree as a whole after one
exchange across. So 2^k ranks hold the mean after k steps, exactly. After that
sweep the ranks are dealt new places, so that the next sweep has new partners.

For other p some places are empty, and whoever would meet an empty place keeps
what it has. No number of exchanges gives the mean then: after t of them every
share is a multiple of 1/2^t, which 1/p is not. But the sum is kept, and with
the new places of each sweep the ranks come closer.

It is the weights that have to be averaged. If only the gradients of a step
are, each rank adds up means over other partners, and nothing ever pulls the
copies together.

Source: Daily et al. 2018 (GossipGraD), on a hypercube.
"""

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Step, Task, digits


def partner(r: int, p: int, step: int) -> int:
    """Whom rank r meets in this step; itself if that place is empty."""
    sweep, k = divmod(step, (p - 1).bit_length())
    #: Dealt by a seed, so that both partners know it without a message.
    places = Random(sweep).sample(range(p), p)
    other = places.index(r) ^ 1 << k
    return places[other] if other < p else r


def average(x: Tensor, other: int) -> Tensor:
    """The mean of both partners' tensors; of one alone, its own."""
    if other == dist.get_rank():
        return x
    theirs = torch.empty_like(x)
    #: Both ways in one batch: a partner is never kept waiting for an answer.
    pair = [
        dist.P2POp(dist.isend, x, other),
        dist.P2POp(dist.irecv, theirs, other),
    ]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    #: Both add the same two numbers: they end with the same bits.
    return (x + theirs) / 2


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    local_batch: int,
    rate: float,
    averaged: str = "weights",
) -> Iterator[Step]:
    """Average with this step's partner, and add a gradient step."""
    model = task.model().to(w.device)
    x = parameters_to_vector(model.parameters()).detach()
    for step in range(steps):
        vector_to_parameters(x, model.parameters())
        rows, labels = task.batch(step * w.size + w.rank, local_batch)
        rows, labels = rows.to(w.device), labels.to(w.device)
        with span("gradient", label=step, cost=1):
            loss = task.loss(model, rows, labels) / labels.numel()
            slope = torch.autograd.grad(loss, list(model.parameters()))
        move = -rate * parameters_to_vector(slope)
        other = partner(w.rank, w.size, step)
        if averaged == "weights":
            #: The gradient was taken at x before the exchange, so the two
            #: could overlap.
            x = average(x, other) + move
        else:
            #: To compare: what was learned with earlier partners stays apart.
            x = x + average(move, other)
        yield Step(loss.item(), [x])


def shares(p: int, step: int) -> Tensor:
    """Row r: how much of each rank's weights rank r holds after this step."""
    bits = [1 << k for k in range(p) if 1 << k < p]
    places = Random(step // len(bits)).sample(range(p), p)
    table = torch.eye(p, dtype=torch.double)
    for i, r in enumerate(places):
        met = i ^ bits[step % len(bits)]
        if met < p:
            table[r, r] = table[r, places[met]] = 0.5
    return table


def reference(w: World, steps: int, local_batch: int, rate: float) -> Tensor:
    """All ranks on one process, mixed by a matrix; this rank's weights."""
    p, model = w.size, digits.model().to(w.device)
    every = parameters_to_vector(model.parameters()).detach().repeat(p, 1)
    for step in range(steps):
        slopes = torch.empty_like(every)
        for r in range(p):
            vector_to_parameters(every[r], model.parameters())
            batch = digits.batch(step * p + r, local_batch)
            x, y = (t.to(w.device) for t in batch)
            loss = digits.loss(model, x, y) / y.numel()
            slope = torch.autograd.grad(loss, list(model.parameters()))
            slopes[r] = parameters_to_vector(slope)
        every = shares(p, step).to(w.device) @ every - rate * slopes
    return every[w.rank]


def spread(w: World, x: Tensor) -> Tensor:
    """Of all ranks: the sum of squared distances from their mean."""
    rows = [torch.empty_like(x) for _ in range(w.size)]
    dist.all_gather(rows, x)
    return (torch.stack(rows) - torch.stack(rows).mean(0)).square().sum()


def mixing(w: World, sweep: int, sweeps: int) -> float:
    """Exchanges without gradients: what stays, and what is left."""
    start = torch.stack([w.randn(100, seed=r) for r in range(w.size)])
    x, every = start[w.rank], start
    for step in range(sweeps * sweep):
        x = average(x, partner(w.rank, w.size, step))
        every = shares(w.size, step).to(w.device) @ every
        if step == sweep - 1:
            #: For 2^k ranks the mean; for others, what the matrices say.
            power = w.size == 1 << sweep
            law = start.mean(0) if power else every[w.rank]
            w.check("mean", x, law.clone, slack=8)
    total = x.clone()
    dist.all_reduce(total)
    w.check("total", total, lambda: start.sum(0), slack=64)
    return round((spread(w, x) / spread(w, start[w.rank])).item(), 9)


def drift(w: World, steps: int) -> float:
    """How much farther apart training ends if gradients are averaged."""
    apart = []
    for averaged in ("weights", "gradients"):
        sizes: Any = dict(steps=steps, local_batch=8, averaged=averaged)
        *_, last = train(w, digits, rate=0.2, **sizes)
        apart.append(spread(w, last.weights[0]))
    return round((apart[1] / apart[0]).item(), 6)


def main(
    w: World, *, sweeps: int = 2, local_batch: int = 8, rate: float = 0.2
) -> None:
    w.require(w.size > 2, f"{w.size} ranks: use 3 or more, to have a choice")
    w.require(sweeps > 0, f"{sweeps} sweeps: nothing is trained")
    sweep = (w.size - 1).bit_length()
    sizes: Any = dict(steps=sweeps * sweep, local_batch=local_batch)
    with meter() as moved:
        *_, done = train(w, digits, rate=rate, **sizes)
    x, alone = done.weights[0], partial(reference, w, rate=rate, **sizes)
    # float64; another order of additions, amplified by a few steps
    w.check("replicas", x, alone, slack=64)
    counts: dict[str, float] = {"messages": moved.calls["send"].count}
    sent = torch.tensor(moved.bytes_sent, device=w.device)
    dist.all_reduce(sent)
    if not w.dry:
        counts |= dict(total_bytes=sent.item(), drift=drift(w, steps=32))
        counts |= dict(left=mixing(w, sweep, sweeps))
    report(w, given={"elements": len(x), "itemsize": 8}, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
