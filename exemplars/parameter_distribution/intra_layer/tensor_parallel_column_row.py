"""Tensor parallelism: split by columns, then by rows, and sum once.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.intra_layer.tensor_parallel_column_row

Source: Shoeybi et al. 2019, section 3.

Cut the first matrix of a pair by columns and the second by rows:

    y = act(x [A1 A2]) [B1]  =  act(x A1) B1 + act(x A2) B2
                       [B2]

Every rank computes its own term, and one all-reduce adds them. The cut runs
through the middle of the pair, where nothing is exchanged. Attention is such
a pair too: queries, keys and values are cut by heads, the output by rows.

Backward is the mirror image: what is summed forward is copied backward, and
x, which every rank reads forward, gets the sum of all ranks' gradients. Leave
that all-reduce out and the loss stays right, while all below learns wrongly.

    B batch   T tokens   H width
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Block, attention, seeded

BATCH, TOKENS, WIDTH, HEADS, LAYERS = 2, 5, 48, 24, 2
WHOLE = tuple(f"{i}.norm" for i in range(LAYERS))


class Enter(torch.autograd.Function):
    """Into the split part: a copy forward, a sum backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> Tensor:
        dx = dx.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(dx)
        return dx


class Leave(torch.autograd.Function):
    """Out of the split part: a sum forward, a copy backward."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        y = y.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy


class SplitBlock(nn.Module):
    """This rank's part of a transformer layer: some heads, some neurons."""

    def __init__(self, whole: nn.Module, w: World) -> None:
        super().__init__()
        assert isinstance(whole, Block)
        heads = torch.arange(WIDTH).view(HEADS, -1).tensor_split(w.size)
        hidden = torch.arange(4 * WIDTH).tensor_split(w.size)[w.rank]
        self.heads, columns = len(heads[w.rank]), heads[w.rank].flatten()
        qkv = torch.cat([columns + i * WIDTH for i in range(3)])
        self.norm1, self.norm2 = whole.norm1, whole.norm2
        self.qkv, self.up = by_rows(whole.qkv, qkv), by_rows(whole.up, hidden)
        self.out = by_columns(whole.out, columns)
        self.down = by_columns(whole.down, hidden)
        self.out_bias, self.down_bias = whole.out.bias, whole.down.bias

    def forward(self, x_BTH: Tensor) -> Tensor:
        with span("attention", cost=2):
            q, k, v = self.qkv(Enter.apply(self.norm1(x_BTH))).chunk(3, dim=-1)
            part = self.out(attention(q, k, v, self.heads))
        #: The bias is added after the sum: inside, it would count p times.
        x_BTH = x_BTH + Leave.apply(part) + self.out_bias
        with span("perceptron", cost=2):
            h = self.up(Enter.apply(self.norm2(x_BTH)))
            part = self.down(F.gelu(h))
        return x_BTH + Leave.apply(part) + self.down_bias


def by_rows(whole: nn.Linear, keep: Tensor) -> nn.Linear:
    """The outputs `keep`: a column split of the matrix that multiplies x."""
    part = nn.Linear(whole.in_features, len(keep)).to(whole.weight)
    part.weight.data = whole.weight.data[keep].contiguous()
    part.bias.data = whole.bias.data[keep]
    return part


def by_columns(whole: nn.Linear, keep: Tensor) -> nn.Linear:
    """The inputs `keep`: a row split, without the bias."""
    part = nn.Linear(len(keep), whole.out_features, bias=False)
    part = part.to(whole.weight)
    part.weight.data = whole.weight.data[:, keep].contiguous()
    return part


@seeded
def network() -> nn.Sequential:
    return nn.Sequential(*(Block(WIDTH, HEADS) for _ in range(LAYERS)))


def gradients(x: Tensor, blocks: nn.Module) -> list[Tensor]:
    """In the input, and in the norms, which every rank holds whole."""
    whole = [p for n, p in blocks.named_parameters() if n.startswith(WHOLE)]
    return [t.grad for t in (x, *whole) if t.grad is not None]


def reference(w: World, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The whole network on one process."""
    x, blocks = x.detach().requires_grad_(), network().to(w.device)
    y = blocks(x)
    y.square().sum().backward()
    return y, gradients(x, blocks)


def main(w: World) -> None:
    most = f"{w.size} ranks for {HEADS} heads: use at most {HEADS}"
    w.require(w.size <= HEADS, most)
    blocks = nn.Sequential(*(SplitBlock(b, w) for b in network().to(w.device)))
    x = w.randn(BATCH, TOKENS, WIDTH, of_rank=0).requires_grad_()
    with w.memory(parameters=blocks.parameters):
        with meter() as forward:
            y = blocks(x)
        with meter() as backward:
            y.square().sum().backward()
    # Sums of p parts instead of one long sum, through LAYERS layers each way.
    w.check("output", y, lambda: reference(w, x)[0], slack=16)
    grads = gradients(x, blocks)
    w.check("gradients", grads, lambda: reference(w, x)[1], slack=64)
    sizes = dict(l=LAYERS, tokens=BATCH * TOKENS, h=WIDTH, b=8, heads=HEADS)
    counts = dict(forward_calls=forward.count, backward_calls=backward.count)
    payload = forward.payload + backward.payload
    report(w, given=sizes, payload=payload, ranks=w.size, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
