"""ZeRO-2: gradients, too, are kept in shards; each is whole for a moment.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.sharded.zero_2

Source: Rajbhandari et al. 2020, section 5.2.

Who updates a shard needs the gradient of that shard only. So a unit's (a
layer's) gradient is reduce-scattered as soon as backward has made it, and
only the shard is kept; the whole one is dropped before the next is made.

    backward   reduce-scatter the unit's gradient, add to the shard's
    step       Adam on the shard; all-gather the new weights

With one micro-batch that is the traffic of an all-reduce: the gradients once,
the weights once. But what was scattered cannot be added to at home: every one
of k micro-batches scatters, k + 1 passes where ZeRO-1 needs 2. Memory that
was saved is paid for in bytes, by those who accumulate.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Adam

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import equal_layers

UNITS, WIDTH, ROWS, STEPS, MICROS = 3, 17, 50, 2, 3
SIZE = WIDTH * WIDTH + WIDTH  # weights of a unit, 306
MOMENTS = "exp_avg", "exp_avg_sq"


def flat(layer: nn.Module, w: World) -> Tensor:
    """A layer's weights as a vector, padded so that all shards are equal."""
    whole = torch.cat([p.data.view(-1) for p in layer.parameters()])
    return nn.functional.pad(whole, (0, -len(whole) % w.size)).to(w.device)


class Unit:
    """A layer with whole weights, of which this rank updates one shard."""

    def __init__(self, layer: nn.Module, w: World) -> None:
        self.whole = flat(layer, w)
        #: A view: what Adam does to the shard is done to the weights.
        self.shard = nn.Parameter(self.whole.view(w.size, -1)[w.rank])
        self.shapes = {n: p.shape for n, p in layer.named_parameters()}
        self.layer = layer.to("meta")  # its form, not its weights

    def __call__(self, x: Tensor) -> Tensor:
        whole = Use.apply(self.shard, self)
        with span("forward", cost=1):
            return functional_call(self.layer, self.named(whole), x)

    def named(self, whole: Tensor) -> dict[str, Tensor]:
        """The layer's weights, as views of the vector, without padding."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        parts = zip(self.shapes.items(), whole[:SIZE].split(sizes))
        return {name: part.view(shape) for (name, shape), part in parts}

    def gather(self) -> None:
        """After the step: everybody's new shards."""
        with span("gather"):
            dist.all_gather_single(self.whole, self.shard.detach().clone())


class Use(torch.autograd.Function):
    """The whole weights forward; their gradient is scattered backward."""

    @staticmethod
    def forward(ctx: Any, shard: Tensor, unit: Unit) -> Tensor:
        return unit.whole.view(-1)

    @staticmethod
    def backward(ctx: Any, d_whole: Tensor) -> tuple[Tensor, None]:
        d_shard = d_whole.new_empty(len(d_whole) // dist.get_world_size())
        with span("scatter", cost=2):
            dist.reduce_scatter_single(d_shard, d_whole.contiguous())
        return d_shard, None  # autograd adds it to the shard's gradient


def train(
    w: World, units: list[Unit], adam: Adam, rows: Tensor
) -> Iterator[int]:
    """Each rank on its micro-batches; every one of them scatters."""
    parts = rows.tensor_split(w.size * MICROS)
    for step in range(STEPS):
        adam.zero_grad()
        for k in range(MICROS):
            y = parts[w.rank * MICROS + k]
            for unit in units:
                y = unit(y)
            (y.square().sum() / ROWS).backward()
        with span("update", label=step, cost=1):
            adam.step()
        for unit in units:
            unit.gather()
        yield step


def reference(w: World, rows: Tensor) -> list[Tensor]:
    """Adam on one process, on the whole batch."""
    model = equal_layers(UNITS, WIDTH).to(w.device)
    adam = Adam(model.parameters())
    for _ in range(STEPS):
        adam.zero_grad()
        (model(rows).square().sum() / ROWS).backward()
        adam.step()
    return [flat(layer, w) for layer in model]


def main(w: World) -> None:
    rows = w.randn(ROWS, WIDTH, of_rank=0)
    units = [Unit(layer, w) for layer in equal_layers(UNITS, WIDTH)]
    weights = [u.whole for u in units]
    adam = Adam([u.shard for u in units])
    memory = w.memory(
        parameters=lambda: weights,
        gradients=lambda: [u.shard.grad for u in units],
        optimizer=lambda: [s[m] for s in adam.state.values() for m in MOMENTS],
    )
    with memory, meter() as moved:
        for _ in train(w, units, adam, rows):
            memory.mark("step")
    # Another order of additions in the gradient, through Adam's division.
    w.check("parameters", weights, lambda: reference(w, rows), slack=256)
    w.check_same("same", weights)
    live = memory.live("step")
    state = live["parameters"] + live["gradients"] + live["optimizer"]
    given = {"n": SIZE, "u": UNITS, "b": 8, "t": STEPS, "k": MICROS}
    counts = {"calls": moved.count, "volume": moved.wire}
    report(w, given=given, state=state, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
