"""PowerSGD by hand against torch's own hook of that name."""

import torch
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as theirs
from torch.nn.parallel import DistributedDataParallel

from atlas.bench.bsp import random_rows
from atlas.bench.pair import Bench, Case, Pair, Side, sized
from exemplars.communication_pattern.low_rank_and_sketch import powersgd as exemplar
from exemplars.runtime import World
from exemplars.workload import Task

#: The hook all-reduces plainly for at least so many steps: DDP is still settling.
SETTLED = 2
ONE_BUCKET = 1024  # MiB


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
    sized(exemplar, STEPS=1 << 30, BATCH=batch, RANK=rank)
    model = task.model().to(w.device)
    matrices, _ = exemplar.split(list(model.parameters()))
    factors = [exemplar.PowerSGD(w, m.detach()) for m in matrices]
    steps = exemplar.train(w, task, model, factors)
    return Pair(
        ours=Side(lambda: next(steps), lambda: list(model.parameters())),
        theirs=hooked(w, task, rank),
        slack=1 << 16,
    )


def hooked(w: World, task: Task, rank: int) -> Side:
    """The same training in DDP, with torch's hook."""
    model = task.model().to(w.device)
    ddp = DistributedDataParallel(model, bucket_cap_mb=ONE_BUCKET)
    state = theirs.PowerSGDState(
        process_group=None,
        matrix_approximation_rank=rank,
        start_powerSGD_iter=SETTLED,
        min_compression_rate=1e-9,
    )
    ddp.register_comm_hook(state, theirs.powerSGD_hook)
    sgd = torch.optim.SGD(model.parameters(), lr=exemplar.RATE)

    def step() -> float:
        x, y = task.batch(0, 0)
        sgd.zero_grad()
        loss = task.loss(ddp, x, y) / y.numel()
        loss.backward()
        sgd.step()
        return loss.item()

    for _ in range(SETTLED):
        step()
    model.load_state_dict(task.model().state_dict())
    return Side(step, lambda: list(model.parameters()))


BENCH = Bench(
    technique="powersgd",
    production="torch's powerSGD_hook of DistributedDataParallel",
    what="One SGD step of a perceptron of 0.7 million float64 weights, factors of "
    "rank 4.",
    note=(
        "Fewer calls: torch packs the left factors of all matrices into one "
        "all-reduce and the right ones into another, where the exemplar shows each "
        "matrix by itself, awaits it, and keeps the sums of its identity. torch "
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
