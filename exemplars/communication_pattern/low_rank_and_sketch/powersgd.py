"""PowerSGD: send two thin factors of the gradient instead of the matrix.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.low_rank_and_sketch.powersgd

A gradient M of n x m entries is often close to a product of two thin ones.
One step of power iteration, begun where the last one ended, finds them:

    P = M Q            n x k, all-reduced, then made orthonormal
    Q = M^T P          m x k, all-reduced
    update = P Q^T     the mean gradient, projected onto the span of P

Both products are linear in M: the sum of all ranks' factors is the factor of
the sum. So factors, unlike signs or largest entries, can be added on the way
in an all-reduce, and traffic hardly grows with the ranks: k(n + m) entries
instead of n m. A mean gradient of rank k or less comes through exactly. What
is left of any other goes into the next step's M, and so on every rank

    sum of updates  +  last error  =  sum of gradients

Source: Vogels et al. 2019, algorithm 1.
"""

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Step, Task, characters, digits


class PowerSGD:
    """A compressor of one weight's gradients, step after step."""

    def __init__(self, like: Tensor, start: Tensor) -> None:
        #: A kernel of more dimensions is a matrix, a row for each output.
        self.error = torch.zeros_like(like).flatten(1)
        #: The same on all ranks: factors by different Q do not add up.
        self.q = start

    def mean(self, gradient: Tensor) -> Tensor:
        """The mean over the ranks, but of low rank."""
        wanted = gradient.flatten(1) + self.error
        with span("left factor", label="P", cost=1):
            p = wanted @ self.q
        #: The sum of M Q over the ranks is (sum of M) Q.
        dist.all_reduce(p)
        with span("right factor", label="Q", cost=1):
            #: Same bits in, same bits out: all ranks go on with one P.
            p = torch.linalg.qr(p).Q
            q = wanted.T @ p
        dist.all_reduce(q)
        #: Kept: the next step's gradient is much like this one, so one step
        #: of power iteration a time is enough.
        self.q = q / dist.get_world_size()
        update = p @ self.q.T
        #: Each rank's error is what its own matrix has beyond the mean's
        #: projection; the errors' mean is what the update missed.
        self.error = wanted - update
        return update.view_as(gradient)


def compressor(w: World, like: Tensor, k: int) -> PowerSGD:
    """One for this weight, begun with the same random Q on every rank."""
    return PowerSGD(like, w.randn(like.flatten(1).shape[1], k, seed=0))


def mean_of_vectors(gradients: list[Tensor]) -> list[Tensor]:
    """Biases and norms have no second dimension: they go whole."""
    flat = torch.cat(gradients)
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    return list(flat.split([len(g) for g in gradients]))


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    local_batch: int,
    rate: float,
    factor_rank: int,
) -> Iterator[Step]:
    """SGD in which thin factors travel."""
    model = task.model().to(w.device)
    weights = list(model.parameters())
    matrices = [p for p in weights if p.dim() > 1]
    vectors = [p for p in weights if p.dim() == 1]
    factors = [compressor(w, m.detach(), factor_rank) for m in matrices]
    for step in range(steps):
        x, y = task.batch(step * w.size + w.rank, local_batch)
        with span("compute", label=step, cost=3):
            loss = task.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
            grads = torch.autograd.grad(loss, matrices + vectors)
        thin = [f.mean(g) for f, g in zip(factors, grads)]
        whole = mean_of_vectors(list(grads[len(thin) :]))
        with torch.no_grad():
            for p, update in zip(matrices + vectors, thin + whole):
                p.sub_(update, alpha=rate)
        yield Step(loss.item(), weights)


def reference(
    w: World, task: Task, steps: int, local_batch: int, rate: float, k: int
) -> list[Tensor]:
    """One process that averages whole gradients, then projects them."""
    model = task.model().to(w.device)
    weights: list[Tensor] = list(model.parameters())
    sgd = torch.optim.SGD(weights, lr=rate)
    q = {m: w.randn(m.shape[-1], k, seed=0) for m in weights}
    missed = {m: torch.zeros_like(m) for m in weights}
    for step in range(steps):
        sgd.zero_grad()
        for r in range(w.size):
            x, y = task.batch(step * w.size + r, local_batch)
            loss = task.loss(model, x.to(w.device), y.to(w.device))
            (loss / y.numel() / w.size).backward()
        for m in weights:
            if m.dim() > 1 and m.grad is not None:
                #: The ranks' errors enter only by their mean.
                wanted = m.grad + missed[m]
                basis = torch.linalg.svd(wanted @ q[m], False).U
                q[m] = wanted.T @ basis
                m.grad = basis @ q[m].T
                missed[m] = wanted - m.grad
        sgd.step()
    return weights


def check_identity(w: World, steps: int, k: int) -> None:
    """Updates and error account for all gradients, here of full rank."""
    given = w.randn(steps, 37, 53, seed=w.rank)
    factors = compressor(w, given[0], k)
    total = torch.stack([factors.mean(g) for g in given]).sum(0)
    total += factors.error
    w.check("identity", total, lambda: given.sum(0), slack=4 * steps)


def check_exact(w: World, rank: int, k: int) -> None:
    """A mean of rank k or less comes through."""
    #: All have the same row space, so their mean has that rank too.
    right = w.randn(rank, 53, seed=0)
    every = [w.randn(37, rank, seed=r) @ right for r in range(w.size)]
    mean = compressor(w, every[0], k).mean(every[w.rank])
    # Two products and a factorization instead of one sum.
    w.check("exact", mean, lambda: torch.stack(every).mean(0), slack=32)


def main(
    w: World,
    *,
    steps: int = 4,
    local_batch: int = 24,
    rate: float = 0.2,
    factor_rank: int = 2,
) -> None:
    run = partial(train, steps=steps, local_batch=local_batch, rate=rate)
    sizes = (steps, local_batch, rate, factor_rank)
    for task in (digits, characters):
        with meter() as moved:
            *_, last = run(w, task, factor_rank=factor_rank)
        # Projections by another factorization.
        replay = partial(reference, w, task, *sizes)
        w.check(task.name, last.weights, replay, slack=64)
    w.check_same("same", last.weights)
    check_identity(w, steps, factor_rank)
    for rank in range(1, factor_rank + 1):
        check_exact(w, rank, factor_rank)
    shapes = [p.shape for p in last.weights]
    given = {
        "itemsize": 8,
        "matrices": sum(len(s) == 2 for s in shapes),
        "matrix_sides": sum(sum(s) for s in shapes if len(s) == 2),
        "vector_elements": sum(sum(s) for s in shapes if len(s) == 1),
    }
    report(w, given=given, calls=moved.count, payload=moved.payload)


if __name__ == "__main__":
    with world() as w:
        main(w)
