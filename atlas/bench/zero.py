"""ZeRO-3 by hand against FSDP2, layer by layer, with Adam."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Adam

from atlas.bench.pair import Bench, Case, Pair, Side
from exemplars.parameter_distribution.sharded import zero_3 as exemplar
from exemplars.runtime import World
from exemplars.workload import Task, random_rows


def make(w: World, *, units: int, width: int, rows: int) -> Pair:
    """Both train the same stack of layers on the same shares of the same rows."""
    task = random_rows(w, units, width)
    model = exemplar.Zero3(task.model().to(w.device))
    twin = task.model().to(w.device)
    names = [name for name, _ in twin.named_parameters()]
    ours = trained(w, task, model, rows)
    for layer in twin.children():
        fully_shard(layer, reshard_after_forward=True)
    fully_shard(twin)

    def values() -> list[Tensor]:
        whole = model.whole()
        return [whole[name] for name in names]

    return Pair(
        ours=Side(ours, values),
        theirs=Side(
            trained(w, task, twin, rows), lambda: [_whole(p) for p in twin.parameters()]
        ),
        slack=4096,
    )


def trained(w: World, task: Task, model: nn.Module, rows: int) -> Callable[[], None]:
    """A step of Adam on this rank's share: gradients are means over ranks in both."""
    whole = (t.to(w.device) for t in task.batch(0, rows))
    x, y = (t.tensor_split(w.size)[w.rank] for t in whole)
    adam = Adam(model.parameters())

    def step() -> None:
        adam.zero_grad()
        (task.loss(model, x, y) / rows * w.size).backward()
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
