"""Ulysses: cut by tokens everywhere, and by heads while attending.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.within_sample.ulysses

Source: Jacobs et al. 2023, section 3.

All of a transformer but attention treats tokens one by one, so each rank can
take some tokens of one long sequence. Attention mixes tokens, yet treats the
heads one by one. An all-to-all turns one cut into the other, and back:

              head 0   head 1                     head 0   head 1
    tokens a  rank 0   rank 0    all-to-all       rank 0   rank 1
    tokens b  rank 1   rank 1    <--------->      rank 0   rank 1

In between every rank has some heads of all tokens, and attends as one process
would. Backward takes the same way in the other direction. A rank sends each
of its numbers once, so that its traffic falls with p; a ring of keys passes
on everybody's. But ranks beyond the number of heads would have nothing to do.

    T tokens   t tokens of a rank   H heads   h heads of a rank
    D width of a head               C numbers of a token and a head
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import attention

TOKENS, HEADS, WIDTH = 37, 24, 2  # T, H, D
Cut = tuple[list[int], list[int]]  # the tokens, and the heads, of each rank


def cut(p: int) -> Cut:
    """As even as it gets: the first ranks have one more."""
    tokens = [len(t) for t in torch.arange(TOKENS).tensor_split(p)]
    return tokens, [len(h) for h in torch.arange(HEADS).tensor_split(p)]


def to_heads(x_tHC: Tensor, by: Cut) -> Tensor:
    """From all heads of my tokens to my heads of all tokens."""
    (tokens, heads), r, c = by, dist.get_rank(), x_tHC.shape[2]
    #: A block of heads is not contiguous, and messages must be.
    blocks = torch.cat([b.flatten() for b in x_tHC.split(heads, dim=1)])
    into = x_tHC.new_empty(sum(tokens), heads[r], c)
    sent = [tokens[r] * h * c for h in heads]
    come = [t * heads[r] * c for t in tokens]
    dist.all_to_all_single(into.view(-1), blocks, come, sent)
    return into


def to_tokens(x_ThC: Tensor, by: Cut) -> Tensor:
    """From my heads of all tokens to all heads of my tokens."""
    (tokens, heads), r, c = by, dist.get_rank(), x_ThC.shape[2]
    into = x_ThC.new_empty(tokens[r] * sum(heads) * c)
    sent = [t * heads[r] * c for t in tokens]
    come = [tokens[r] * h * c for h in heads]
    dist.all_to_all_single(into, x_ThC.flatten(), come, sent)
    blocks = [b.view(tokens[r], -1, c) for b in into.split(come)]
    return torch.cat(blocks, dim=1)


class ToHeads(torch.autograd.Function):
    """Into attention: heads forward, tokens backward."""

    @staticmethod
    def forward(ctx: Any, x_tHC: Tensor, by: Cut) -> Tensor:
        ctx.by = by
        return to_heads(x_tHC, by)

    @staticmethod
    def backward(ctx: Any, dx_ThC: Tensor) -> tuple[Tensor, None]:
        return to_tokens(dx_ThC, ctx.by), None


class ToTokens(torch.autograd.Function):
    """Out of attention: tokens forward, heads backward."""

    @staticmethod
    def forward(ctx: Any, x_ThC: Tensor, by: Cut) -> Tensor:
        ctx.by = by
        return to_tokens(x_ThC, by)

    @staticmethod
    def backward(ctx: Any, dx_tHC: Tensor) -> tuple[Tensor, None]:
        return to_heads(dx_tHC, ctx.by), None


def attend(qkv_ThC: Tensor) -> Tensor:
    """Causal attention of some heads; queries, keys, values side by side."""
    h = qkv_ThC.shape[1]
    q, k, v = (x.flatten(1)[None] for x in qkv_ThC.chunk(3, dim=2))
    return attention(q, k, v, h)[0].unflatten(1, (h, -1))


def ulysses(qkv_tHC: Tensor, by: Cut) -> Tensor:
    """Causal attention over the tokens of all ranks."""
    qkv_ThC = ToHeads.apply(qkv_tHC, by)
    heads = qkv_ThC.shape[1]
    with span("attend", label=f"{heads} heads", cost=heads):
        out_ThD = attend(qkv_ThC)
    out_tHD: Tensor = ToTokens.apply(out_ThD, by)
    return out_tHD


def whole(w: World) -> tuple[Tensor, Tensor]:
    """Queries, keys, values of all tokens, and the gradient of the output."""
    qkv = w.randn(TOKENS, HEADS, 3 * WIDTH, of_rank=0)
    return qkv, w.randn(TOKENS, HEADS, WIDTH, of_rank=0)


def reference(w: World) -> tuple[Tensor, Tensor]:
    """The whole sequence on one process; of it, what belongs to this rank."""
    qkv, dout = whole(w)
    out = attend(qkv.requires_grad_())
    (dqkv,) = torch.autograd.grad(out, qkv, dout)
    mine = torch.arange(TOKENS, device=w.device).tensor_split(w.size)[w.rank]
    return out[mine], dqkv[mine]


def main(w: World) -> None:
    most = f"{w.size} ranks for {HEADS} heads: use at most {HEADS}"
    w.require(w.size <= HEADS, most)
    qkv, dout = (x.tensor_split(w.size)[w.rank] for x in whole(w))
    grads = list[Tensor]()
    memory = w.memory(tokens=lambda: [qkv], gradients=lambda: grads)
    with memory, meter() as moved:
        out = ulysses(qkv.requires_grad_(), cut(w.size))
        grads += torch.autograd.grad(out, qkv, dout)
    # The same sums over the same tokens; kernels may group them otherwise.
    w.check("output", out, lambda: reference(w)[0], slack=16)
    w.check("gradient", grads[0], lambda: reference(w)[1], slack=16)
    given = dict(n=TOKENS, heads=HEADS, h=WIDTH, b=8)
    counts = dict(calls=moved.count, payload=moved.payload)
    report(w, given=given, ranks=w.size, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
