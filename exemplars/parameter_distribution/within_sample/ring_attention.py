"""Ring attention: tokens stay where they are, keys and values go round.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.within_sample.ring_attention

Source: Liu et al. 2023, section 3; zigzag: Llama Team 2024, section 3.3.2.

Each rank holds some tokens of one long sequence. While it attends to the keys
and values it has, it passes them on, and after p-1 hops it has met them all.
A softmax need not see all scores at once: keep the output so far and the
logarithm of its normaliser, L, and mend both with every block that comes:

    L' = log(exp L + sum exp s)      out' = exp(L - L') out + exp(s - L') v

Backward, keys and values go round again, and their gradients with them, which
every rank adds to. These need one hop more than their keys, to get home.

A token attends to those before it, so whoever has the last tokens has the
most work. Cut into 2p chunks, and give every rank an early and a late one:

    rank 0: chunks 0, 2p-1     rank 1: chunks 1, 2p-2     rank 2: ...

    H heads   T tokens   t tokens of a rank   D width of a head
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world

HEADS, WIDTH = 2, 4  # H, D


def zigzag(tokens: int, p: int) -> list[Tensor]:
    """The tokens that each rank holds: one chunk early, one as late."""
    chunks = torch.arange(tokens).tensor_split(2 * p)
    return [torch.cat([chunks[r], chunks[-1 - r]]) for r in range(p)]


def scores(q_HtD: Tensor, k_HtD: Tensor, past: Tensor) -> Tensor:
    """How well queries match keys; not at all where those are not past."""
    s = q_HtD @ k_HtD.mT / WIDTH**0.5
    return s.masked_fill(~past.to(s.device), float("-inf"))


def start_hop(outgoing: Tensor, room: Tensor) -> list[dist.Work]:
    """Begin to send right and to receive from the left."""
    r, p = dist.get_rank(), dist.get_world_size()
    pair = [
        dist.P2POp(dist.isend, outgoing, (r + 1) % p),
        dist.P2POp(dist.irecv, room, (r - 1) % p),
    ]
    return dist.batch_isend_irecv(pair)


def finish(hop: list[dist.Work]) -> None:
    for work in hop:
        work.wait()


class RingAttention(torch.autograd.Function):
    """Causal attention over the tokens of all ranks."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, held: list[Tensor]
    ) -> Tensor:
        r, p = dist.get_rank(), dist.get_world_size()
        kv = torch.stack([k, v])
        out, norm = 0 * q, q.new_full((*q.shape[:2], 1), -torch.inf)
        for owner in (i % p for i in range(r, r - p, -1)):
            past = held[r][:, None] >= held[owner]
            room = kv.new_empty(2, HEADS, len(held[owner - 1]), WIDTH)
            last = owner == (r + 1) % p
            hop = [] if last else start_hop(kv, room)
            #: While the next keys are on their way.
            with span("attend", label=owner, cost=int(past.sum())):
                s = scores(q, kv[0], past)
                new = torch.logaddexp(norm, s.logsumexp(-1, keepdim=True))
                out = (norm - new).exp() * out + (s - new).exp() @ kv[1]
            finish(hop)
            norm, kv = new, room
        ctx.save_for_backward(q, k, v, out, norm)
        ctx.held = held
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        r, p = dist.get_rank(), dist.get_world_size()
        q, k, v, out, norm = ctx.saved_tensors
        kv, dkv, dq = torch.stack([k, v]), q.new_zeros(2, *k.shape), 0 * q
        for owner in (i % p for i in range(r, r - p, -1)):
            past = ctx.held[r][:, None] >= ctx.held[owner]
            with span("return", label=owner, cost=2 * int(past.sum())):
                a = (scores(q, kv[0], past) - norm).exp()
                change = dout @ kv[1].mT - (dout * out).sum(-1, keepdim=True)
                ds = a * change / WIDTH**0.5
                dq += ds @ kv[0]
                dkv += torch.stack([ds.mT @ q, a.mT @ dout])
            #: The last hop brings gradients home; their keys are known there.
            last = owner == (r + 1) % p
            moving = dkv if last else torch.cat([dkv, kv])
            there = len(ctx.held[owner - 1])
            room = q.new_empty(len(moving), HEADS, there, WIDTH)
            if p > 1:
                finish(start_hop(moving, room))
                dkv, kv = room[:2], room[2:]
        return dq, dkv[0], dkv[1], None


def reference(w: World, n: int) -> tuple[Tensor, list[Tensor]]:
    """The whole sequence on one process: output, and gradients of q, k, v."""
    qkv = w.randn(3, HEADS, n, WIDTH, of_rank=0).requires_grad_()
    past = torch.ones(n, n, dtype=torch.bool).tril()
    out = scores(qkv[0], qkv[1], past).softmax(-1) @ qkv[2]
    out.backward(w.randn(HEADS, n, WIDTH, of_rank=0))
    mine = zigzag(n, w.size)[w.rank].to(w.device)
    assert qkv.grad is not None
    return out[:, mine], list(qkv.grad[:, :, mine])


def main(w: World) -> None:
    n = 7 * w.size + 5  # tokens: some ranks get one more than others
    held = zigzag(n, w.size)
    mine = held[w.rank].to(w.device)
    whole = w.randn(3, HEADS, n, WIDTH, of_rank=0)
    qkv = [t.requires_grad_() for t in whole[:, :, mine]]
    dout = w.randn(HEADS, n, WIDTH, of_rank=0)[:, mine]
    grads = list[Tensor]()
    with w.memory(tokens=lambda: qkv, gradients=lambda: grads):
        with meter() as forward:
            out = RingAttention.apply(*qkv, held)
        with meter() as backward:
            grads += torch.autograd.grad(out, qkv, dout)
    # Up to n terms in another order, and p times rescaled.
    w.check("output", out, lambda: reference(w, n)[0], slack=16)
    w.check("gradients", grads, lambda: reference(w, n)[1], slack=64)
    given = {"n": n, "h": HEADS * WIDTH, "b": 8}
    pairs = sum(int(e.cost) for e in forward.events if e.name == "attend")
    sent = dict(forward=forward.bytes_sent, backward=backward.bytes_sent)
    report(w, given=given, pairs=pairs, **sent)


if __name__ == "__main__":
    with world() as w:
        main(w)
