"""D-PSGD: average with two neighbours, then step; nobody talks to all.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.consensus.d_psgd

Source: Lian et al. 2017, on a ring.

Each rank holds weights of its own. At every step it replaces them by the mean
of its own and its two neighbours', and adds its own gradient step:

    x_r  <-  (x_r + x_left + x_right) / 3  -  rate * gradient_r(x_r)

The gradient is taken at the old weights, so it is computed while the messages
travel. Every row and every column of the mixing sums to one: the mean of all
ranks is kept by mixing, and moves by the mean gradient alone.

How fast they agree is the second-largest absolute eigenvalue of the mixing,

    (1 + 2 cos(2 pi / p)) / 3        0 for 3 ranks, 1/3 for 4, 0.8 for 8

which shrinks the slowest pattern, one wave around the ring, at every step. It
nears 1 like 1 - 13/p^2. A step costs two messages on 4 ranks and on 4000, but
news needs about p^2 steps to get around. (Two ranks have one neighbour each
and take halves; one rank is alone.)
"""

import math
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import World, jitter, meter, report, span, world
from exemplars.workload import Step, digits

STEPS, BATCH, RATE = 5, 8, 0.2
ROUNDS = 12  # of mixing alone
seconds = jitter(spread=1.0)


def neighbours(r: int, p: int) -> list[int]:
    """Left and right on the ring; the same rank where there are two."""
    return sorted({(r - 1) % p, (r + 1) % p} - {r})


def start(x: Tensor) -> tuple[list[dist.Work], list[Tensor]]:
    """Send x to the neighbours; theirs are in the list when all is waited."""
    near = neighbours(dist.get_rank(), dist.get_world_size())
    theirs = [torch.empty_like(x) for _ in near]
    #: One batch: on NCCL a ring of separate sends would wait for ever.
    ops = [dist.P2POp(dist.isend, x, q) for q in near]
    ops += [dist.P2POp(dist.irecv, t, q) for t, q in zip(theirs, near)]
    return dist.batch_isend_irecv(ops) if ops else [], theirs


def mean(x: Tensor, theirs: list[Tensor]) -> Tensor:
    """Of a rank and its neighbours: all weigh the same."""
    return sum(theirs, x) / (len(theirs) + 1)


def mix(x: Tensor) -> Tensor:
    """One round of averaging, without a gradient."""
    works, theirs = start(x)
    for work in works:
        work.wait()
    return mean(x, theirs)


def train(w: World, model: nn.Module) -> Iterator[Step]:
    """Compute while the neighbours' weights are on their way."""
    x = parameters_to_vector(model.parameters()).detach()
    for step in range(STEPS):
        works, theirs = start(x)
        with span("gradient", label=step, cost=seconds(w.rank, step)):
            loss, gradient = gradient_of(model, x, step * w.size + w.rank)
        for work in works:
            work.wait()
        x = mean(x, theirs) - RATE * gradient
        yield Step(samples=BATCH * w.size, loss=loss.item())
    vector_to_parameters(x, model.parameters())


def gradient_of(model: nn.Module, x: Tensor, i: int) -> tuple[Tensor, Tensor]:
    """Loss and gradient of batch i at the weights x."""
    vector_to_parameters(x, model.parameters())
    images, labels = (t.to(x.device) for t in digits.batch(i, BATCH))
    loss = digits.loss(model, images, labels) / labels.numel()
    grads = torch.autograd.grad(loss, [*model.parameters()])
    return loss, torch.cat([g.view(-1) for g in grads])


def reference(w: World) -> Tensor:
    """All ranks' weights on one process; this rank's are returned."""
    model, p = digits.model().to(w.device), w.size
    every = [parameters_to_vector(model.parameters()).detach()] * p
    for step in range(STEPS):
        new = []
        for r, x in enumerate(every):
            _, gradient = gradient_of(model, x, step * p + r)
            theirs = [every[q] for q in neighbours(r, p)]
            new.append(mean(x, theirs) - RATE * gradient)
        every = new
    return every[w.rank]


def agree(w: World) -> dict[str, int]:
    """Mix without gradients: what is kept, and how fast the rest goes."""
    x, wave = w.randn(100), math.cos(2 * math.pi * w.rank / w.size)
    y = torch.full((1,), 1 + wave, dtype=x.dtype, device=w.device)
    total, apart = [], []
    for _ in range(ROUNDS + 1):
        total.append(x.clone())
        dist.all_reduce(total[-1])
        apart.append((x - total[-1] / w.size).square().sum())
        dist.all_reduce(apart[-1])
        x, y = mix(x), mix(y)
    w.check("mean", total[-1], lambda: total[0], slack=ROUNDS)
    d = len(neighbours(w.rank, w.size))
    eigenvalue = (1 + d * math.cos(2 * math.pi / w.size)) / (d + 1)
    slowest = 1 + eigenvalue ** (ROUNDS + 1) * wave
    w.check("eigenvalue", y, lambda: torch.full_like(y, slowest), slack=ROUNDS)
    if w.dry:
        return {}
    far = [bool(a > apart[0] / 4) for a in apart]  # squares: halved is 1/4
    return {"halved": far.index(False) if False in far else ROUNDS + 1}


def main(w: World) -> None:
    model = digits.model().to(w.device)
    with meter() as moved:
        for _ in train(w, model):
            pass
    x = parameters_to_vector(model.parameters()).detach()
    w.check("replicas", x, lambda: reference(w), slack=0)
    given = {"n": len(x), "b": 8, "t": STEPS}
    report(w, given=given, bytes_sent=moved.bytes_sent, **agree(w))


if __name__ == "__main__":
    with world() as w:
        main(w)
