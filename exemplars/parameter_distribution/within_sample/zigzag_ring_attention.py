"""Zigzag ring attention: which tokens a rank holds decides who waits for whom.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.within_sample.zigzag_ring_attention

In ring attention every rank keeps its tokens, and keys and values go round.
A token attends only to those before it, in its own document. So tokens are
not equally much work, and in each round all wait for the slowest rank. Who
holds which tokens is free to choose. For 8 tokens on 2 ranks:

    token         0  1  2  3  4  5  6  7      keys seen
    contiguous    0  0  0  0  1  1  1  1      10 : 26
    zigzag        0  0  1  1  1  1  0  0      18 : 18
    striped       0  1  0  1  0  1  0  1      16 : 20

Contiguous: rank r sees 2r + 1 times as much as rank 0, nearly. Zigzag gives
each rank an early chunk and one as late: all the same, if 2p divides T.
Striped deals tokens like cards: the difference is less than T of T(T+1)/2.

Where several documents share a sequence, each starts again at nothing. Chunks
of the whole sequence balance no more. Zigzag must cut every document by
itself, while stripes need not know where documents end.

    T tokens of the sequence   t tokens of a rank   H heads   D width of one

Source: Brandon et al. 2023, section 3; zigzag: Llama Team 2024, section 3.3.2.
"""

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from exemplars.parameter_distribution.within_sample import (
    ring_attention as ring,
)
from exemplars.runtime import World, meter, report, span, world

#: The tokens of each document, in order, become the tokens of each rank.
Layout = Callable[[list[Tensor], int], list[Tensor]]


def contiguous(documents: list[Tensor], p: int) -> list[Tensor]:
    """One run of tokens for each rank."""
    return list(torch.cat(documents).tensor_split(p))


def zigzag(documents: list[Tensor], p: int) -> list[Tensor]:
    """Of every document, an early chunk for each rank, and one as late."""
    cut = [document.tensor_split(2 * p) for document in documents]
    #: Chunk r sees r chunks before it, and chunk 2p-1-r sees the others.
    pairs = [[t for c in cut for t in (c[r], c[-1 - r])] for r in range(p)]
    return [torch.cat(chunks) for chunks in pairs]


def striped(documents: list[Tensor], p: int) -> list[Tensor]:
    """Every p-th token for each rank."""
    #: Whatever the documents are: neighbors see nearly the same number.
    return [torch.cat(documents)[r::p] for r in range(p)]


LAYOUTS: tuple[Layout, ...] = (contiguous, zigzag, striped)


def sees(mine: Tensor, theirs: Tensor, starts: Tensor) -> Tensor:
    """Which keys each of my queries sees, (t, t): no future, one document."""
    #: Tokens go by their place in the sequence. In memory they lie otherwise.
    return (theirs <= mine[:, None]) & (theirs >= starts[mine, None])


class RingAttention(torch.autograd.Function):
    """Attention over all ranks' tokens, whoever holds which."""

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, held: list[Tensor], starts: Tensor
    ) -> Tensor:
        turns, mine = ring.owners(), held[dist.get_rank()]
        q, kv = qkv[0], qkv[1:].contiguous()
        out, norm = torch.zeros_like(q), q.new_tensor(-torch.inf)
        for owner in turns:
            seen = sees(mine, held[owner], starts)
            room = kv.new_empty(2, len(q), len(held[owner - 1]), q.shape[2])
            hop = [] if owner == turns[-1] else ring.start_hop(kv, room, None)
            #: The rank that sees most of this block keeps all others waiting.
            with span("attend", label=owner, cost=int(seen.sum())):
                s = ring.scores(q, kv[0], seen)
                #: One's own keys come first, and each token sees itself: from
                #: there on the normalizer is finite.
                new = torch.logaddexp(norm, s.logsumexp(-1, keepdim=True))
                out = (norm - new).exp() * out + (s - new).exp() @ kv[1]
            ring.finish(hop)
            norm, kv = new, room
        ctx.save_for_backward(qkv, out, norm)
        ctx.held, ctx.starts = held, starts
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor, None, None]:
        qkv, out, norm = ctx.saved_tensors
        held, sequence = ctx.held, ring.owners()
        mine, (q, *_) = held[dist.get_rank()], qkv
        kv = qkv[1:].contiguous()
        dq, dkv = torch.zeros_like(q), torch.zeros_like(kv)
        for owner in sequence:
            seen = sees(mine, held[owner], ctx.starts)
            with span("return", label=owner, cost=2 * int(seen.sum())):
                a = (ring.scores(q, kv[0], seen) - norm).exp()
                change = dout @ kv[1].mT - (dout * out).sum(-1, keepdim=True)
                ds = a * change / sqrt(q.shape[2])
                dq += ds @ kv[0]
                dkv += torch.stack([ds.mT @ q, a.mT @ dout])
            if len(sequence) == 1:
                break
            #: Gradients make one hop more than their keys, to get home.
            moving = dkv if owner == sequence[-1] else torch.cat([dkv, kv])
            there = len(held[owner - 1])
            room = q.new_empty(len(moving), len(q), there, q.shape[2])
            ring.finish(ring.start_hop(moving, room, None))
            dkv, kv = room[:2], room[2:]
        return torch.cat([dq[None], dkv]), None, None


def reference(
    qkv: Tensor, dout: Tensor, documents: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """One process, a document at a time: output, and gradient of q, k, v."""
    qkv, outputs = qkv.detach().requires_grad_(), []
    for tokens in documents:
        q, k, v = qkv[:, :, tokens.to(qkv.device)]
        outputs += [F.scaled_dot_product_attention(q, k, v, is_causal=True)]
    out = torch.cat(outputs, 1)
    (dqkv,) = torch.autograd.grad(out, qkv, dout)
    return out, dqkv


def check(
    w: World, layout: Layout, documents: list[Tensor], whole: Tensor
) -> tuple[int, int]:
    """Attend and compare: the pairs that this rank computed, bytes it sent."""
    qkv, dout = whole[:3], whole[3]
    held = layout(documents, w.size)
    mine = held[w.rank].to(w.device)
    starts = torch.cat([d[:1].expand(len(d)) for d in documents])
    own = qkv[:, :, mine].requires_grad_()
    grads: list[Tensor] = []
    memory = w.memory(tokens=lambda: [own], gradients=lambda: grads)
    #: Striped looks like zigzag: the replay does with one of them.
    shown = len(documents) == 1 and layout is not striped
    with memory, meter(shown=shown) as moved:
        out = RingAttention.apply(own, held, starts)
        grads += torch.autograd.grad(out, own, dout[:, mine])
    if not w.dry:
        truth, slopes = reference(qkv, dout, documents)
        # Up to all tokens in another order, and p times rescaled.
        w.check("output", out, lambda: truth[:, mine], slack=16)
        w.check("gradients", grads, lambda: [slopes[:, :, mine]], slack=64)
    costs = [e.cost for e in moved.events if e.name == "attend"]
    return int(sum(costs)), moved.bytes_sent


def main(
    w: World,
    *,
    tokens_per_rank: int = 7,
    extra_tokens: int = 5,  # some ranks get one more than others
    heads: int = 2,
    head_width: int = 4,
) -> None:
    tokens = torch.arange(tokens_per_rank * w.size + extra_tokens)
    border = max(1, len(tokens) // 3)
    #: Queries, keys and values, and the gradient of the output.
    whole = w.randn(4, heads, len(tokens), head_width, seed=0)
    measured: dict[str, int] = {}
    for layout in LAYOUTS:
        name = layout.__name__
        pairs, sent = check(w, layout, [tokens], whole)
        measured |= {f"pairs_{name}": pairs, f"bytes_{name}": sent}
        pairs, _ = check(w, layout, [tokens[:border], tokens[border:]], whole)
        measured[f"documents_{name}"] = pairs
    sizes = {"tokens": len(tokens), "width": heads * head_width}
    report(w, given={**sizes, "border": border, "itemsize": 8}, **measured)


if __name__ == "__main__":
    with world() as w:
        main(w)
