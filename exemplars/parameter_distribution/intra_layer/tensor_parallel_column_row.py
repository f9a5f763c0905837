"""Tensor parallelism: split by columns, then by rows, and sum once.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.intra_layer.tensor_parallel_column_row

Cut the first matrix of a pair by columns and the second by rows:

    y = act(x [A1 A2]) [B1]  =  act(x A1) B1 + act(x A2) B2
                       [B2]

Every rank computes its own term, and one all-reduce adds them up. The cut runs
through the middle of the pair, where nothing is exchanged. Attention is such a
pair too: queries, keys and values are cut by heads, the output by rows.

Backward is the mirror image: what is summed forward is copied backward, and
x, which every rank reads forward, gets the sum of all ranks' gradients. Leave
that all-reduce out and the loss stays right, while all below learns wrongly.

    B batch   T tokens   H width

Source: Shoeybi et al. 2019, section 3.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from exemplars.runtime import Group, World, meter, report, span, world
from exemplars.workload import Block, attention


class Enter(torch.autograd.Function):
    """Into the split part: a copy forward, a sum backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group = None) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor, None]:
        #: A copy: autograd may still need the tensor it handed us.
        dx = dx.clone(memory_format=torch.contiguous_format)
        #: x went into every rank's term, so its gradient is a sum over ranks.
        dist.all_reduce(dx, group=ctx.group)
        return dx, None


class Leave(torch.autograd.Function):
    """Out of the split part: a sum forward, a copy backward."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, group: Group = None) -> Tensor:
        y = y.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        #: No sum: dy is whole on every rank, and each term has slope 1.
        return dy, None


class SplitBlock(nn.Module):
    """This rank's part of a transformer layer: some heads, some neurons."""

    #: A head needs no other head: attention runs as on one process.
    attend: Callable[..., Tensor] = staticmethod(attention)

    def __init__(self, whole: Block, group: Group = None) -> None:
        super().__init__()
        r, p = dist.get_rank(group), dist.get_world_size(group)
        self.group = group
        if p > whole.heads:
            raise ValueError(f"{p} ranks for {whole.heads} heads")
        width, inner = whole.out.out_features, whole.up.out_features
        heads = torch.arange(width).view(whole.heads, -1).tensor_split(p)[r]
        neurons = torch.arange(inner).tensor_split(p)[r]
        self.heads, columns = len(heads), heads.flatten()
        #: Queries, keys and values lie one below the other in one matrix:
        #: each of the three has rows for these heads.
        qkv = torch.cat([columns, columns + width, columns + 2 * width])
        self.norm1, self.norm2 = whole.norm1, whole.norm2
        self.qkv = outputs(whole.qkv, qkv)
        self.out = inputs(whole.out, columns)
        self.up = outputs(whole.up, neurons)
        self.down = inputs(whole.down, neurons)
        self.out_bias, self.down_bias = whole.out.bias, whole.down.bias

    def forward(self, x_BTH: Tensor) -> Tensor:
        with span("attention", cost=2):
            copied = Enter.apply(self.norm1(x_BTH), self.group)
            q, k, v = self.qkv(copied).chunk(3, dim=-1)
            part = self.out(self.attend(q, k, v, self.heads))
        #: The bias is added after the sum: inside, it would count p times.
        x_BTH = x_BTH + Leave.apply(part, self.group) + self.out_bias
        with span("perceptron", cost=2):
            hidden = self.up(Enter.apply(self.norm2(x_BTH), self.group))
            part = self.down(F.gelu(hidden))
        return x_BTH + Leave.apply(part, self.group) + self.down_bias


def outputs(whole: nn.Linear, keep: Tensor) -> nn.Linear:
    """A layer that computes only these outputs: the column split."""
    #: torch stores the transpose, so the columns of the formula are rows here.
    part = nn.Linear(whole.in_features, len(keep))
    part.weight = nn.Parameter(whole.weight.data[keep])
    part.bias = nn.Parameter(whole.bias.data[keep])
    return part.requires_grad_(whole.weight.requires_grad)


def inputs(whole: nn.Linear, keep: Tensor) -> nn.Linear:
    """A layer that reads only these inputs, without bias: the row split."""
    part = nn.Linear(len(keep), whole.out_features, bias=False)
    part.weight = nn.Parameter(whole.weight.data[:, keep].contiguous())
    return part.requires_grad_(whole.weight.requires_grad)


def network(w: World, width: int, heads: int, layers: int) -> list[Block]:
    """The same layers on every call and every rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        blocks = [Block(width, heads).double() for _ in range(layers)]
    return [block.to(w.device) for block in blocks]


def gradients(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [t.grad for t in tensors if t.grad is not None]


def reference(w: World, x: Tensor, heads: int, layers: int) -> list[Tensor]:
    """One process: the output, the gradients of x and of this rank's part."""
    whole = network(w, x.shape[-1], heads, layers)
    x = x.detach().requires_grad_()
    y = nn.Sequential(*whole)(x)
    y.square().sum().backward()
    found = [y.detach(), *gradients([x])]
    for b in whole:
        #: Whole on every rank: biases after a sum, and the norms.
        found += gradients([b.out.bias, b.down.bias])
        found += gradients([*b.norm1.parameters(), *b.norm2.parameters()])
        for grad in gradients(b.qkv.parameters()):
            by_head = grad.unflatten(0, (3, b.heads, -1))
            found += [by_head.tensor_split(w.size, 1)[w.rank].flatten(0, 2)]
        out, down = gradients([b.out.weight, b.down.weight])
        by_head = out.unflatten(1, (b.heads, -1))
        found += [by_head.tensor_split(w.size, 1)[w.rank].flatten(1)]
        for grad in gradients(b.up.parameters()):
            found += [grad.tensor_split(w.size)[w.rank]]
        found += [down.tensor_split(w.size, 1)[w.rank]]
    return found


def main(
    w: World,
    *,
    batch: int = 2,
    tokens: int = 5,
    width: int = 48,
    heads: int = 24,
    layers: int = 2,
) -> None:
    w.require(w.size <= heads, f"{w.size} ranks for {heads} heads: too many")
    w.require(width % heads == 0, f"{heads} heads do not divide {width}")
    blocks = nn.Sequential(*map(SplitBlock, network(w, width, heads, layers)))
    x = w.randn(batch, tokens, width, seed=0).requires_grad_()
    with w.memory(parameters=blocks.parameters) as memory:
        with meter() as forward:
            y = blocks(x)
        with meter() as backward:
            y.square().sum().backward()
    truth = [] if w.dry else reference(w, x, heads, layers)
    grads = gradients([x, *blocks.parameters()])
    # Sums of p parts instead of one long sum, through all layers each way.
    w.check("output", y, lambda: truth[0], slack=16)
    w.check("gradients", grads, lambda: truth[1:], slack=64)
    calls = {"forward_calls": forward.count, "backward_calls": backward.count}
    payload = forward.payload + backward.payload
    held = memory.live()["parameters"]
    report(w, given={"itemsize": 8}, payload=payload, held=held, **calls)


if __name__ == "__main__":
    with world() as w:
        main(w)
