"""Column and row splits by hand against DTensor's parallel styles."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from atlas.bench.pair import Bench, Case, Pair, Side
from exemplars.parameter_distribution.intra_layer import (
    tensor_parallel_column_row as exemplar,
)
from exemplars.runtime import World
from exemplars.workload import Block

PLAN = {
    "qkv": ColwiseParallel(),
    "out": RowwiseParallel(),
    "up": ColwiseParallel(),
    "down": RowwiseParallel(),
}


def make(
    w: World, *, width: int, heads: int, layers: int, batch: int, tokens: int
) -> Pair:
    """Both run the same blocks forward and backward on the same tokens."""
    w.require(
        heads % w.size == 0,
        f"{w.size} ranks for {heads} heads: DTensor wants equal shares of heads",
    )
    ours = [exemplar.SplitBlock(b) for b in blocks(width, heads, layers)]
    theirs = [parallel(b, w) for b in blocks(width, heads, layers)]
    x = w.randn(batch, tokens, width, seed=0, dtype=torch.float32)
    return Pair(side(ours, x), side(theirs, x), slack=256, compared=1)


def blocks(width: int, heads: int, layers: int) -> list[Block]:
    """The same float32 blocks on every call and every rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return [Block(width, heads) for _ in range(layers)]


def parallel(block: Block, w: World) -> nn.Module:
    """The block in DTensor; each rank's slice of qkv must hold whole heads."""
    size = block.qkv.weight.shape[0]
    rows = torch.arange(size).view(3, w.size, -1).transpose(0, 1).flatten()
    with torch.no_grad():
        block.qkv.weight.copy_(block.qkv.weight[rows])
        block.qkv.bias.copy_(block.qkv.bias[rows])
    block.heads //= w.size
    mesh = init_device_mesh(w.device.type, (w.size,))
    return parallelize_module(block.to(w.device), mesh, PLAN)


def side(layers: Sequence[nn.Module], x: Tensor) -> Side:
    """A step, from fresh gradients; the output and what every rank holds whole."""
    model, x = nn.Sequential(*layers), x.clone().requires_grad_()
    outputs: list[Tensor] = []

    def prepare() -> None:
        model.zero_grad()
        x.grad = None
        outputs.clear()

    def step() -> None:
        outputs[:] = [model(x)]
        outputs[0].square().sum().backward()

    def values() -> list[Tensor]:
        norms = [p for n, p in model.named_parameters() if "norm" in n]
        return outputs + [t.grad for t in (x, *norms) if t.grad is not None]

    return Side(step, values, prepare)


BENCH = Bench(
    technique="tensor-parallel-column-row",
    production="torch.distributed.tensor.parallel",
    what="Forward and backward of 2 blocks of width 256, 8 heads, 8 x 64 tokens.",
    note=(
        "Same calls and bytes. DTensor passes every operator through Python to "
        "work out how its result is split; the exemplar's layers are plain tensors."
    ),
    make=make,
    cases=(
        Case(
            "width 256",
            8 * 64 * 256 * 4,
            {"width": 256, "heads": 8, "layers": 2, "batch": 8, "tokens": 64},
        ),
    ),
    headline="width 256",
    tiny={"width": 16, "heads": 4, "layers": 2, "batch": 2, "tokens": 3},
)
