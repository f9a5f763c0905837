"""ZeRO-1 by hand against torch's ZeroRedundancyOptimizer behind DDP, with Adam."""

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Adam

from atlas.bench.pair import Bench, Case, Pair, Side
from exemplars.parameter_distribution.sharded.zero_1 import Zero1
from exemplars.runtime import World
from exemplars.workload import Task, random_rows


def make(w: World, *, layers: int, width: int, rows: int) -> Pair:
    """Both train the same stack of layers on the same shares of the same rows."""
    # Here, not above: the package warns of its own use of torch.jit.
    from torch.distributed.optim import ZeroRedundancyOptimizer

    task = random_rows(w, layers, width)
    model, twin = (task.model().to(w.device) for _ in range(2))
    ours = Zero1(model.parameters(), Adam)
    ddp = DistributedDataParallel(twin)
    theirs = ZeroRedundancyOptimizer(twin.parameters(), optimizer_class=Adam, lr=1e-3)
    return Pair(
        ours=Side(
            trained(w, task, model, ours, rows), lambda: list(model.parameters())
        ),
        theirs=Side(
            trained(w, task, ddp, theirs, rows), lambda: list(twin.parameters())
        ),
        slack=4096,
    )


def trained(
    w: World, task: Task, model: nn.Module, optimizer: Any, rows: int
) -> Callable[[], None]:
    """A step on this rank's share: gradients are means over ranks in both."""
    whole = (t.to(w.device) for t in task.batch(0, rows))
    x, y = (t.tensor_split(w.size)[w.rank] for t in whole)

    def step() -> None:
        optimizer.zero_grad()
        (task.loss(model, x, y) / rows * w.size).backward()
        optimizer.step()

    return step


BENCH = Bench(
    technique="zero-1",
    production="torch.distributed.optim.ZeroRedundancyOptimizer with DDP",
    what="One Adam step of 4 layers of width 512 in float64, 128 rows.",
    note=(
        "torch moves at least 50 % more: DDP all-reduces the whole gradient "
        "(twice its size), then each rank broadcasts the parameters it has updated. "
        "The exemplar reduce-scatters and all-gathers, twice in all."
    ),
    make=make,
    cases=(
        Case(
            "width 512", 4 * (512 * 512 + 512) * 8, dict(layers=4, width=512, rows=128)
        ),
    ),
    headline="width 512",
    tiny={"layers": 2, "width": 8, "rows": 6},
)
