"""Sufficient factors: send what a gradient is made of, and not the gradient.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.exact_encoding.sufficient_factor_broadcast

In a layer y = x W^T each sample adds to the gradient of W one outer product,
of the error at the layer's output and of the layer's input:

    dW  =  u_1 v_1^T + ... + u_K v_K^T        u: M entries   v: N entries

Send u and v, and everyone can build dW exactly, to the last sample of the
last rank: K(M + N) entries travel to every other rank instead of the M N of
the matrix. The sum over u alone is the gradient of the bias, for free.

An all-reduce sends about 2 M N entries per rank whatever p is; the factors of
K samples go to each of the p - 1 other ranks. So the factors win while

    K p (M + N)  <  2 M N

that is for wide layers, small batches and few ranks.

    K samples of each rank   M outputs   N inputs

Source: Xie et al. 2016; Zhang et al. 2017 (Poseidon).
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import seeded


def loss_of(y: Tensor, target: Tensor) -> Tensor:
    """Summed over samples: losses of all ranks add up to that of the batch."""
    return F.smooth_l1_loss(y, target, reduction="sum")


def own_factors(
    linear: nn.Linear, x: Tensor, target: Tensor
) -> tuple[Tensor, Tensor]:
    """Errors u and inputs v of this rank's samples; no matrix is built."""
    with torch.no_grad():
        y = linear(x)
    #: Backward stops at the layer's output: the error there, one row per
    #: sample, is all that the layer's own gradient needs.
    y.requires_grad_()
    (u,) = torch.autograd.grad(loss_of(y, target), y)
    return u, x


def all_factors(factor: Tensor) -> Tensor:
    """The factors of every rank's samples, below one another."""
    p = dist.get_world_size()
    every = factor.new_empty(p * len(factor), factor.shape[1])
    #: Gathered: a sum of factors is no factor of the sum.
    dist.all_gather_single(every, factor.contiguous())
    return every


def broadcast_factors(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of weight and bias, over all ranks' samples."""
    u, v = all_factors(u), all_factors(v)
    with span("rebuild", cost=1):
        #: One product over all samples: every rank does the work of all,
        #: which is the price of the smaller messages.
        weight = u.T @ v
        #: A bias has the input 1 in every sample.
        return weight, u.sum(0)


def all_reduce_matrix(u: Tensor, v: Tensor) -> Tensor:
    """The other way: every rank builds its matrix, and all are summed."""
    #: One sample or a thousand, the message is the whole matrix.
    gradient = u.T @ v
    dist.all_reduce(gradient)
    return gradient


def reference(
    linear: nn.Linear, every_x: Tensor, every_target: Tensor
) -> list[Tensor]:
    """Autograd, of all ranks' samples in one batch."""
    linear.zero_grad()
    nn.SmoothL1Loss(reduction="sum")(linear(every_x), every_target).backward()
    return [p.grad for p in linear.parameters() if p.grad is not None]


def main(
    w: World,
    *,
    local_batch: int = 3,
    features_out: int = 96,
    features_in: int = 160,
) -> None:
    make = partial(nn.Linear, features_in, features_out)
    linear = seeded(make)().to(w.device)
    every_x = w.randn(w.size, local_batch, features_in, seed=0)
    every_target = w.randn(w.size, local_batch, features_out, seed=0)
    batch = every_x.flatten(0, 1), every_target.flatten(0, 1)
    with meter() as factors:
        with span("compute", cost=2):
            u, v = own_factors(linear, every_x[w.rank], every_target[w.rank])
        weight, bias = broadcast_factors(u, v)
    with meter() as matrix:
        summed = all_reduce_matrix(u, v)
    # One product of p K rows on both sides; BLAS may cut it differently.
    truth = partial(reference, linear, *batch)
    w.check("gradient", [weight, bias], truth, slack=8)
    w.check("matrix", summed, lambda: truth()[0], slack=8)
    w.check_same("same", [weight, bias])
    #: What is sent decides, not what is handed over: a gather sends its
    #: part p-1 times, an all-reduce sends its tensor less than twice.
    wins = int(factors.wire < matrix.wire)
    given = {"itemsize": u.element_size()}
    report(w, given=given, payload=factors.payload, wins=wins)


if __name__ == "__main__":
    with world() as w:
        main(w)
