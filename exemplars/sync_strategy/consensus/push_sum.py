"""Push-sum: one-way messages still find the mean, if a weight goes with them.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.consensus.push_sum

A rank cuts what it has into equal shares, keeps one and pushes one to each
rank that it may send to. Nobody answers. Shares are neither made nor lost, so
the sum over all ranks stays; but a rank that hears from many ends up with
more than one that hears from few, and its x is not the mean. So each rank
holds a weight as well, 1 at first, and pushes shares of that the same way:

    x, weight  <-  own share of both + all shares that arrived
    estimate    =  x / weight

A rank that holds twice too much x holds twice too much weight. The weights of
all ranks add up to p, and every estimate goes to the mean:

    links         r to r+1 and to r // 2     1, 2, 4, ... places on, in turn
    per round     1 or 2 messages            1 message
    weights       uneven: low ranks more     1, always
    estimates     nearer, round by round     the mean after lg p rounds

On the right all shares are halves, and one comes in for each that goes out.
There the weights do nothing, and push-sum is plain averaging. (For p = 2^k
these rounds give the mean; for other p some ranks count twice in it.) On the
left, x itself settles at the weight times the mean. Training takes gradients
at the estimate and adds the step to x.

Source: Assran et al. 2019 (SGP), algorithm 1; Kempe et al. 2003.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Step, Task, digits

Links = Callable[[int, int, int], set[int]]  # rank, ranks, round: sends to


def uneven(r: int, p: int, k: int) -> set[int]:
    """The next rank on the ring, and one nearer to rank 0."""
    return {(r + 1) % p, r // 2} - {r}


def exponential(r: int, p: int, k: int) -> set[int]:
    """One rank, 1, 2, 4, ... places on, below p, and again from 1."""
    return {(r + (1 << k % (p - 1).bit_length())) % p}


def push(held: Tensor, links: Links, k: int) -> Tensor:
    """A round: shares of x and weight, which is the last entry, go out."""
    r, p = dist.get_rank(), dist.get_world_size()
    out = links(r, p, k)
    #: Column-stochastic: a rank divides by what it sends, which it knows. It
    #: need not know who sends to it and how they divide.
    share = held / (len(out) + 1)
    #: Whom to receive from follows from the links. In earnest a rank takes
    #: whatever has arrived.
    sources = [q for q in range(p) if r in links(q, p, k)]
    arriving = [torch.empty_like(held) for _ in sources]
    ops = [dist.P2POp(dist.isend, share, q) for q in sorted(out)]
    ops += [dist.P2POp(dist.irecv, t, q) for t, q in zip(arriving, sources)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    #: x and weight in one message: one without the other would be lost mass.
    return sum(arriving, share)


def estimate(held: Tensor) -> Tensor:
    """What this rank takes for the mean."""
    return held[:-1] / held[-1]


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    local_batch: int,
    rate: float,
    links: Links = uneven,
) -> Iterator[Step]:
    """A gradient at the estimate, a step of x, a round."""
    model = task.model().to(w.device)
    x = parameters_to_vector(model.parameters()).detach()
    held = torch.cat([x, x.new_ones(1)])
    for step in range(steps):
        vector_to_parameters(estimate(held), model.parameters())
        rows, labels = task.batch(step * w.size + w.rank, local_batch)
        rows, labels = rows.to(w.device), labels.to(w.device)
        with span("gradient", label=step, cost=1):
            loss = task.loss(model, rows, labels) / labels.numel()
            slope = torch.autograd.grad(loss, list(model.parameters()))
        #: Of x, not of the estimate: the sum over all ranks moves by the sum
        #: of all steps, whatever the weights are.
        held[:-1] -= rate * parameters_to_vector(slope)
        held = push(held, links, step)
        yield Step(loss.item(), [estimate(held)])


def reference(w: World, steps: int, samples: int, rate: float) -> Tensor:
    """All ranks on one process, mixed by a matrix; this rank's estimate."""
    p, model = w.size, digits.model().to(w.device)
    once = torch.eye(p, dtype=torch.double, device=w.device)
    table = once + once.roll(1, 0)
    table[torch.arange(p) // 2, torch.arange(p)] = 1
    every = parameters_to_vector(model.parameters()).detach().repeat(p, 1)
    weights = every.new_ones(p, 1)
    for step in range(steps):
        for r in range(p):
            vector_to_parameters(every[r] / weights[r], model.parameters())
            batch = digits.batch(step * p + r, samples)
            x, y = (t.to(w.device) for t in batch)
            loss = digits.loss(model, x, y) / y.numel()
            slope = torch.autograd.grad(loss, list(model.parameters()))
            every[r] -= rate * parameters_to_vector(slope)
        every, weights = (table / table.sum(0) @ t for t in (every, weights))
    return (every / weights)[w.rank]


def uneven_links(w: World, rounds: int) -> dict[str, float]:
    """Without gradients: what stays, and where x and the estimates go."""
    start = torch.stack([w.randn(100, seed=r) for r in range(w.size)])
    held = torch.cat([start[w.rank], start.new_ones(1)])
    ends = start.amin(0), start.amax(0)
    for k in range(rounds):
        held = push(held, uneven, k)
        found, total = estimate(held), held.clone()
        dist.all_reduce(total)
        w.check("total", total[:-1], lambda: start.sum(0), slack=64)
        everyone = partial(torch.full_like, total[-1], w.size)
        w.check("weights", total[-1], everyone, slack=4)
        w.check("hull", found, partial(found.clamp, *ends), slack=4)
    #: A rank's x goes to its weight times the mean: without the weight it
    #: would be off by this factor, for good.
    apart = (found - start.mean(0)).abs().max() / start.abs().max()
    far = torch.stack([apart, (held[-1] - 1).abs()])
    dist.all_reduce(far, dist.ReduceOp.MAX)
    if w.dry:
        return {}
    return {"apart": round(far[0].item(), 6), "bias": round(far[1].item(), 6)}


def exponential_links(w: World) -> None:
    """As many rounds as powers of two below p."""
    held = torch.cat([w.randn(100), w.randn(1).fill_(1)])
    rounds = (w.size - 1).bit_length()
    for k in range(rounds):
        held = push(held, exponential, k)
        #: One share comes in for each that goes out, and all are halves.
        w.check("ones", held[-1], partial(torch.ones_like, held[-1]), 0)
    heard = [(w.rank - back) % w.size for back in range(1 << rounds)]
    mean = torch.stack([w.randn(100, seed=q) for q in heard]).mean(0)
    w.check("exponential", estimate(held), lambda: mean, slack=8)


def main(
    w: World,
    *,
    steps: int = 5,
    local_batch: int = 8,
    rate: float = 0.2,
    rounds: int = 40,
) -> None:
    w.require(w.size > 2, f"{w.size} ranks: use 3 or more, to be uneven")
    w.require(min(steps, rounds) > 0, f"{steps} steps, {rounds} rounds: none")
    with meter() as moved:
        for done in train(
            w, digits, steps=steps, local_batch=local_batch, rate=rate
        ):
            found = done.weights[0]
    alone = partial(reference, w, steps, local_batch, rate)
    # float64; another order of additions, amplified by a few steps
    w.check("replicas", found, alone, slack=64)
    measured = uneven_links(w, rounds)
    exponential_links(w)
    given = {"elements": len(found), "itemsize": found.element_size()}
    report(w, given=given, bytes_sent=moved.bytes_sent, **measured)


if __name__ == "__main__":
    with world() as w:
        main(w)
