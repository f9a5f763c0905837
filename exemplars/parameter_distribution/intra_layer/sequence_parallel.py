"""Sequence parallelism: what tensor parallelism leaves whole, cut by token.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.intra_layer.sequence_parallel

Tensor parallelism sums the ranks' terms by an all-reduce, and then every rank
keeps the whole sum for the same norm, residual and bias. But an all-reduce is
a reduce-scatter and an all-gather, and all that stands between two blocks
treats tokens one by one. So do it between the two, on a p-th of the tokens:

    tensor      all-reduce          norm on T tokens        block
    sequence    reduce-scatter      norm on T/p tokens      all-gather, block

The bytes are the same, and the activations between the blocks fall to 1/p.
What enters a block is whole on every rank, though, and backward needs it. To
keep only one's own tokens of it, gather it once more in backward: 10 instead
of 8 passes of (p-1)/p of the tensor per layer, and all activations are 1/p.

Each rank's norms have seen some tokens only: the gradients of weights that
every rank holds whole are parts, and have to be summed.

    T tokens   t tokens of a rank   B batch   H width

Source: Korthikanti et al. 2022, section 4.2.2.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from exemplars.parameter_distribution.intra_layer import (
    tensor_parallel_column_row as tensor_parallel,
)
from exemplars.runtime import Group, World, meter, report, span, world
from exemplars.workload import Block

Way = Callable[..., Tensor]  # of tokens into a block


def gathered(x_t: Tensor, group: Group = None) -> Tensor:
    """All ranks' tokens, from mine."""
    #: Tokens are the first dimension, so ranks' parts lie one by one.
    x_T = x_t.new_empty(dist.get_world_size(group) * len(x_t), *x_t.shape[1:])
    dist.all_gather_single(x_T, x_t.contiguous(), group=group)
    return x_T


def scattered(x_T: Tensor, group: Group = None) -> Tensor:
    """My tokens, summed over the ranks."""
    p = dist.get_world_size(group)
    x_t = x_T.new_empty(len(x_T) // p, *x_T.shape[1:])
    dist.reduce_scatter_single(x_t, x_T.contiguous(), group=group)
    return x_t


class Enter(torch.autograd.Function):
    """Into a block: gather tokens forward, sum and scatter backward."""

    @staticmethod
    def forward(ctx: Any, x_t: Tensor, group: Group = None) -> Tensor:
        ctx.group = group
        return gathered(x_t, group)

    @staticmethod
    def backward(ctx: Any, dx_T: Tensor) -> tuple[Tensor, None]:
        return scattered(dx_T, ctx.group), None


class Leave(torch.autograd.Function):
    """Out of a block, the mirror image: sum and scatter, then gather."""

    @staticmethod
    def forward(ctx: Any, y_T: Tensor, group: Group = None) -> Tensor:
        ctx.group = group
        return scattered(y_T, group)

    @staticmethod
    def backward(ctx: Any, dy_t: Tensor) -> tuple[Tensor, None]:
        #: Gathered, not summed: each rank has the whole gradient of its
        #: tokens, and all terms of the sum have slope 1.
        return gathered(dy_t, ctx.group), None


class EnterLinear(torch.autograd.Function):
    """Gather and multiply, and keep only what was gathered from here."""

    @staticmethod
    def forward(ctx: Any, x_t: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        #: A p-th of what F.linear would keep.
        ctx.save_for_backward(x_t, weight)
        return F.linear(gathered(x_t), weight, bias)

    @staticmethod
    def backward(ctx: Any, dy_T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x_t, weight = ctx.saved_tensors
        #: The price: a third pass, which production hides behind dy @ W.
        x_T = gathered(x_t)
        dx_t = scattered(dy_T @ weight)
        dw = dy_T.flatten(0, 1).T @ x_T.flatten(0, 1)
        return dx_t, dw, dy_T.sum((0, 1))


def keep_whole(linear: nn.Linear, x_t: Tensor, group: Group = None) -> Tensor:
    """Of what enters a block, backward keeps all tokens."""
    return linear(Enter.apply(x_t, group))


def keep_own(linear: nn.Linear, x_t: Tensor) -> Tensor:
    """Backward keeps this rank's tokens, and gathers once more."""
    return EnterLinear.apply(x_t, linear.weight, linear.bias)


class SequenceBlock(tensor_parallel.SplitBlock):
    """A rank's heads and neurons of all tokens, and the rest of its own."""

    def __init__(self, whole: Block, enter: Way, group: Group = None) -> None:
        super().__init__(whole, group)
        self.enter = enter

    def forward(self, x_tBH: Tensor) -> Tensor:
        with span("attention", cost=2):
            qkv_TBH = self.enter(self.qkv, self.norm1(x_tBH))
            q, k, v = qkv_TBH.transpose(0, 1).chunk(3, dim=-1)
            part = self.out(self.attend(q, k, v, self.heads)).transpose(0, 1)
        #: Residual, bias and norm: each token on one rank only.
        x_tBH = x_tBH + Leave.apply(part, self.group) + self.out_bias
        with span("perceptron", cost=2):
            hidden = F.gelu(self.enter(self.up, self.norm2(x_tBH)))
            part = self.down(hidden)
        return x_tBH + Leave.apply(part, self.group) + self.down_bias


def sum_parts(blocks: nn.Module) -> None:
    """Complete the gradients of what every rank holds whole."""
    for name, p in blocks.named_parameters():
        #: Norms, and the biases that are added to a rank's own tokens. Left
        #: out, their copies drift apart while the loss looks healthy.
        if "norm" in name or name.endswith("_bias"):
            dist.all_reduce(p.grad)


def mine(x_BTH: Tensor) -> Tensor:
    """This rank's tokens, tokens first."""
    tokens = x_BTH.transpose(0, 1).chunk(dist.get_world_size())
    return tokens[dist.get_rank()].clone()


Costs = dict[str, float]


def run(
    w: World, blocks: nn.Sequential, x: Tensor, name: str
) -> tuple[list[Tensor], Costs]:
    """Forward and backward: the output and gradients; what it took."""
    x.requires_grad_()
    memory = w.memory(parameters=blocks.parameters, inputs=lambda: [x])
    with memory, meter() as moved:
        y = blocks(x)
        y.square().sum().backward()
    results = tensor_parallel.gradients([x, *blocks.parameters()])
    kept = {f"activations{name}": memory.peak["activations"]}
    return [y, *results], {f"volume{name}": moved.wire, **kept}


def reference(w: World, x: Tensor, heads: int, layers: int) -> list[Tensor]:
    """One process: the output, the gradients of x and of this rank's part."""
    return tensor_parallel.reference(w, x, heads, layers)


def main(
    w: World,
    *,
    batch: int = 2,
    tokens: int = 24,
    width: int = 48,
    heads: int = 24,
    layers: int = 2,
) -> None:
    w.require(w.size <= heads, f"{w.size} ranks for {heads} heads: too many")
    w.require(width % heads == 0, f"{heads} heads do not divide {width}")
    even = tokens % w.size == 0
    w.require(even, f"{w.size} ranks do not divide {tokens} tokens")
    network = partial(tensor_parallel.network, w, width, heads, layers)
    x = w.randn(batch, tokens, width, seed=0)
    split = nn.Sequential(*map(tensor_parallel.SplitBlock, network()))
    _, costs = run(w, split, x.clone(), "_tensor")
    truth = [] if w.dry else reference(w, x, heads, layers)
    theirs = [*map(mine, truth[:2]), *truth[2:]]
    for name, enter in {"": keep_whole, "_own": keep_own}.items():
        blocks = nn.Sequential(*(SequenceBlock(b, enter) for b in network()))
        ours, took = run(w, blocks, mine(x), name)
        costs |= took
        with meter() as more:
            sum_parts(blocks)
        # Sums of p parts, through all layers each way.
        w.check("output", ours[0], lambda: theirs[0], slack=16)
        w.check("gradients", ours[1:], lambda: theirs[1:], slack=64)
    report(w, given={"itemsize": 8}, **costs, summed=more.payload)


if __name__ == "__main__":
    with world() as w:
        main(w)
