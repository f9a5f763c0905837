"""Gathered keys and values: one all-gather, and then any attention kernel.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.within_sample.gathered_keys_values

A ring passes keys and values around in p-1 hops, and attention must be taken
apart into as many blocks. The other way is to gather all of them at once:

    forward     all-gather K and V     then each rank, for its own queries:
                                       ordinary attention, with any mask
    backward    reduce-scatter of their gradients: each rank has a term of
                everyone's, from its own queries

The mask is a rectangle now, own queries by all keys, and whatever it is, of
documents or of a window, the kernel gets it whole. Queries stay. Where several
heads share keys and values, these are much smaller than the queries.

The price is memory for all T keys and values on each rank, of one layer at a
time if they are gathered again in backward. The bytes sent are less than the
ring's, whose backward passes keys a second time:

    gathered    4 (p-1)/p T W        ring    (6 - 4/p) T W

    T tokens   t tokens of a rank   H heads of queries   G of keys   D width
    of one   W = G D

Source: Llama Team 2024, section 3.3.2, context parallelism.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn import functional as F

from exemplars.parameter_distribution.within_sample import ring_attention
from exemplars.runtime import World, meter, report, span, world

Gathering = Callable[[Tensor], Tensor]


class Gather(torch.autograd.Function):
    """All ranks' keys and values forward, my gradients summed backward."""

    @staticmethod
    def forward(ctx: Any, kv_t: Tensor) -> Tensor:
        #: Tokens are the first dimension, so ranks' parts lie one by one.
        p = dist.get_world_size()
        kv_T = kv_t.new_empty(p * len(kv_t), *kv_t.shape[1:])
        dist.all_gather_single(kv_T, kv_t.contiguous())
        return kv_T

    @staticmethod
    def backward(ctx: Any, dkv_T: Tensor) -> Tensor:
        dkv_T = dkv_T.contiguous()
        dkv_t = torch.empty_like(dkv_T.chunk(dist.get_world_size())[0])
        #: My keys were seen by the queries of all ranks. Each has a term.
        dist.reduce_scatter_single(dkv_t, dkv_T)
        return dkv_t


def attend(q_tHD: Tensor, kv_T: Tensor, seen_tT: Tensor) -> Tensor:
    """Ordinary attention: some queries, all keys, any mask."""
    q, (k, v) = q_tHD.transpose(0, 1), kv_T.permute(1, 2, 0, 3)
    with span("attend", cost=int(seen_tT.sum())):
        #: The whole row is here: no running softmax, nothing is rescaled.
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=seen_tT.to(q.device), enable_gqa=True
        )
        #: Heads that share keys share them here: each key has traveled once.
    return out.transpose(0, 1)


def by_torch(kv_t: Tensor) -> Tensor:
    """The same by torch: from shards to copies."""
    mesh = init_device_mesh(kv_t.device.type, (dist.get_world_size(),))
    shards = DTensor.from_local(kv_t, mesh, [Shard(0)])
    copies = shards.redistribute(placements=[Replicate()])
    #: Each rank's gradient of the copy is a term of a sum.
    return copies.to_local(grad_placements=[Partial()])


def reference(
    q: Tensor, kv: Tensor, dout: Tensor, seen: Tensor
) -> list[Tensor]:
    """One process, a query and a head at a time: output, dq, dkv."""
    q, kv = q.detach().requires_grad_(), kv.detach().requires_grad_()
    group, rows = q.shape[1] // kv.shape[2], []
    for query, keys in zip(q, seen):
        k, v = kv[keys.to(kv.device)].repeat_interleave(group, 2).unbind(1)
        weights = torch.einsum("hd,khd->hk", query, k) / q.shape[2] ** 0.5
        rows += [torch.einsum("hk,khd->hd", weights.softmax(1), v)]
    out = torch.stack(rows)
    return [out.detach(), *torch.autograd.grad(out, [q, kv], dout)]


def check(
    w: World, gather: Gathering, own: list[Tensor], truth: list[Tensor]
) -> dict[str, float]:
    """Attend and compare: what this rank held, sent and computed."""
    q, kv, dout, seen = own
    q, kv = q.clone().requires_grad_(), kv.clone().requires_grad_()
    keys: list[Tensor] = []
    grads: list[Tensor] = []
    held = {"keys": lambda: keys, "gradients": lambda: grads}
    memory = w.memory(tokens=lambda: [q, kv], **held)
    with memory, meter(shown=gather is not by_torch) as moved:
        keys.append(gather(kv))
        out = attend(q, keys[0], seen)
        grads += torch.autograd.grad(out, [q, kv], dout)
    # Another order of all tokens, then sums of p terms.
    w.check("output", out, lambda: truth[0], slack=16)
    w.check("gradients", grads, lambda: truth[1:], slack=64)
    pairs = sum(int(e.cost) for e in moved.events if e.name == "attend")
    return {
        "calls": moved.count,
        "gathered": moved.calls["all_gather"].payload,
        "returned": moved.calls["reduce_scatter"].payload,
        "volume": moved.wire,
        "keys": memory.peak["keys"],
        "pairs": pairs,
    }


def main(
    w: World,
    *,
    chunk_tokens: int = 3,
    heads: int = 4,
    kv_heads: int = 2,
    head_width: int = 4,
    reach: int = 5,
) -> None:
    w.require(heads % kv_heads == 0, f"{kv_heads} do not divide {heads} heads")
    tokens = 2 * w.size * chunk_tokens
    #: Early and late chunks, so that causal work is the same for all. The
    #: keys arrive in this order too, and the mask's columns follow it.
    held = ring_attention.zigzag(tokens, w.size)
    mine, order = held[w.rank], torch.cat(held)
    q, dout = w.randn(2, tokens, heads, head_width, seed=0)
    kv = w.randn(tokens, 2, kv_heads, head_width, seed=1)
    key = torch.arange(tokens)
    query, border = key[:, None], tokens // 3
    near, past = query - key < reach, key <= query
    together = (key < border) == (query < border)
    #: Rows are queries: a window, two documents, and the past alone.
    for seen in (past & near, past & together, past):
        truth = [] if w.dry else reference(q, kv, dout, seen)
        theirs = [t[mine] for t in truth]
        own = [q[mine], kv[mine], dout[mine], seen[mine][:, order]]
        measured = check(w, Gather.apply, own, theirs)
    #: Counted by the same meter: torch sends the same bytes.
    torchs = check(w, by_torch, own, theirs)
    given = {"tokens": tokens, "itemsize": 8}
    report(w, given=given, **measured, volume_torch=torchs["volume"])


if __name__ == "__main__":
    with world() as w:
        main(w)
