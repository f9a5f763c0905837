"""Top-k with error feedback by hand against the same as a DDP communication hook."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket

from atlas.bench.bsp import random_rows
from atlas.bench.hooked import SETTLED, hooked, training
from atlas.bench.pair import Bench, Case, Pair
from exemplars.communication_pattern.sparsification import (
    top_k_error_feedback as exemplar,
)
from exemplars.runtime import World
from exemplars.workload import Task

RATE = 0.2


class State:
    """What the hook carries from step to step, and its k."""

    def __init__(self, kept: int) -> None:
        self.kept, self.calls = kept, 0
        self.residual: Tensor | None = None

    def exchange(self, gradient: Tensor) -> Tensor:
        """The mean of what all ranks picked, in the bucket itself."""
        if self.residual is not None:
            gradient += self.residual
        places = gradient.abs().topk(self.kept).indices
        values = gradient[places]
        self.residual = gradient.index_fill(0, places, 0.0)
        p = dist.get_world_size()
        every_value = values.new_empty(p * self.kept)
        every_place = torch.empty(p * self.kept, dtype=torch.int32)
        dist.all_gather_single(every_value, values)
        dist.all_gather_single(every_place, places.to(torch.int32))
        return gradient.zero_().index_add_(0, every_place, every_value.div_(p))


def hook(state: State, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Plain all-reduce until the bucket is settled, then top-k with a residual."""
    state.calls += 1
    gradient = bucket.buffer()
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    if state.calls <= SETTLED:
        dist.all_reduce(gradient)
        done.set_result(gradient)
    else:
        done.set_result(state.exchange(gradient))
    return done


def make(w: World, *, width: int, kept: int, batch: int) -> Pair:
    """Both take SGD steps from the same weights, each rank on its own batch."""
    made = random_rows(width)
    x, y = made.batch(w.rank, batch)
    task = Task(
        made.name, lambda: made.model().double(), lambda step, size: (x.double(), y)
    )
    sizes = {"steps": 1 << 30, "local_batch": batch, "kept": kept}
    ours = training(exemplar.train(w, task, **sizes, rate=RATE), task)
    return Pair(
        ours=ours,
        theirs=hooked(w, task, RATE, State(kept), hook),
        slack=256,
    )


BENCH = Bench(
    technique="top-k-error-feedback",
    production="a DistributedDataParallel communication hook",
    what="One SGD step of a perceptron of 0.7 million float64 weights, 1 % sent.",
    note=(
        "Same calls and bytes. Most of the time is the choice of the k largest, "
        "the same on both sides; DDP also keeps its buckets."
    ),
    make=make,
    cases=(Case("0.7 M", 665_610 * 8, {"width": 512, "kept": 6656, "batch": 16}),),
    headline="0.7 M",
    tiny={"width": 16, "kept": 50, "batch": 4},
)
