"""Gradient accumulation: one exchange and one update for k micro-batches.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.synchronous.gradient_accumulation

A rank cuts its share of the batch into k micro-batches and takes them one
after the other. Each backward pass adds to the gradients that are already
there; only after the last one do the ranks exchange them and step:

    forward 0  backward 0  forward 1  backward 1  ..  all-reduce  step
               g = g0                 g = g0 + g1     sum of g

The gradient of a sum is the sum of the gradients, so nobody can tell from the
weights that the batch was cut. What changes is the cost:

    activations      of one micro-batch, 1/k of the share's
    all-reduces      one per update, not one per backward pass

The first is why one accumulates where memory is short, the second why one
does it where the network is slow: with k times the batch and micro-batches
of the old size, every sample costs 1/k of the traffic. The price is that an
update needs k backward passes, so the same samples give fewer updates.

Source: Ott et al. 2018 (larger batches); Li et al. 2020, section 3.2.4.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD

from exemplars.runtime import World, meter, report, span, world
from exemplars.sync_strategy.synchronous.bsp_synchronous_sgd import (
    all_reduce_in_buckets,
)
from exemplars.workload import (
    Step,
    Task,
    digits,
    tied_characters,
    weights_of,
)  # fmt: skip


def accumulate(
    model: nn.Module,
    task: Task,
    parts: Iterator[tuple[Tensor, Tensor]],
    targets: int,
) -> float:
    """Leave in .grad what one backward over all parts would; their loss."""
    total = 0.0
    for k, (x, y) in enumerate(parts):
        with span("forward", label=k, cost=1):
            #: Divided by the targets of the whole batch. Divided by its own,
            #: a sample in a small micro-batch would count for more.
            loss = task.loss(model, x, y) / targets
        with span("backward", label=k, cost=2):
            #: Now, not after the loop: backward frees the activations of
            #: this micro-batch before the next one makes its own. It adds to
            #: .grad and never overwrites it.
            loss.backward()
        total += loss.item()
    return total


def gradients(model: nn.Module) -> list[Tensor]:
    """What backward has left; frozen weights have none."""
    return [p.grad for p in model.parameters() if p.grad is not None]


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    batch: int,
    microbatches: int,
    bucket: int,
    rate: float,
) -> Iterator[Step]:
    """Plain SGD; a step is one update, after k micro-batches on each rank."""
    model = task.model().to(w.device)
    sgd = SGD(model.parameters(), lr=rate)
    for step in range(steps):
        whole = [t.to(w.device) for t in task.batch(step, batch)]
        #: Once per update. Within the loop it would forget all micro-batches
        #: but the last.
        sgd.zero_grad()
        #: A rank's share is cut into views, so no sample is copied; sizes
        #: differ by one sample where p and k do not divide the batch.
        shares = [t.tensor_split(w.size)[w.rank] for t in whole]
        parts = zip(*(t.tensor_split(microbatches) for t in shares))
        loss = accumulate(model, task, parts, whole[1].numel())
        #: The only exchange of the update. The sum over ranks of sums over
        #: micro-batches is the sum over the batch.
        all_reduce_in_buckets(gradients(model), bucket)
        sgd.step()
        yield Step(loss, [*model.parameters()])


def kept(w: World, task: Task, samples: list[Tensor]) -> Task:
    """The task, whose last batch can be told from what a model makes of it."""

    def batch(step: int, size: int) -> tuple[Tensor, Tensor]:
        samples[:] = [t.to(w.device) for t in task.batch(step, size)]
        return samples[0], samples[1]

    return replace(task, batch=batch)


def reference(
    w: World, task: Task, steps: int, batch: int, rate: float
) -> list[Tensor]:
    """One process and whole batches: the losses, and the last weights."""
    model, losses = task.model().to(w.device), []
    sgd = SGD(model.parameters(), lr=rate)
    for step in range(steps):
        x, y = (t.to(w.device) for t in task.batch(step, batch))
        loss = task.loss(model, x, y) / y.numel()
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        losses.append(loss.detach())
    return [torch.stack(losses), *model.parameters()]


def sizes_of(weights: list[nn.Parameter]) -> dict[str, int]:
    """Elements of a perceptron, and outputs: one for each bias."""
    outputs = sum(p.numel() for p in weights if p.dim() == 1)
    elements = sum(p.numel() for p in weights)
    return {"elements": elements, "outputs": outputs, "itemsize": 8}


def main(
    w: World,
    *,
    steps: int = 2,
    batch: int = 50,
    microbatches: int = 3,
    bucket: int = 1000,
    rate: float = 0.1,
) -> None:
    #: 50 is no multiple of 2, 3, 4 or 8 times 3: micro-batches are uneven.
    w.require(steps > 0, f"{steps} steps: nothing is trained; use 1 or more")
    w.require(microbatches > 0, f"{microbatches} micro-batches: use 1 or more")
    w.require(bucket > 0, f"a bucket of {bucket} elements; use 1 or more")
    sizes: Any = dict(steps=steps, batch=batch, rate=rate)
    cuts = dict(microbatches=microbatches, bucket=bucket)
    samples = list[Tensor]()
    #: The first task has a weight that is used twice, and a frozen one.
    for task in (tied_characters, digits):
        weights, watched = weights_of(w, kept(w, task, samples))
        memory = w.memory(parameters=weights.copy, samples=samples.copy)
        losses = torch.zeros(steps, dtype=torch.double, device=w.device)
        with memory, meter() as moved:
            for i, done in enumerate(train(w, watched, **sizes, **cuts)):
                memory.mark("step")
                losses[i] = done.loss
        dist.all_reduce(losses)
        alone = partial(reference, w, task, **sizes)
        # float64; another order of additions, amplified by a few steps
        w.check("parameters", [losses, *weights], alone, slack=64)
        w.check_same("same", weights)
    found = dict(calls=moved.count, payload=moved.payload)
    found["activations"] = memory.peak["activations"]
    report(w, given=sizes_of(weights), **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
