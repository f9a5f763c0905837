"""Vocabulary-parallel cross-entropy: three numbers per token, not V logits.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.intra_layer.vocabulary_parallel_cross_entropy

The last matrix of a language model has a row for each of V tokens. Cut it by
rows, and each rank computes the logits of its part of the vocabulary. To
gather them would cost V numbers per token. But the loss of a token with
target t, with z for its logits,

    loss  =  log(sum of exp z_i)  -  z_t        i over all of V

needs three numbers only, each a sum or a maximum over the ranks:

    m        the largest logit            so that no exp overflows
    s        sum of exp(z_i - m)          every rank adds its part
    z_t - m  the target's logit           its owner adds it, others add 0

Backward sends nothing: the gradient of a logit is its softmax, exp(z_i-m)/s,
minus one at the target, and both are known where the logit is. With label
smoothing, which spreads e of the target's weight over all V, a fourth number
travels: the sum of all logits.

    N tokens   V logits on this rank   H width

Source: Shoeybi et al. 2019, section 3; Megatron Core, cross_entropy.py.
"""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from exemplars.parameter_distribution.intra_layer import (
    tensor_parallel_column_row as tensor_parallel,
)
from exemplars.runtime import Group, World, meter, report, span, world

IGNORED = -100  # the target of a token that nothing is learned from


class Loss(torch.autograd.Function):
    """Cross-entropy per token, of logits cut by vocabulary."""

    @staticmethod
    def forward(
        ctx: Any, z_NV: Tensor, t_N: Tensor, head: "Head", e: float
    ) -> Tensor:
        top_N = z_NV.amax(-1)
        #: Of all ranks: with maxima of their own, sums could not be added.
        dist.all_reduce(top_N, dist.ReduceOp.MAX, group=head.group)
        z_NV = z_NV - top_N[:, None]
        softmax_NV = z_NV.exp()
        mine_N = (t_N >= head.first) & (t_N < head.first + z_NV.shape[-1])
        #: Any place will do for another rank's target: it is masked.
        place_N1 = (t_N - head.first).where(mine_N, 0)[:, None]
        hit_N = z_NV.gather(-1, place_N1)[:, 0] * mine_N
        told = [softmax_NV.sum(-1), hit_N]
        #: The mean logit is of the whole vocabulary too.
        told += [z_NV.sum(-1)] if e else []
        total = torch.stack(told)
        dist.all_reduce(total, group=head.group)
        softmax_NV /= total[0, :, None]
        weights = total.new_tensor([1 - e, e / head.size][: len(told) - 1])
        loss_N = total[0].log() - weights @ total[1:]
        #: Already now, in place of the softmax: one tensor to keep.
        dz_NV = softmax_NV.sub_(e / head.size)
        one_N = (1 - e) * mine_N.to(z_NV.dtype)
        dz_NV.scatter_add_(-1, place_N1, -one_N[:, None])
        learned_N = t_N != IGNORED
        ctx.save_for_backward(dz_NV.mul_(learned_N[:, None]))
        return loss_N * learned_N

    @staticmethod
    def backward(ctx: Any, dloss_N: Tensor) -> tuple[Tensor | None, ...]:
        #: No message: every rank has the softmax of its own logits.
        (dz_NV,) = ctx.saved_tensors
        return dz_NV * dloss_N[:, None], None, None, None


class Head(nn.Module):
    """This rank's rows of the last matrix, and the loss."""

    def __init__(self, whole: nn.Linear, group: Group = None) -> None:
        super().__init__()
        r, p = dist.get_rank(group), dist.get_world_size(group)
        self.group = group
        #: Uneven, and nothing is padded: where a part begins is not r V / p.
        rows = torch.arange(whole.out_features).tensor_split(p)[r]
        self.first, self.size = int(rows[0]), whole.out_features
        self.weight = nn.Parameter(whole.weight.data[rows])

    def forward(self, x_NH: Tensor, t_N: Tensor, smoothing: float) -> Tensor:
        """Loss per token, the same on every rank; 0 where ignored."""
        #: Every rank's logits read x, so its gradient is a sum over ranks.
        z_NV = tensor_parallel.Enter.apply(x_NH, self.group) @ self.weight.T
        with span("loss", cost=1):
            return Loss.apply(z_NV, t_N, self, smoothing)


def layer(w: World, width: int, vocabulary: int) -> nn.Linear:
    """The whole last matrix, the same on every rank."""
    linear = nn.Linear(width, vocabulary, bias=False, dtype=torch.double)
    linear.weight.data = w.randn(vocabulary, width, seed=0)
    return linear


def reference(
    whole: nn.Linear, x: Tensor, target: Tensor, smoothing: float
) -> list[Tensor]:
    """One process with all logits: losses, gradients of x and the matrix."""
    x = x.detach().requires_grad_()
    loss = F.cross_entropy(
        whole(x), target, reduction="none", label_smoothing=smoothing
    )
    grads = torch.autograd.grad(loss.sum(), [x, whole.weight])
    return [loss.detach(), *grads]


class Run(NamedTuple):
    """What one pass forward and backward kept and sent."""

    memory: dict[str, int]
    forward: tuple[int, int]  # calls, bytes
    backward: tuple[int, int]


def check(
    w: World, whole: nn.Linear, x: Tensor, target: Tensor, smoothing: float
) -> Run:
    """One loss and its gradients, compared with one process."""
    head, x = Head(whole), x.clone().requires_grad_()
    memory = w.memory(
        parameters=head.parameters,
        gradients=lambda: [head.weight.grad],
        inputs=lambda: [x],
    )
    with memory:
        with meter() as forward:
            loss = head(x, target, smoothing)
        with meter() as backward:
            loss.sum().backward()
    truth = [] if w.dry else reference(whole, x, target, smoothing)
    rows = slice(head.first, head.first + len(head.weight))
    # Sums of p parts instead of one long sum.
    w.check("loss", loss, lambda: truth[0], slack=8)
    ours = tensor_parallel.gradients([x, head.weight])
    theirs = [truth[1], truth[2][rows]] if truth else []
    w.check("gradients", ours, lambda: theirs, slack=64)
    w.check_same("same", loss)
    counts = [(m.count, m.payload) for m in (forward, backward)]
    return Run(memory.peak, *counts)


def main(
    w: World,
    *,
    tokens: int = 24,
    width: int = 8,
    vocabulary: int = 1031,
    smoothing: float = 0.1,
) -> None:
    fits = w.size <= vocabulary
    w.require(fits, f"{w.size} ranks for {vocabulary} tokens: too many")
    whole = layer(w, width, vocabulary)
    #: From small logits to such as overflow without the maximum.
    scale = torch.linspace(1, 200, tokens, dtype=torch.double)
    x = w.randn(tokens, width, seed=1) * scale[:, None].to(w.device)
    target = torch.arange(tokens, device=w.device) * 7919 % vocabulary
    target[::5] = IGNORED
    plain, smooth = (check(w, whole, x, target, e) for e in (0.0, smoothing))
    sent = {"calls": plain.forward[0], "payload": plain.forward[1]}
    report(
        w,
        given={"itemsize": 8},
        **sent,
        payload_smoothed=smooth.forward[1],
        payload_backward=plain.backward[1],
        held=plain.memory["parameters"],
        activations=plain.memory["activations"],
    )


if __name__ == "__main__":
    with world() as w:
        main(w)
