"""ZeRO-3: each rank owns 1/p of everything; weights are whole only in use.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.sharded.zero_3

Source: Rajbhandari et al. 2020, sections 5 and 7.

A unit (a layer) is a flat vector, padded until p divides it. A rank keeps
one shard of its weights, of its gradient and of Adam's two moments.

    forward    all-gather the unit's weights, use them, drop them
    backward   all-gather them again, use them, drop them;
               reduce-scatter the gradient: each rank gets its shard, summed
    step       Adam on the shard; Adam is element-wise, so nothing is lost

Three passes over the weights, where an all-reduce of gradients is two: half
as much traffic again buys a p-th of the memory. There is room for one whole
unit, and all take turns in it: what autograd saves for backward are views of
the room, and they must show the right unit again when its backward begins.
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

UNITS, WIDTH, ROWS, STEPS = 3, 17, 24, 2
SIZE = WIDTH * WIDTH + WIDTH  # weights of a unit, 306
MOMENTS = "exp_avg", "exp_avg_sq"


def shard_of(layer: nn.Module, w: World) -> Tensor:
    """This rank's p-th of a layer's weights."""
    whole = torch.cat([p.data.view(-1) for p in layer.parameters()])
    #: Padded at the end, so that all shards are equal. With many ranks the
    #: last shards are nothing but padding.
    whole = nn.functional.pad(whole, (0, -len(whole) % w.size))
    return whole.view(w.size, -1)[w.rank].to(w.device, copy=True)


class Unit:
    """A layer whose weights live in shards, and are whole only in use."""

    def __init__(self, layer: nn.Module, w: World, room: Tensor) -> None:
        self.shard, self.room = nn.Parameter(shard_of(layer, w)), room
        self.shapes = {n: p.shape for n, p in layer.named_parameters()}
        self.layer = layer.to("meta")  # its form, not its weights

    def gather(self, *_: Tensor) -> None:
        """Bring all shards into the room."""
        with span("gather"):
            #: Through .data, so that autograd does not take it for a change
            #: of what it saved.
            dist.all_gather_single(self.room.data, self.shard.data)

    def __call__(self, x: Tensor) -> Tensor:
        whole = Gather.apply(self.shard, self)
        with span("forward", cost=1):
            y = functional_call(self.layer, self.named(whole), x)
        #: Called when the gradient of y is known: just before our backward.
        y.register_hook(self.gather)
        return y

    def named(self, whole: Tensor) -> dict[str, Tensor]:
        """The layer's weights, as views of the room, without the padding."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        parts = zip(self.shapes.items(), whole[:SIZE].split(sizes))
        return {name: part.view(shape) for (name, shape), part in parts}


class Gather(torch.autograd.Function):
    """Shard to whole forward; the whole's gradient to the shard's backward."""

    @staticmethod
    def forward(ctx: Any, shard: Tensor, unit: Unit) -> Tensor:
        ctx.unit = unit
        unit.gather()
        return unit.room.view(-1)

    @staticmethod
    def backward(ctx: Any, d_whole: Tensor) -> tuple[Tensor, None]:
        with span("backward", cost=2):  # autograd has just done the work
            d_shard = torch.empty_like(ctx.unit.shard)
        dist.reduce_scatter_single(d_shard, d_whole.contiguous())
        return d_shard, None


def train(units: list[Unit], adam: Adam, share: Tensor) -> Iterator[int]:
    """Each rank on its share of the rows."""
    for step in range(STEPS):
        adam.zero_grad()
        y = share
        for unit in units:
            y = unit(y)
        (y.square().sum() / ROWS).backward()
        adam.step()
        yield step


def reference(w: World, rows: Tensor) -> list[Tensor]:
    """Adam on one process; of its weights, what this rank would own."""
    model = equal_layers(UNITS, WIDTH).to(w.device)
    adam = Adam(model.parameters())
    for _ in range(STEPS):
        adam.zero_grad()
        (model(rows).square().sum() / ROWS).backward()
        adam.step()
    return [shard_of(layer, w) for layer in model]


def main(w: World) -> None:
    rows = w.randn(ROWS, WIDTH, of_rank=0)
    room = rows.new_empty(SIZE + -SIZE % w.size)
    units = [Unit(layer, w, room) for layer in equal_layers(UNITS, WIDTH)]
    shards = [u.shard for u in units]
    adam = Adam(shards)
    memory = w.memory(
        parameters=lambda: shards,
        gradients=lambda: [s.grad for s in shards],
        optimizer=lambda: [s[m] for s in adam.state.values() for m in MOMENTS],
        gathered=lambda: [room],
    )
    with memory, meter() as moved:
        for _ in train(units, adam, rows.tensor_split(w.size)[w.rank]):
            memory.mark("step")
    # Another order of additions in the gradient, through Adam's division.
    w.check("parameters", shards, lambda: reference(w, rows), slack=256)
    live, most = memory.live("step"), memory.peak["gathered"]
    state = live["parameters"] + live["gradients"] + live["optimizer"]
    counts = {"calls": moved.count, "volume": moved.wire, "gathered": most}
    given = {"n": SIZE, "u": UNITS, "b": 8, "t": STEPS}
    report(w, given=given, state=state, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
