"""Ring attention: tokens stay where they are, keys and values go round.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.within_sample.ring_attention

Each rank holds some tokens of one long sequence. While it attends to the keys
and values it has, it passes them on; after p-1 hops it has met them all. A
softmax need not see all scores at once: keep the output so far and the
logarithm of its normalizer, L, and correct both with every block that arrives:

    L' = log(exp L + sum exp s)      out' = exp(L - L') out + exp(s - L') v

Backward, keys and values go round again, together with their gradients, to
which every rank adds. The gradients make one hop more, to get home.

A token attends to those before it, so whoever has the last tokens has the
most work. Cut into 2p chunks, and give every rank an early and a late one:

    rank 0: chunks 0, 2p-1     rank 1: chunks 1, 2p-2     rank 2: ...

    H heads   t tokens of a rank   D width of a head

Source: Liu et al. 2023, section 3; zigzag: Llama Team 2024, section 3.3.2.
"""

from math import sqrt
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from exemplars.runtime import Group, World, meter, report, span, world


def zigzag(tokens: int, p: int) -> list[Tensor]:
    """The tokens that each rank holds: one chunk early, one as late."""
    #: The first chunk has the least past to look at and the last the most:
    #: together they are as much work as the second and the last but one.
    chunks = torch.arange(tokens).tensor_split(2 * p)
    return [torch.cat([chunks[r], chunks[-1 - r]]) for r in range(p)]


def owners(group: Group = None) -> list[int]:
    """Whose keys a rank has, hop by hop: its own, then its left neighbor's."""
    r, p = dist.get_rank(group), dist.get_world_size(group)
    return [(r - hop) % p for hop in range(p)]


def scores(q_HtD: Tensor, k_HtD: Tensor, past: Tensor) -> Tensor:
    """How well queries match keys; not at all where those are not past."""
    s = q_HtD @ k_HtD.mT / sqrt(q_HtD.shape[-1])
    return s.masked_fill(~past.to(s.device), float("-inf"))


def start_hop(
    outgoing: Tensor, incoming: Tensor, group: Group
) -> list[dist.Work]:
    """Begin to send right and to receive from the left."""
    r, p = dist.get_rank(group), dist.get_world_size(group)
    right, left = (r + 1) % p, (r - 1) % p
    #: In one batch: one by one, NCCL would have every rank wait in its send.
    pair = [
        dist.P2POp(dist.isend, outgoing, group=group, group_peer=right),
        dist.P2POp(dist.irecv, incoming, group=group, group_peer=left),
    ]
    return dist.batch_isend_irecv(pair)


def finish(hop: list[dist.Work]) -> None:
    for work in hop:
        work.wait()


class RingAttention(torch.autograd.Function):
    """Causal attention over the tokens of all ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        held: list[Tensor],
        group: Group = None,
    ) -> Tensor:
        mine, sequence = held[dist.get_rank(group)], owners(group)
        kv = torch.stack([k, v])
        out = torch.zeros_like(q)
        norm = torch.full_like(q[..., :1], -torch.inf)
        for owner in sequence:
            past = mine[:, None] >= held[owner]
            #: Shares differ in size: room for those of the next owner.
            room = kv.new_empty(2, len(q), len(held[owner - 1]), q.shape[2])
            last = owner == sequence[-1]
            hop = [] if last else start_hop(kv, room, group)
            #: While the next keys are on their way.
            with span("attend", label=owner, cost=int(past.sum())):
                s = scores(q, kv[0], past)
                new = torch.logaddexp(norm, s.logsumexp(-1, keepdim=True))
                #: What earlier blocks gave shrinks as the normalizer grows.
                out = (norm - new).exp() * out + (s - new).exp() @ kv[1]
            finish(hop)
            norm, kv = new, room
        ctx.save_for_backward(q, k, v, out, norm)
        ctx.held, ctx.group = held, group
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, norm = ctx.saved_tensors
        held, sequence = ctx.held, owners(ctx.group)
        mine = held[dist.get_rank(ctx.group)]
        kv, dkv = torch.stack([k, v]), q.new_zeros(2, *k.shape)
        dq = torch.zeros_like(q)
        for owner in sequence:
            past = mine[:, None] >= held[owner]
            with span("return", label=owner, cost=2 * int(past.sum())):
                #: The weights of forward again, from the whole row's norm.
                a = (scores(q, kv[0], past) - norm).exp()
                change = dout @ kv[1].mT - (dout * out).sum(-1, keepdim=True)
                ds = a * change / sqrt(q.shape[2])
                dq += ds @ kv[0]
                dkv += torch.stack([ds.mT @ q, a.mT @ dout])
            if len(sequence) == 1:
                break
            #: The last hop brings gradients home; their keys are known there.
            moving = dkv if owner == sequence[-1] else torch.cat([dkv, kv])
            there = len(held[owner - 1])
            room = q.new_empty(len(moving), len(q), there, q.shape[2])
            finish(start_hop(moving, room, ctx.group))
            dkv, kv = room[:2], room[2:]
        return dq, dkv[0], dkv[1], None, None


def reference(qkv: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
    """The whole sequence on one process: output, and gradient of q, k, v."""
    qkv = qkv.detach().requires_grad_()
    q, k, v = qkv
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    (dqkv,) = torch.autograd.grad(out, qkv, dout)
    return out, dqkv


def main(
    w: World,
    *,
    tokens_per_rank: int = 7,
    extra_tokens: int = 5,  # some ranks get one more than others
    heads: int = 2,
    head_width: int = 4,
) -> None:
    tokens = tokens_per_rank * w.size + extra_tokens
    held = zigzag(tokens, w.size)
    mine = held[w.rank].to(w.device)
    whole = w.randn(3, heads, tokens, head_width, seed=0)
    dout = w.randn(heads, tokens, head_width, seed=0)
    qkv = [t.requires_grad_() for t in whole[:, :, mine]]
    grads: list[Tensor] = []
    with w.memory(tokens=lambda: qkv, gradients=lambda: grads):
        with meter() as forward:
            out = RingAttention.apply(*qkv, held)
        with meter() as backward:
            grads += torch.autograd.grad(out, qkv, dout[:, mine])
    if not w.dry:
        truth, slopes = reference(whole, dout)
        # Up to all tokens in another order, and p times rescaled.
        w.check("output", out, lambda: truth[:, mine], slack=16)
        w.check("gradients", grads, lambda: [*slopes[:, :, mine]], slack=64)
    width = heads * head_width
    pairs = sum(int(e.cost) for e in forward.events if e.name == "attend")
    sent = {"forward": forward.bytes_sent, "backward": backward.bytes_sent}
    given = {"tokens": tokens, "width": width, "itemsize": 8}
    report(w, given=given, pairs=pairs, **sent)


if __name__ == "__main__":
    with world() as w:
        main(w)
