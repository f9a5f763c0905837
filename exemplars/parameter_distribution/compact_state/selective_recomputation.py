"""Selective recomputation: drop what is large and cheap, keep the rest.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.compact_state.selective_recomputation

A transformer layer saves two kinds of activations. Most grow with the number
of tokens s: inputs of its matrices, of norms, of the gelu. Those inside the
attention grow with its square, for each of a heads:

    kept      16 s h + 4 s        of each sample, in numbers; h is the width
    dropped   2 a s^2             softmax, and after dropout
              and a s^2 bytes     the mask of dropout

Yet between queries, keys, values and the output there are two products only,
4 s^2 h operations of about 24 s h^2 + 4 s^2 h in a layer's forward pass. So
the layer keeps q, k and v, which it needs anyway, and backward computes this
part again. At 16 bits that is the 5 a s^2 of the paper's s h (34 + 5 a s/h)
bytes, where 2 of the 34 are masks of two more dropouts.

The mask is drawn again from the same seed: another one would be the gradient
of another network. With it, all bits are those of a plain backward.

    h width   a heads   s tokens

Source: Korthikanti et al. 2022, sections 4.1 and 5.
"""

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Block, seeded

KEEP = 0.9  # of the attention weights
Core = Callable[[Tensor, Tensor, Tensor, int, int], Tensor]


def core(q: Tensor, k: Tensor, v: Tensor, heads: int, seed: int) -> Tensor:
    """Causal attention with dropout: all that grows with tokens squared."""
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    future = torch.full_like(scores[0, 0], -inf).triu(1)
    #: Saved for backward, of this size each: the softmax, one byte per mask
    #: entry, and what is left of the softmax.
    weights = (scores + future).softmax(-1)
    source = torch.Generator().manual_seed(seed)
    kept = torch.rand(weights.shape, generator=source) < KEEP
    weights = weights * kept.to(q.device) / KEEP
    return (weights @ v).transpose(1, 2).flatten(2)


class Recomputed(torch.autograd.Function):
    """The same, but it keeps its inputs and nothing else."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, heads: int, seed: int
    ) -> Tensor:
        #: Of the size of tokens. The layer's matrix has just made them.
        ctx.save_for_backward(q, k, v)
        ctx.heads, ctx.seed = heads, seed
        #: autograd does not look inside a Function: nothing else is saved.
        return core(q, k, v, heads, seed)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        saved: Any = ctx.saved_tensors
        q, k, v = (t.detach().requires_grad_() for t in saved)
        with span("recompute"), torch.enable_grad():
            #: With the same seed: the mask is not kept, and is the same.
            y = core(q, k, v, ctx.heads, ctx.seed)
        return *torch.autograd.grad(y, (q, k, v), dy), None, None


class Layer(Block):
    """A transformer layer; `attend` is its core, in one of the two ways."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.attend: Core = core
        self.seed = 0

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, width) to the same."""
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        x = x + self.out(self.attend(q, k, v, self.heads, self.seed))
        #: As it was. Here is most of the work, and it grows with s alone.
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def network(w: World, layers: int, width: int, heads: int) -> nn.Sequential:
    """A stack of layers; no embedding, and no head."""

    def stack() -> nn.Sequential:
        return nn.Sequential(*(Layer(width, heads) for _ in range(layers)))

    return seeded(stack)().to(w.device)


class Pass(NamedTuple):
    """What a pass forward and backward took, and its gradients."""

    gradients: list[Tensor]
    kept: int  # bytes of activations when forward ends
    flops: int


def run(w: World, model: Any, x: Tensor, attend: Core) -> Pass:
    """Forward and backward of one rank's rows."""
    for i, layer in enumerate(model):
        layer.attend, layer.seed = attend, w.rank * len(model) + i
    memory = w.memory(
        parameters=model.parameters,
        gradients=lambda: [p.grad for p in model.parameters()],
    )
    with memory, meter(shown=attend is not core) as moved:
        with span("forward"):
            loss = model(x).sum()
        #: The moment of the most memory: all that backward needs is alive.
        memory.mark("forward")
        with span("backward"):
            loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    kept = memory.live("forward")["activations"]
    return Pass(gradients, kept, moved.flops)


def reference(
    w: World, rows: list[Tensor], layers: int, width: int, heads: int
) -> list[Tensor]:
    """All ranks' rows on one process; attention in other words."""
    blocks = (Block for _ in range(layers))
    make = seeded(lambda: nn.Sequential(*(b(width, heads) for b in blocks)))
    stack: Any = make().to(w.device)
    total = rows[0].new_zeros(())
    for r, x in enumerate(rows):
        past = torch.ones(2 * [x.shape[1]], device=x.device).tril().bool()
        for i, layer in enumerate(stack):
            parts = layer.qkv(layer.norm1(x)).unflatten(-1, (3, heads, -1))
            q, k, v = parts.unbind(-3)
            scores = torch.einsum("bsad,btad->bast", q / k.shape[-1] ** 0.5, k)
            share = scores.masked_fill(~past, -inf).softmax(-1)
            source = torch.Generator().manual_seed(r * len(stack) + i)
            kept = torch.rand(share.shape, generator=source) < KEEP
            share = share * kept.to(x.device) / KEEP
            y = torch.einsum("bast,btad->bsad", share, v).flatten(2)
            x = x + layer.out(y)
            x = x + layer.down(F.gelu(layer.up(layer.norm2(x))))
        total = total + x.sum()
    return [*torch.autograd.grad(total, [*stack.parameters()])]


def main(
    w: World,
    *,
    layers: int = 2,
    width: int = 16,
    heads: int = 2,
    tokens: int = 12,
    local_batch: int = 3,
) -> None:
    fits = width % heads == 0
    w.require(fits, f"width {width} is no multiple of {heads} heads")
    shape, sizes = (local_batch, tokens, width), (layers, width, heads)
    rows = [w.randn(*shape, seed=r) for r in range(w.size)]
    plain = run(w, network(w, *sizes), rows[w.rank], core)
    less = run(w, network(w, *sizes), rows[w.rank], Recomputed.apply)
    w.check("gradients", less.gradients, lambda: plain.gradients, slack=0)
    for g in less.gradients:
        dist.all_reduce(g)
    # Other products and another order of additions, through all layers.
    truth = partial(reference, w, rows, *sizes)
    w.check("batch", less.gradients, truth, slack=256)
    extra = less.flops - plain.flops
    saved = plain.kept - less.kept
    report(w, given={"itemsize": 8}, kept=less.kept, saved=saved, flops=extra)


if __name__ == "__main__":
    with world() as w:
        main(w)
