"""Token-weighted mean: every token counts the same, wherever it is computed.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.synchronous.token_weighted_mean

Sentences differ in length, and so do the tokens that each micro-batch of each
rank learns from. The loss of a step is a mean over all of its tokens. To add
up to its gradient, every micro-batch divides by the tokens of *the step*:

    right    sum over micro-batches of  (sum of losses) / (tokens of the step)
    wrong    mean over micro-batches of (sum of losses) / (its own tokens)

The second is what a loss with reduction="mean" gives, averaged over micro-
batches by the trainer and over ranks by DDP. It is the same only if all
micro-batches have equally many tokens. Otherwise a token among few counts for
more than a token among many. With N tokens in M micro-batches, one in a
micro-batch of n tokens is weighted by

    (1 / Mn) / (1 / N)  =  N / Mn

and the same samples, cut in another way, train another model.

No rank knows N: it sees its own tokens alone. So before the first backward
pass a rank fetches all of its micro-batches, counts, and the ranks add up one
integer.

Source: torchtitan, pull request 2206; transformers, pull request 34198.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD

from exemplars.runtime import World, meter, report, world
from exemplars.sync_strategy.synchronous.bsp_synchronous_sgd import (
    all_reduce_in_buckets,
)
from exemplars.sync_strategy.synchronous.gradient_accumulation import (
    gradients,
)
from exemplars.workload import CONTEXT, Step, Task, characters

BUCKET = 1000  # elements of one all-reduce
IGNORED = -100  # the target of a token that nothing is learned from


def token_weighted(own: int, tokens: int, parts: int) -> int:
    """Every token counts as one of all."""
    return tokens


def mean_of_means(own: int, tokens: int, parts: int) -> int:
    """Every micro-batch counts as one of all, however few its tokens."""
    #: The mean over no token would be 0/0: trainers have logged that nan.
    return max(1, own) * parts


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    batch: int,
    microbatches: int,
    rate: float,
    divisor: Callable[[int, int, int], int] = token_weighted,
) -> Iterator[Step]:
    """Plain SGD; a step is one update, after k micro-batches on each rank."""
    model = task.model().to(w.device)
    sgd = SGD(model.parameters(), lr=rate)
    for step in range(steps):
        whole = [t.to(w.device) for t in task.batch(step, batch)]
        shares = [t.tensor_split(w.size)[w.rank] for t in whole]
        #: A list, not an iterator: the step has to see its last micro-batch
        #: before it can weigh its first.
        parts = list(zip(*(t.tensor_split(microbatches) for t in shares)))
        counts = [int((y != IGNORED).sum()) for _, y in parts]
        tokens = torch.tensor(sum(counts), device=w.device)
        #: Once per step, not once per micro-batch. Targets are counted, not
        #: inputs: padding and prompts are computed but not learned from.
        dist.all_reduce(tokens)
        sgd.zero_grad()
        total = 0.0
        for (x, y), own in zip(parts, counts):
            among = divisor(own, int(tokens), microbatches * w.size)
            loss = task.loss(model, x, y) / among
            loss.backward()
            total += loss.item()
        #: A sum. DDP and FSDP divide it by the number of ranks, so with them
        #: the loss is multiplied by that number first.
        all_reduce_in_buckets(gradients(model), BUCKET)
        sgd.step()
        yield Step(total, [*model.parameters()])


def unequal(task: Task) -> Task:
    """The task, of whose samples a random number of tokens is learned from."""

    def batch(step: int, size: int) -> tuple[Tensor, Tensor]:
        x, y = task.batch(step, size)
        #: From 1 to all of them; the others stand for padding or a prompt.
        source = torch.Generator().manual_seed(step)
        lengths = torch.randint(1, CONTEXT + 1, (size, 1), generator=source)
        return x, y.masked_fill(torch.arange(CONTEXT) >= lengths, IGNORED)

    return replace(task, batch=batch)


class Tally(Task):
    """One number per sample, whose update tells what its tokens are worth."""

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """For every token, the number of its sample: its slope is 1."""
        return model(x)[y != IGNORED].sum()


def tally(task: Task, size: int) -> Task:
    """Number the samples of the task's first batch."""
    y = task.batch(0, size)[1]
    x = torch.arange(size)[:, None].expand_as(y)
    zeros = torch.zeros(size, 1, dtype=torch.double)
    numbers = nn.Embedding.from_pretrained(zeros, freeze=False)
    return Tally("tally", lambda: numbers, lambda *_: (x, y))


def one_of(w: World, task: Task, **sizes: Any) -> Tensor:
    """For each sample, as one of how many a token of it counts."""
    size = sizes["batch"]
    sizes |= {"steps": 1, "rate": 1.0}
    #: One step from zero with rate 1 leaves minus the gradient: the tokens of
    #: a sample, each divided by what its micro-batch was divided by.
    (step,) = train(w, tally(task, size), **sizes)
    tokens = (task.batch(0, size)[1] != IGNORED).sum(1).to(w.device)
    return (tokens / -step.weights[0].detach()[:, 0]).round()


def reference(
    w: World, task: Task, steps: int, batch: int, rate: float
) -> list[Tensor]:
    """One process, whole batches, torch's own mean over targets."""
    model, losses = task.model().to(w.device), []
    sgd = SGD(model.parameters(), lr=rate)
    for step in range(steps):
        x, y = (t.to(w.device) for t in task.batch(step, batch))
        loss = nn.functional.cross_entropy(model(x).mT, y)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        losses.append(loss.detach())
    return [torch.stack(losses), *model.parameters()]


def counted(w: World, y: Tensor, microbatches: int) -> dict[str, int]:
    """Tokens of a step, and of its smallest micro-batch that has any."""
    shares = (y != IGNORED).tensor_split(w.size)
    parts = [p for s in shares for p in s.tensor_split(microbatches)]
    counts = [int(p.sum()) for p in parts]
    return {"tokens": sum(counts), "fewest": min(filter(None, counts))}


def main(
    w: World, *, steps: int = 2, batch: int = 53, microbatches: int = 3
) -> None:
    w.require(steps > 0, f"{steps} steps: nothing is trained; use 1 or more")
    none = f"{batch} samples in {microbatches} micro-batches: use 1 or more"
    w.require(min(batch, microbatches) > 0, none)
    task, losses = unequal(characters), list[float]()
    sizes: Any = dict(steps=steps, batch=batch, rate=0.1)
    cut = dict(batch=batch, microbatches=microbatches)
    with meter() as moved:
        for done in train(w, task, microbatches=microbatches, **sizes):
            losses.append(done.loss)
    weights = done.weights
    total = torch.tensor(losses, dtype=torch.double, device=w.device)
    dist.all_reduce(total)
    # float64; another order of additions, amplified by a few steps
    alone = partial(reference, w, task, **sizes)
    w.check("parameters", [total, *weights], alone, slack=64)
    w.check_same("same", weights)
    right = one_of(w, task, **cut)
    wrong = one_of(w, task, divisor=mean_of_means, **cut)
    given = counted(w, task.batch(0, batch)[1], microbatches)
    given |= {"elements": sum(p.numel() for p in weights), "bucket": BUCKET}
    found: dict[str, float] = dict(calls=moved.count, payload=moved.payload)
    if not w.dry:  # in which the tokens of other ranks never come
        found["factor"] = (right.min() / wrong.min()).item()
    report(w, given={**given, "itemsize": 8}, **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
