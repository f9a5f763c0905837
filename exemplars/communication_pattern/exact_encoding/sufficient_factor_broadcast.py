"""Sufficient factors: send what a gradient is made of, and not the gradient.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.exact_encoding.sufficient_factor_broadcast

Source: Xie et al. 2016; Zhang et al. 2017 (Poseidon).

In a layer y = x W^T each sample adds to the gradient of W one outer product,
of the error at the layer's output and of the layer's input:

    dW  =  u_1 v_1^T + ... + u_K v_K^T        u: M entries   v: N entries

Send u and v, and everyone can build dW exactly, to the last sample of the
last rank: K(M + N) entries travel to every other rank instead of the M N of
the matrix. The sum over u alone is the gradient of the bias, for nothing.

An all-reduce sends about 2 M N whatever the ranks, the factors of K samples
go to all of the other p - 1. So the factors win while

    K p (M + N)  <  2 M N

that is for wide layers, small batches and few ranks.

    K samples of each rank   M outputs   N inputs
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import seeded

SAMPLES, OUTPUTS, INPUTS = 3, 96, 160  # K, M, N


@seeded
def layer() -> nn.Linear:
    return nn.Linear(INPUTS, OUTPUTS)


def loss_of(y: Tensor, target: Tensor) -> Tensor:
    """Summed over samples: losses of all ranks add up to that of the batch."""
    return F.smooth_l1_loss(y, target, reduction="sum")


def batch(w: World, of_rank: int) -> tuple[Tensor, Tensor]:
    """One rank's inputs, and what the outputs should have been."""
    x = w.randn(SAMPLES, INPUTS, of_rank=of_rank)
    return x, w.randn(SAMPLES, OUTPUTS, of_rank=of_rank)


def own_factors(w: World, linear: nn.Linear) -> tuple[Tensor, Tensor]:
    """Errors u and inputs v of this rank's samples; no matrix is built."""
    x, target = batch(w, w.rank)
    with torch.no_grad():
        y = linear(x)
    y.requires_grad_()
    (u,) = torch.autograd.grad(loss_of(y, target), y)
    return u, x


def all_factors(factor: Tensor) -> Tensor:
    """The factors of every rank's samples, below one another."""
    p = dist.get_world_size()
    every = factor.new_empty(p * len(factor), factor.shape[1])
    dist.all_gather_single(every, factor.contiguous())
    return every


def broadcast_factors(w: World, linear: nn.Linear) -> tuple[Tensor, Tensor]:
    """Gradients of weight and bias, over all ranks' samples."""
    with span("compute", cost=2):
        u, v = own_factors(w, linear)
    u, v = all_factors(u), all_factors(v)
    with span("rebuild", cost=1):
        return u.T @ v, u.sum(0)


def all_reduce_matrix(w: World, linear: nn.Linear) -> Tensor:
    """The other way: every rank builds its matrix, and all are summed."""
    u, v = own_factors(w, linear)
    gradient = u.T @ v
    dist.all_reduce(gradient)
    return gradient


def reference(w: World) -> list[Tensor]:
    """Autograd, of all ranks' samples in one batch."""
    linear = layer().to(w.device)
    every = [batch(w, r) for r in range(w.size)]
    x, target = (torch.cat(parts) for parts in zip(*every))
    loss_of(linear(x), target).backward()
    return [p.grad for p in linear.parameters() if p.grad is not None]


def main(w: World) -> None:
    linear = layer().to(w.device)
    with meter() as factors:
        weight, bias = broadcast_factors(w, linear)
    # One product of p K rows on both sides; BLAS may cut it differently.
    w.check("gradient", [weight, bias], lambda: reference(w), slack=8)
    w.check_same("same", [weight, bias])
    with meter() as matrix:
        all_reduce_matrix(w, linear)
    given = {"k": SAMPLES, "m": OUTPUTS, "n": INPUTS, "b": 8}
    wins = int(factors.wire < matrix.wire)
    report(w, given=given, payload=factors.payload, wins=wins)


if __name__ == "__main__":
    with world() as w:
        main(w)
