"""PowerSGD: send two thin factors of the gradient instead of the matrix.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.low_rank_and_sketch.powersgd

Source: Vogels et al. 2019, algorithm 1.

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
"""

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Step, Task, characters, digits

STEPS, BATCH, RATE = 4, 24, 0.2
RANK = 2  # k, of the factors
ROWS, COLUMNS = 37, 53  # of a matrix that has rank k or less


class PowerSGD:
    """A compressor of one matrix, and of its successors."""

    def __init__(self, w: World, like: Tensor) -> None:
        self.error = torch.zeros_like(like)
        self.seen, self.applied = self.error.clone(), self.error.clone()
        #: The same on all ranks: factors by different Q do not add up.
        self.q = w.randn(like.shape[1], RANK, of_rank=0)

    def mean(self, gradient: Tensor) -> Tensor:
        """The mean over the ranks, but of rank k."""
        wanted = gradient + self.error
        with span("left factor", label="P", cost=1):
            p = wanted @ self.q
        dist.all_reduce(p)
        with span("right factor", label="Q", cost=1):
            #: Same bits in, same bits out: all ranks go on with one P.
            p = torch.linalg.qr(p).Q
            q = wanted.T @ p
        dist.all_reduce(q)
        self.q = q / dist.get_world_size()
        update = p @ self.q.T
        self.error = wanted - update
        #: Only to check the identity: all that came in, all that came out.
        self.seen += gradient
        self.applied += update
        return update


def mean_of_vectors(gradients: list[Tensor]) -> list[Tensor]:
    """Biases and norms have no second dimension: they go whole."""
    flat = torch.cat(gradients)
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    return list(flat.split([len(g) for g in gradients]))


def split(parameters: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Matrices, and the rest."""
    matrices = [p for p in parameters if p.dim() == 2]
    return matrices, [p for p in parameters if p.dim() == 1]


def train(
    w: World, task: Task, model: nn.Module, factors: list[PowerSGD]
) -> Iterator[Step]:
    """SGD in which thin factors travel."""
    matrices, vectors = split(list(model.parameters()))
    for step in range(STEPS):
        x, y = task.batch(step * w.size + w.rank, BATCH)
        with span("compute", label=step, cost=3):
            loss = task.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
            grads = torch.autograd.grad(loss, matrices + vectors)
        thin = [f.mean(g) for f, g in zip(factors, grads)]
        whole = mean_of_vectors(list(grads[len(thin) :]))
        with torch.no_grad():
            for p, update in zip(matrices + vectors, thin + whole):
                p -= RATE * update
        yield Step(samples=BATCH * w.size, loss=loss.item())


def low_rank(w: World, rank: int, of_rank: int) -> Tensor:
    """One rank's matrix: all have the same row space, so their mean too."""
    left = w.randn(ROWS, rank, of_rank=of_rank)
    return left @ w.randn(rank, COLUMNS, of_rank=0)


def reference(w: World, rank: int) -> Tensor:
    """The mean of all ranks' matrices, on one process."""
    every = [low_rank(w, rank, r) for r in range(w.size)]
    return torch.stack(every).mean(0)


def gradients(factors: list[PowerSGD]) -> list[Tensor]:
    """What plain SGD would have sent: every gradient, whole."""
    return [f.seen for f in factors]


def main(w: World) -> None:
    for task in (digits, characters):
        model = task.model().to(w.device)
        matrices, vectors = split(list(model.parameters()))
        factors = [PowerSGD(w, m.detach()) for m in matrices]
        with meter() as moved:
            for _ in train(w, task, model, factors):
                pass
        # STEPS additions on either side, in another order.
        both = [f.applied + f.error for f in factors]
        w.check(task.name, both, partial(gradients, factors), slack=STEPS)
    w.check_same("same", list(model.parameters()))
    for rank in range(1, RANK + 1):
        mine = low_rank(w, rank, w.rank)
        mean = PowerSGD(w, mine).mean(mine)
        # Two products and a factorisation instead of one sum.
        w.check("exact", mean, partial(reference, w, rank), slack=32)
    sizes = dict(k=RANK, l=len(matrices), t=STEPS, b=8)
    sizes["s"] = sum(n + m for n, m in (x.shape for x in matrices))
    sizes["v"] = sum(len(x) for x in vectors)
    report(w, given=sizes, calls=moved.count, payload=moved.payload)


if __name__ == "__main__":
    with world() as w:
        main(w)
