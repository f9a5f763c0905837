"""ZeRO-3 by hand against FSDP2, layer by layer, with Adam."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Adam

from atlas.bench.pair import Bench, Case, Pair, Side, sized
from exemplars.parameter_distribution.sharded import zero_3 as exemplar
from exemplars.runtime import World
from exemplars.workload import equal_layers


def make(w: World, *, units: int, width: int, rows: int) -> Pair:
    """Both train the same stack of layers on the same shares of the same rows."""
    size = width * width + width
    sized(exemplar, UNITS=units, WIDTH=width, ROWS=rows, STEPS=1 << 30, SIZE=size)
    every = w.randn(rows, width, of_rank=0)
    share = every.tensor_split(w.size)[w.rank]
    room = every.new_empty(size + -size % w.size)
    mine = [exemplar.Unit(layer, w, room) for layer in equal_layers(units, width)]
    steps = exemplar.train(mine, Adam([u.shard for u in mine]), share)
    twin = equal_layers(units, width).to(w.device)
    step = sharded(twin, share, rows, w.size)

    def values() -> list[Tensor]:
        # Gathered now: the units take turns in one room.
        found: list[Tensor] = []
        for unit in mine:
            unit.gather()
            found += [t.clone() for t in unit.named(room).values()]
        return found

    return Pair(
        ours=Side(lambda: next(steps), values),
        theirs=Side(step, lambda: [_whole(p) for p in twin.parameters()]),
        slack=4096,
    )


def sharded(
    model: nn.Module, share: Tensor, rows: int, ranks: int
) -> Callable[[], None]:
    """The same model and step in FSDP2, resharded after forward as ours is."""
    for layer in model.children():
        fully_shard(layer, reshard_after_forward=True)
    fully_shard(model)
    adam = Adam(model.parameters())

    def step() -> None:
        adam.zero_grad()
        # FSDP2 takes the mean over ranks; the exemplar the sum.
        (model(share).square().sum() / rows * ranks).backward()
        adam.step()

    return step


def _whole(p: Tensor) -> Tensor:
    assert isinstance(p, DTensor)
    with torch.no_grad():
        return p.full_tensor()


BENCH = Bench(
    technique="zero-3",
    production="torch.distributed.fsdp.fully_shard",
    what="One Adam step of 4 layers of width 512 in float64, 128 rows.",
    note=(
        "Same calls and bytes. FSDP2 copies every parameter into and out of its "
        "buffers and runs hooks that overlap work on a GPU and only cost here; the "
        "exemplar gathers into one room and uses views of it."
    ),
    make=make,
    cases=(
        Case(
            "width 512", 4 * (512 * 512 + 512) * 8, dict(units=4, width=512, rows=128)
        ),
    ),
    headline="width 512",
    tiny={"units": 2, "width": 8, "rows": 6},
)
