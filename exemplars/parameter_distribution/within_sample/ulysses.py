"""Ulysses: cut by tokens everywhere, and by heads while attending.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.within_sample.ulysses

Everything in a transformer but attention treats tokens one by one, so each
rank can take some tokens of one long sequence. Attention mixes tokens, but
treats heads one by one. An all-to-all turns one cut into the other, and back:

              head 0   head 1                     head 0   head 1
    tokens a  rank 0   rank 0    all-to-all       rank 0   rank 1
    tokens b  rank 1   rank 1    <--------->      rank 0   rank 1

In between every rank has some heads of all tokens, and attends as one process
would. Backward takes the same path in reverse. A rank sends each of its own
numbers once, so its traffic falls with p, while a ring of keys passes on
everybody's. But ranks beyond the number of heads would have nothing to do.

    T tokens   t tokens of a rank   H heads   h heads of a rank
    D width of a head               C numbers of a token and a head

Source: Jacobs et al. 2023, section 3.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from exemplars.runtime import Group, World, meter, report, span, world
from exemplars.workload import attention

Cut = tuple[list[int], list[int]]  # the tokens, and the heads, of each rank


def cut(tokens: int, heads: int, p: int) -> Cut:
    """As even as possible: the first ranks have one more."""
    if p > heads:
        raise ValueError(f"{p} ranks for {heads} heads: some have none")
    by_tokens = [len(t) for t in torch.arange(tokens).tensor_split(p)]
    by_heads = [len(h) for h in torch.arange(heads).tensor_split(p)]
    return by_tokens, by_heads


def to_heads(x_tHC: Tensor, by: Cut, group: Group = None) -> Tensor:
    """From all heads of my tokens to my heads of all tokens."""
    tokens, heads = by
    r, c = dist.get_rank(group), x_tHC.shape[2]
    #: A block of heads is not contiguous, and messages must be.
    blocks = torch.cat([b.flatten() for b in x_tHC.split(heads, dim=1)])
    arrived = x_tHC.new_empty(sum(tokens), heads[r], c)
    sent = [tokens[r] * h * c for h in heads]
    received = [t * heads[r] * c for t in tokens]
    #: What arrives lies rank by rank, which is token by token: no reordering.
    into = arrived.view(-1)
    dist.all_to_all_single(into, blocks, received, sent, group=group)
    return arrived


def to_tokens(x_ThC: Tensor, by: Cut, group: Group = None) -> Tensor:
    """From my heads of all tokens to all heads of my tokens."""
    tokens, heads = by
    r, c = dist.get_rank(group), x_ThC.shape[2]
    arrived = x_ThC.new_empty(tokens[r] * sum(heads) * c)
    sent = [t * heads[r] * c for t in tokens]
    received = [tokens[r] * h * c for h in heads]
    outgoing = x_ThC.flatten()
    dist.all_to_all_single(arrived, outgoing, received, sent, group=group)
    #: Here rank by rank is head by head, but a token needs its heads together.
    blocks = [b.view(tokens[r], -1, c) for b in arrived.split(received)]
    return torch.cat(blocks, dim=1)


class ToHeads(torch.autograd.Function):
    """Into attention: heads forward, tokens backward."""

    @staticmethod
    def forward(
        ctx: Any, x_tHC: Tensor, by: Cut, group: Group = None
    ) -> Tensor:
        ctx.by, ctx.group = by, group
        return to_heads(x_tHC, by, group)

    @staticmethod
    def backward(ctx: Any, dx_ThC: Tensor) -> tuple[Tensor, None, None]:
        #: A permutation of numbers: its gradient is the way back.
        return to_tokens(dx_ThC, ctx.by, ctx.group), None, None


class ToTokens(torch.autograd.Function):
    """Out of attention: tokens forward, heads backward."""

    @staticmethod
    def forward(
        ctx: Any, x_ThC: Tensor, by: Cut, group: Group = None
    ) -> Tensor:
        ctx.by, ctx.group = by, group
        return to_tokens(x_ThC, by, group)

    @staticmethod
    def backward(ctx: Any, dx_tHC: Tensor) -> tuple[Tensor, None, None]:
        return to_heads(dx_tHC, ctx.by, ctx.group), None, None


def attend(qkv_ThC: Tensor) -> Tensor:
    """Causal attention of some heads; queries, keys, values side by side."""
    heads = qkv_ThC.shape[1]
    #: Side by side, so that one all-to-all moves all three.
    q, k, v = (x.flatten(1)[None] for x in qkv_ThC.tensor_split(3, dim=2))
    return attention(q, k, v, heads)[0].unflatten(1, (heads, -1))


def ulysses(qkv_tHC: Tensor, by: Cut) -> Tensor:
    """Causal attention over the tokens of all ranks."""
    qkv_ThC = ToHeads.apply(qkv_tHC, by)
    #: Whole sequences of some heads: any kernel for attention will do.
    heads = qkv_ThC.shape[1]
    with span("attend", label=f"{heads} heads", cost=heads):
        out_ThD = attend(qkv_ThC)
    out_tHD: Tensor = ToTokens.apply(out_ThD, by)
    return out_tHD


def reference(qkv_THC: Tensor, dout_THD: Tensor) -> tuple[Tensor, Tensor]:
    """The whole sequence on one process: output and gradient."""
    qkv = qkv_THC.detach().requires_grad_()
    q, k, v = qkv.transpose(0, 1).chunk(3, dim=2)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    (dqkv,) = torch.autograd.grad(out, qkv, dout_THD.transpose(0, 1))
    return out.transpose(0, 1), dqkv


def main(
    w: World, *, tokens: int = 37, heads: int = 24, head_width: int = 2
) -> None:
    w.require(w.size <= heads, f"{w.size} ranks: use at most {heads} (heads)")
    w.require(w.size <= tokens, f"{w.size} ranks: use at most {tokens}")
    whole = w.randn(tokens, heads, 3 * head_width, seed=0)
    slope = w.randn(tokens, heads, head_width, seed=0)
    # A copy: a view would keep the whole sequence in memory.
    qkv = whole.tensor_split(w.size)[w.rank].clone()
    dout = slope.tensor_split(w.size)[w.rank]
    grads: list[Tensor] = []
    memory = w.memory(tokens=lambda: [qkv], gradients=lambda: grads)
    with memory, meter() as moved:
        out = ulysses(qkv.requires_grad_(), cut(tokens, heads, w.size))
        grads += torch.autograd.grad(out, qkv, dout)
    if not w.dry:
        truth = [
            t.tensor_split(w.size)[w.rank] for t in reference(whole, slope)
        ]
        # The same sums over the same tokens; kernels may group them otherwise.
        w.check("output", out, lambda: truth[0], slack=16)
        w.check("gradient", grads[0], lambda: truth[1], slack=16)
    attended = [e for e in moved.events if e.name == "attend"]
    report(
        w,
        given={"itemsize": 8},
        calls=moved.count,
        payload=moved.payload,
        held=sum(int(e.cost) for e in attended),
    )


if __name__ == "__main__":
    with world() as w:
        main(w)
