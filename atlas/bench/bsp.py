"""Bulk-synchronous SGD in buckets against DistributedDataParallel."""

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from atlas.bench.pair import Bench, Case, Pair, Side
from exemplars.runtime import World, defaults
from exemplars.sync_strategy.synchronous import bsp_synchronous_sgd as exemplar
from exemplars.workload import Task, characters

OWN = defaults(exemplar.main)
WIDE_BUCKET = 1 << 20  # elements
RATE = 0.1


def perceptron(width: int) -> nn.Sequential:
    """Three layers; 2.4 million weights at a width of 1024."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first, last = nn.Linear(256, width), nn.Linear(width, 10)
        return nn.Sequential(
            first, nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(), last,
        )  # fmt: skip


def one_batch(task: Task, size: int) -> Task:
    """The same task on one batch for ever: making batches is not timed."""
    x, y = task.batch(0, size)
    return Task(task.name, task.model, lambda step, size: (x, y))


def random_rows(width: int) -> Task:
    """Random rows and labels for the perceptron."""

    def batch(step: int, size: int) -> tuple[Tensor, Tensor]:
        source = torch.Generator().manual_seed(step)
        labels = torch.randint(10, (size,), generator=source)
        return torch.randn(size, 256, generator=source), labels

    return Task("random rows", lambda: perceptron(width), batch)


def make(w: World, *, width: int, bucket: int, batch: int) -> Pair:
    """Both take SGD steps on the same batch; width 0 is the exemplar's own model."""
    task = one_batch(random_rows(width) if width else characters, batch)
    steps = exemplar.train(
        w, task, steps=1 << 30, batch=batch, bucket=bucket, rate=RATE
    )
    twin = task.model().to(w.device)
    trained: list[Tensor] = []
    element = next(twin.parameters()).element_size()
    ddp = DistributedDataParallel(twin, bucket_cap_mb=bucket * element / 2**20)
    sgd = torch.optim.SGD(twin.parameters(), lr=RATE)

    def ours() -> None:
        trained[:] = next(steps).weights

    def theirs() -> float:
        x, y = task.batch(0, batch)
        mine = torch.arange(batch).tensor_split(w.size)[w.rank]
        sgd.zero_grad()
        # DDP divides by the ranks; the exemplar by the whole batch.
        loss = task.loss(ddp, x[mine], y[mine]) / y.numel() * w.size
        loss.backward()
        sgd.step()
        return loss.item()

    return Pair(
        ours=Side(ours, lambda: list(trained)),
        theirs=Side(theirs, lambda: list(twin.parameters())),
        slack=256,
    )


BENCH = Bench(
    technique="bsp-synchronous-sgd",
    production="torch.nn.parallel.DistributedDataParallel",
    what="One SGD step of a perceptron of 2.4 million float32 weights, a batch of 64.",
    note=(
        "Same bytes. DDP sends a bucket while the rest of the gradient is still being "
        "computed; the exemplar computes all of it, copies it into one vector, and "
        "then sends. In return it has no hooks and no bookkeeping for buckets."
    ),
    make=make,
    cases=(
        Case(
            "own model",
            79_600,
            {"width": 0, "bucket": OWN["bucket"], "batch": OWN["batch"]},
            calls=5,
        ),
        Case(
            "2.4 M",
            9_490_472,
            {"width": 1024, "bucket": WIDE_BUCKET, "batch": 64},
        ),
    ),
    headline="2.4 M",
    tiny={"width": 16, "bucket": 1000, "batch": 10},
)
