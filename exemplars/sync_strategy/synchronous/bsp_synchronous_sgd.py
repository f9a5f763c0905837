"""Bulk-synchronous SGD: p workers take the very step that one would take.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.synchronous.bsp_synchronous_sgd

Source: Valiant 1990 (bulk synchrony); Li et al. 2020 (buckets).

Each rank takes its share of the batch and holds a full copy of the model.
The gradient of a batch is the sum of the gradients of its shares, so

    all-reduce( gradient of my share )  =  gradient of the batch

and after it all ranks take the same step from the same weights. Nobody is
ever a step ahead, and everybody waits for the slowest.

Two things decide whether that is true. The *gradient* travels, not the
weights: averaged weights of ranks that stepped alone are another algorithm.
And the loss is divided by the size of the whole batch, not of the share:
with uneven shares the mean of means is not the mean.

Gradients travel in buckets: fewer messages than tensors, and the first can
leave before the last is computed.
"""

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from exemplars.runtime import World, constant, meter, report, span, world
from exemplars.workload import Step, Task, characters, digits

STEPS = 4
BATCH = 50  # no multiple of 3, 4 or 8: shares are uneven
RATE = 0.1
BUCKET = 1000  # elements
UPDATE = 1  # virtual seconds
seconds = constant(3)  # of a gradient


def all_reduce_in_buckets(gradients: list[Tensor]) -> None:
    """Sum the gradients over all ranks, in place."""
    flat = torch.cat([g.view(-1) for g in gradients])
    #: All are posted before the first is waited for, so that the network is
    #: never without work.
    works = [dist.all_reduce(b, async_op=True) for b in flat.split(BUCKET)]
    for work in works:
        work.wait()
    sizes = [g.numel() for g in gradients]
    for g, summed in zip(gradients, flat.split(sizes)):
        g.copy_(summed.view_as(g))


def train(w: World, task: Task, model: nn.Module) -> Iterator[Step]:
    """Plain SGD, each rank on its share of every batch."""
    parameters = list(model.parameters())
    for step in range(STEPS):
        x, y = task.batch(step, BATCH)
        mine = torch.arange(BATCH).tensor_split(w.size)[w.rank]
        with span("compute", label=step, cost=seconds(w.rank, step)):
            #: The loss is a sum over samples; divided by the whole batch, the
            #: ranks' gradients add up to the gradient of its mean.
            share = x[mine].to(w.device), y[mine].to(w.device)
            loss = task.loss(model, *share) / y.numel()
            gradients = torch.autograd.grad(loss, parameters)
        all_reduce_in_buckets(list(gradients))
        with span("update", label=step, cost=UPDATE), torch.no_grad():
            for p, g in zip(parameters, gradients):
                p.sub_(g, alpha=RATE)
        yield Step(samples=BATCH, loss=loss.item())


def reference(w: World, task: Task) -> list[Tensor]:
    """One process, whole batches."""
    model = task.model().to(w.device)
    for step in range(STEPS):
        x, y = (t.to(w.device) for t in task.batch(step, BATCH))
        loss = task.loss(model, x, y) / y.numel()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), gradients):
                p.sub_(g, alpha=RATE)
    return list(model.parameters())


def main(w: World) -> None:
    trained: list[Tensor] = []
    for task in (digits, characters):
        model = task.model().to(w.device)
        with meter() as moved:
            for _ in train(w, task, model):
                pass
        trained = list(model.parameters())
        # float64; another order of additions, amplified by a few steps
        w.check(task.name, trained, partial(reference, w, task), slack=64)
    w.check_same("same", trained)
    report(
        w,
        given={
            "n": sum(p.numel() for p in trained),
            "b": trained[0].element_size(),
            "c": BUCKET,
            "t": STEPS,
        },
        calls=moved.count,
        payload=moved.payload,
    )


if __name__ == "__main__":
    with world() as w:
        main(w)
