"""Momentum components: send the strongest cosines, keep the rest as momentum.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.sparsification.momentum_components

Each rank keeps a momentum of its own, cut into chunks of c entries. In every
step it transforms each chunk into c cosines (DCT-II, an orthonormal matrix C),
sends the k strongest of them, and takes what it sent out of its momentum:

    m = beta m + g        q = the k largest of C m        m = m - C^T q

All ranks add up the cosines that arrive, transform the sum back, and step by
it. The momenta are never exchanged and drift apart. By induction on m,

    sum of beta^age * sent  +  m  =  sum of beta^age * g

which is the momentum that one rank would have had without sending. So beta
does not speed up what is sent, it wears down what waits: a gradient counts
once if it is sent at once, and beta^a times after a wait of a steps. If all
cosines are sent nothing waits, and what is left is SGD without momentum.

Source: Peng et al. 2024, without the signs of the summed update; the sum of
beta^age is derived here.
"""

from collections.abc import Iterator
from functools import partial
from math import pi

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.communication_pattern.sparsification import (
    deep_gradient_compression,
    top_k_error_feedback,
)
from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Step, Task, digits

BETA = 0.9
CHUNK = 64  # entries that are transformed together


class MomentumComponents:
    """A compressor of momentum: sends a few cosines of every chunk."""

    def __init__(self, like: Tensor, *, components: int) -> None:
        if not 0 < components <= CHUNK:
            raise ValueError(f"components = {components}: from 1 to {CHUNK}")
        self.components = components
        #: The last chunk is filled up. What is sent of it reaches into the
        #: filling, so the filling is part of the momentum, too.
        self.momentum = like.new_zeros(-(-len(like) // CHUNK), CHUNK)
        i = torch.arange(CHUNK).to(like)
        basis = torch.cos(pi / CHUNK * (i + 0.5) * i[:, None])
        #: Orthonormal: its inverse is its transpose.
        self.basis = basis / basis.norm(dim=1, keepdim=True)

    def compress(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The strongest cosines of the momentum, and their places."""
        self.momentum *= BETA
        self.momentum.view(-1)[: len(gradient)] += gradient
        strength = self.momentum @ self.basis.T
        #: As many of every chunk: a loud chunk does not silence the others.
        strongest = strength.abs().topk(self.components, dim=1).indices
        chosen = torch.zeros_like(strength).scatter_(1, strongest, 1.0)
        #: Out of the momentum: what is sent is not sent again.
        self.momentum -= (chosen * strength) @ self.basis
        places = chosen.view(-1).nonzero().view(-1)
        return strength.view(-1)[places], places.to(torch.int32)

    def sum_of_all(self, values: Tensor, places: Tensor) -> Tensor:
        """What all ranks sent, as one dense vector with its filling."""
        size = self.momentum.numel()
        #: Added up as cosines: one transform back, for any number of ranks.
        total = top_k_error_feedback.sum_of_all(values, places, size)
        return (total.view(-1, CHUNK) @ self.basis).view(-1)


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    local_batch: int,
    rate: float,
    components: int,
) -> Iterator[Step]:
    """SGD by the strongest components of every rank's momentum."""
    model = task.model().to(w.device)
    parameters = list(model.parameters())
    weights = parameters_to_vector(parameters).detach()
    demo = MomentumComponents(weights, components=components)
    for step in range(steps):
        x, y = task.batch(step * w.size + w.rank, local_batch)
        with span("compute", label=step, cost=3):
            loss = task.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
            grads = torch.autograd.grad(loss, parameters)
        total = demo.sum_of_all(*demo.compress(parameters_to_vector(grads)))
        #: All ranks step by the same sum, though their momenta differ.
        weights = weights - rate / w.size * total[: len(weights)]
        vector_to_parameters(weights, parameters)
        yield Step(loss.item(), parameters)


def reference(
    w: World, steps: int, batch: int, rate: float, k: int
) -> list[Tensor]:
    """One process without momentum: cosines by how long they have waited."""
    model = digits.model().to(w.device)
    weights = parameters_to_vector(model.parameters()).detach()
    slope = partial(top_k_error_feedback.slope, digits, model)
    n, filling = len(weights), -len(weights) % CHUNK
    #: By step and rank; 0 where they have been sent.
    waiting = weights.new_zeros(steps, w.size, (n + filling) // CHUNK, CHUNK)
    every = cosines(torch.eye(CHUNK).to(weights))
    for step in range(steps):
        for r in range(w.size):
            whole = F.pad(slope(step * w.size + r, batch), (0, filling))
            waiting[step, r] = cosines(whole.view(-1, CHUNK))
        ages = range(step, -1, -1)
        late = sum(BETA**a * rows for a, rows in zip(ages, waiting))
        strongest = late.abs() >= late.abs().sort(-1).values[..., -k, None]
        waiting *= ~strongest
        update = (late * strongest).sum(0) @ every.T
        weights = weights - rate / w.size * update.view(-1)[:n]
        vector_to_parameters(weights, model.parameters())
    return list(model.parameters())


def cosines(rows: Tensor) -> Tensor:
    """The DCT-II of each row, by the Fourier transform of row and mirror."""
    both = torch.fft.fft(torch.cat([rows, rows.flip(1)], 1))[:, :CHUNK]
    turn = torch.exp(-0.5j * pi / CHUNK * torch.arange(CHUNK).to(rows))
    found = (both * turn).real / (2 * CHUNK) ** 0.5
    found[:, 0] /= 2**0.5
    return found


def main(
    w: World,
    *,
    steps: int = 5,
    local_batch: int = 24,
    rate: float = 0.2,
    components: int = 3,
) -> None:
    sizes = (steps, local_batch, rate)
    run = partial(train, steps=steps, local_batch=local_batch, rate=rate)
    with meter() as moved:
        *_, last = run(w, digits, components=components)
    truth = partial(reference, w, *sizes, components)
    # Another transform, and sums over ranks and steps in another order.
    w.check("digits", last.weights, truth, slack=64)
    w.check_same("same", last.weights)
    *_, all_sent = run(w, digits, components=CHUNK)
    sgd = partial(deep_gradient_compression.sgd, w, *sizes, 0.0)
    w.check("plain", all_sent.weights, sgd, slack=64)
    #: A length that no chunk divides: all that was sent, and is still kept.
    every = w.randn(w.size, steps, 3 * CHUNK + 1, seed=0)
    demo = MomentumComponents(every[0, 0], components=components)
    total = torch.zeros_like(demo.momentum).view(-1)
    for gradient in every[w.rank]:
        total = BETA * total + demo.sum_of_all(*demo.compress(gradient))
    dist.all_reduce(demo.momentum)
    total = (total + demo.momentum.view(-1))[: every.shape[2]]
    ages = torch.arange(steps - 1, -1, -1).to(every)
    w.check("identity", total, lambda: BETA**ages @ every.sum(0), slack=64)
    n = sum(p.numel() for p in last.weights)
    known = {"elements": n, "itemsize": total.itemsize, "chunk_size": CHUNK}
    report(w, given=known, calls=moved.count, payload=moved.payload)


if __name__ == "__main__":
    with world() as w:
        main(w)
