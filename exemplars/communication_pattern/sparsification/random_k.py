"""Random-k: all ranks draw the same places, so only values travel.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.sparsification.random_k

In step t every rank draws the same k of the n places from the seed t. Each
sends its k entries at these places and carries the others to its next step:

    a = g + e        sent = a at the drawn places        e' = a elsewhere

Value i of one rank belongs to the same place as value i of any other, so the
values are added on the way: an all-reduce of k numbers, for any number of
ranks. No place ever travels. The k largest entries of each rank, in contrast,
are at different places, and values and places must be gathered from everyone.

The draw does not look at the gradient: small entries are sent as often as
large ones. Each place is drawn with probability k/n and waits n/k steps on
average. Scaled by n/k and without the residual e, what is sent would be the
gradient on average; with the residual nothing is lost:

    sum of sent  +  last residual  =  sum of gradients

Source: Stich et al. 2018, definition 2.1 and algorithm 1.
"""

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Step, Task, digits


class RandomK:
    """A compressor: sends k drawn entries, and carries the others."""

    def __init__(self, like: Tensor, *, kept: int) -> None:
        if not 0 < kept <= len(like):
            raise ValueError(f"kept = {kept}: must be from 1 to {len(like)}")
        self.residual = torch.zeros_like(like)
        self.kept = kept
        self.step = 0

    def compress(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Entries of gradient + residual, and their places, known to all."""
        wanted = gradient + self.residual
        places = self.draw().to(wanted.device)
        #: An entry that is not drawn waits here. When its place is drawn, it
        #: is sent together with all that was added to it since.
        self.residual = wanted.index_fill(0, places, 0.0)
        return wanted[places], places

    def draw(self) -> Tensor:
        """The places of the next step, the same on every rank."""
        #: The step is the seed: the ranks agree on the places without a
        #: message, as long as they count the same steps.
        source = torch.Generator().manual_seed(self.step)
        self.step += 1
        #: The beginning of a shuffle: no place twice, all equally likely.
        shuffle = torch.randperm(len(self.residual), generator=source)
        return shuffle[: self.kept]


def sum_of_all(values: Tensor, places: Tensor, size: int) -> Tensor:
    """What all ranks sent, added up as one dense vector."""
    #: Reduced, not gathered: k values, however many ranks there are.
    dist.all_reduce(values)
    total = values.new_zeros(size)
    #: The places were drawn here, too; they did not have to arrive.
    total[places] = values
    return total


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    local_batch: int,
    rate: float,
    kept: int,
) -> Iterator[Step]:
    """SGD in which only the drawn entries travel."""
    model = task.model().to(w.device)
    parameters = list(model.parameters())
    weights = parameters_to_vector(parameters).detach()
    random_k = RandomK(weights, kept=kept)
    for step in range(steps):
        x, y = task.batch(step * w.size + w.rank, local_batch)
        with span("compute", label=step, cost=3):
            loss = task.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
            grads = torch.autograd.grad(loss, parameters)
        with span("compress", label=step, cost=1):
            sent = random_k.compress(parameters_to_vector(grads))
        #: All ranks apply the same sparse sum, so the replicas stay equal.
        weights = weights - rate / w.size * sum_of_all(*sent, len(weights))
        vector_to_parameters(weights, parameters)
        yield Step(loss.item(), parameters)


def reference(
    w: World, task: Task, steps: int, local_batch: int, rate: float, kept: int
) -> list[Tensor]:
    """One process, and no residual: what has arrived at each place so far."""
    model = task.model().to(w.device)
    parameters: list[Tensor] = list(model.parameters())
    start = parameters_to_vector(parameters).detach()
    given, arrived = torch.zeros_like(start), torch.zeros_like(start)
    for step in range(steps):
        for number in range(step * w.size, (step + 1) * w.size):
            x, y = (t.to(w.device) for t in task.batch(number, local_batch))
            loss = task.loss(model, x, y) / y.numel()
            grads = torch.autograd.grad(loss, parameters)
            given += parameters_to_vector(grads)
        #: A drawn place has received all that it was ever given; any other
        #: place, all that it was given until it was last drawn.
        source = torch.Generator().manual_seed(step)
        drawn = torch.randperm(len(start), generator=source)[:kept]
        arrived[drawn] = given[drawn]
        vector_to_parameters(start - rate / w.size * arrived, parameters)
    return parameters


def account(w: World, steps: int, kept: int) -> tuple[Tensor, Tensor]:
    """All that a compressor was given; all it sent, and what it still has."""
    # Whole numbers: their sums do not round.
    given = (w.randn(steps, 3 * kept, seed=w.rank) * 2**30).round()
    random_k = RandomK(given[0], kept=kept)
    sent = torch.zeros_like(given[0])
    for gradient in given:
        values, places = random_k.compress(gradient)
        sent[places] += values
    return given.sum(0), sent + random_k.residual


def unevenness(elements: int, kept: int, draws: int = 400) -> float:
    """How unevenly places are drawn, in standard errors from pure chance."""
    random_k = RandomK(torch.zeros(elements), kept=kept)
    count = torch.zeros(elements, dtype=torch.double)
    for _ in range(draws):
        count[random_k.draw()] += 1
    #: Drawn with probability q = k/n, a place has the variance q(1 - q) per
    #: draw. The squares over it follow a chi-squared distribution.
    q = kept / elements
    squares = (count - draws * q).square().sum() / (draws * q * (1 - q))
    return ((squares - elements) / (2 * elements) ** 0.5).item()


def main(
    w: World,
    *,
    steps: int = 5,
    local_batch: int = 24,
    rate: float = 0.2,
    kept: int = 50,
) -> None:
    run = partial(train, steps=steps, local_batch=local_batch, rate=rate)
    with meter() as moved:
        *_, last = run(w, digits, kept=kept)
    truth = partial(reference, w, digits, steps, local_batch, rate, kept)
    # Sums over ranks and steps, in another order.
    w.check("digits", last.weights, truth, slack=8)
    w.check_same("same", last.weights)
    given, accounted = account(w, steps, kept)
    w.check("identity", accounted, lambda: given, slack=0)
    counts = {"calls": moved.count, "payload": moved.payload}
    uneven = unevenness(40 * kept, kept)
    itemsize = last.weights[0].element_size()
    report(w, given={"itemsize": itemsize}, uneven=uneven, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
