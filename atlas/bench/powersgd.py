"""PowerSGD by hand against torch's own hook of that name."""

from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as theirs

from atlas.bench.bsp import random_rows
from atlas.bench.hooked import SETTLED, hooked, training
from atlas.bench.pair import Bench, Case, Pair
from exemplars.communication_pattern.low_rank_and_sketch import powersgd as exemplar
from exemplars.runtime import World
from exemplars.workload import Task

RATE = 0.2


def make(w: World, *, width: int, batch: int) -> Pair:
    """Both take SGD steps from the same weights.

    A gradient of `batch` samples on each rank has at most that many times the number
    of ranks as its rank. With factors of that rank both sides are exact, whatever
    random matrix they begin with: their weights can be compared.
    """
    made = random_rows(width)
    x, y = made.batch(w.rank, batch)
    task = Task(
        made.name, lambda: made.model().double(), lambda step, size: (x.double(), y)
    )
    rank = batch * w.size
    state = theirs.PowerSGDState(
        process_group=None,
        matrix_approximation_rank=rank,
        start_powerSGD_iter=SETTLED,
        min_compression_rate=1e-9,
    )
    sizes = {"steps": 1 << 30, "local_batch": batch, "factor_rank": rank}
    ours = training(exemplar.train(w, task, **sizes, rate=RATE), task)
    return Pair(
        ours=ours,
        theirs=hooked(w, task, RATE, state, theirs.powerSGD_hook),
        slack=1 << 16,
    )


BENCH = Bench(
    technique="powersgd",
    production="torch's powerSGD_hook of DistributedDataParallel",
    what="One SGD step of a perceptron of 0.7 million float64 weights, factors of "
    "rank 4.",
    note=(
        "Fewer calls: torch packs the left factors of all matrices into one "
        "all-reduce and the right ones into another, where the exemplar shows each "
        "matrix by itself and awaits it. torch "
        "starts some of its calls on a thread of its own, where this count does not "
        "see them; the bytes that both really wrote differ by headers only. One "
        "sample a rank keeps the gradient's rank at 4, so that both are exact and "
        "can be compared."
    ),
    make=make,
    cases=(Case("0.7 M", 665_610 * 8, {"width": 512, "batch": 1}),),
    headline="0.7 M",
    tiny={"width": 16, "batch": 1},
)
