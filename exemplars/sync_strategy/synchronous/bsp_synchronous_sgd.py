"""Bulk-synchronous SGD: p workers take the very step that one would take.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.synchronous.bsp_synchronous_sgd

Each rank takes its share of the batch and holds a full copy of the model.
The gradient of a batch is the sum of the gradients of its shares, so

    all-reduce( gradient of my share )  =  gradient of the batch

and after it all ranks take the same step from the same weights. No rank is
ever a step ahead, and every rank waits for the slowest.

Two details decide whether that is true. The *gradient* travels, not the
weights: averaging the weights of ranks that stepped alone is another
algorithm. And the loss is divided by the size of the whole batch, not of the
share: with uneven shares the mean of means is not the mean.

Gradients travel in buckets: there are fewer messages than tensors, and the
first bucket can leave before the last is computed.

Source: Valiant 1990 (bulk synchrony); Li et al. 2020 (buckets).
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import (
    Clock,
    World,
    constant,
    meter,
    report,
    span,
    world,
)  # fmt: skip
from exemplars.workload import Step, Task, characters, digits

EQUAL = constant(3)  # virtual seconds of a gradient, on every rank


def all_reduce_in_buckets(gradients: Sequence[Tensor], bucket: int) -> None:
    """Sum the gradients over all ranks, in place."""
    dtypes = {g.dtype for g in gradients}
    if len(dtypes) > 1:
        raise ValueError(f"a bucket holds one dtype, not {dtypes}")
    flat = torch.cat([g.reshape(-1) for g in gradients])
    #: All are posted before the first is waited for, so that the network
    #: always has work to do.
    works = [dist.all_reduce(b, async_op=True) for b in flat.split(bucket)]
    for work in works:
        work.wait()
    #: The buckets were views of one vector, and so are the summed gradients:
    #: a bucket may end in the middle of a tensor.
    sizes = [g.numel() for g in gradients]
    for g, summed in zip(gradients, flat.split(sizes)):
        g.copy_(summed.view_as(g))


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    batch: int,
    bucket: int,
    rate: float,
    clock: Clock = EQUAL,
    update: float = 1,
) -> Iterator[Step]:
    """Plain SGD, each rank on its share of every batch."""
    #: Every rank builds the same model from the same seed, so nothing has to
    #: be broadcast before the first step.
    model = task.model().to(w.device)
    parameters = list(model.parameters())
    for step in range(steps):
        x, y = task.batch(step, batch)
        #: Shares differ by one sample where p does not divide the batch.
        mine = torch.arange(batch).tensor_split(w.size)[w.rank]
        share = x[mine].to(w.device), y[mine].to(w.device)
        with span("compute", label=step, cost=clock(w.rank, step)):
            #: The loss is a sum over samples; divided by the whole batch, the
            #: ranks' gradients add up to the gradient of its mean.
            loss = task.loss(model, *share) / y.numel()
            gradients = torch.autograd.grad(loss, parameters)
        all_reduce_in_buckets(gradients, bucket)
        #: The same gradient and the same weights on every rank: after the
        #: step the weights are equal to the last bit, and stay so.
        with span("update", label=step, cost=update), torch.no_grad():
            for p, g in zip(parameters, gradients):
                p.sub_(g, alpha=rate)
        yield Step(loss.item(), parameters)


def reference(
    w: World, task: Task, steps: int, batch: int, rate: float
) -> list[Tensor]:
    """One process, whole batches, torch's own SGD."""
    model = task.model().to(w.device)
    sgd = torch.optim.SGD(model.parameters(), lr=rate)
    for step in range(steps):
        x, y = task.batch(step, batch)
        loss = task.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    return list(model.parameters())


def main(
    w: World,
    *,
    steps: int = 4,
    batch: int = 50,
    bucket: int = 1000,
    rate: float = 0.1,
) -> None:
    #: 50 is no multiple of 3, 4 or 8: the shares are uneven.
    w.require(steps > 0, f"{steps} steps: nothing is trained; use 1 or more")
    w.require(bucket > 0, f"a bucket of {bucket} elements; use 1 or more")
    sizes: Any = dict(steps=steps, batch=batch, rate=rate)
    both: list[Tensor] = []
    for task in (digits, characters):
        with meter() as moved:
            for done in train(w, task, bucket=bucket, **sizes):
                trained = list(done.weights)
        #: One rank checks: that all have the same bits is checked below.
        if w.rank == 0:
            # float64; another order of additions, amplified by a few steps
            alone = partial(reference, w, task, **sizes)
            w.check(task.name, trained, alone, slack=64)
        both += trained
    w.check_same("same", both)
    given = {
        "elements": sum(p.numel() for p in trained),
        "itemsize": trained[0].element_size(),
    }
    report(w, given=given, calls=moved.count, payload=moved.payload)


if __name__ == "__main__":
    with world() as w:
        main(w)
