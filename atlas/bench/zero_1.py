"""ZeRO-1 by hand against torch's ZeroRedundancyOptimizer behind DDP, with Adam."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Adam

from atlas.bench.pair import Bench, Case, Pair, Side, sized
from exemplars.parameter_distribution.sharded import zero_1 as exemplar
from exemplars.runtime import World
from exemplars.workload import equal_layers

NEVER = 1e30  # a norm beyond which gradients would be clipped


def make(w: World, *, layers: int, width: int, rows: int) -> Pair:
    """Both train the same stack of layers on the same shares of the same rows."""
    size = layers * (width * width + width)
    sized(exemplar, LAYERS=layers, WIDTH=width, ROWS=rows, SIZE=size)
    sized(exemplar, STEPS=1 << 30, MICROS=1, CLIP=NEVER)
    every = w.randn(rows, width, of_rank=0)
    model = equal_layers(layers, width).to(w.device)
    steps = exemplar.train(w, model, exemplar.Replica(model, w), every)
    twin = equal_layers(layers, width).to(w.device)
    step = redundant(twin, every.tensor_split(w.size)[w.rank], rows, w.size)
    return Pair(
        ours=Side(lambda: next(steps), lambda: list(model.parameters())),
        theirs=Side(step, lambda: list(twin.parameters())),
        slack=4096,
    )


def redundant(
    model: nn.Module, share: Tensor, rows: int, ranks: int
) -> Callable[[], None]:
    """The same model and step, with torch's own sharded optimizer."""
    # Here, not above: the package warns of its own use of torch.jit.
    from torch.distributed.optim import ZeroRedundancyOptimizer

    ddp = DistributedDataParallel(model)
    adam = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=Adam, lr=1e-3)

    def step() -> None:
        adam.zero_grad()
        # DDP takes the mean over ranks; the exemplar the sum.
        (ddp(share).square().sum() / rows * ranks).backward()
        adam.step()

    return step


BENCH = Bench(
    technique="zero-1",
    production="torch.distributed.optim.ZeroRedundancyOptimizer with DDP",
    what="One Adam step of 4 layers of width 512 in float64, 128 rows.",
    note=(
        "torch moves at least half as much again: DDP all-reduces the whole gradient "
        "(twice its size), then each rank broadcasts the parameters it has updated. "
        "The exemplar reduce-scatters and all-gathers, twice in all; it also sums "
        "the norm for clipping, one number."
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
