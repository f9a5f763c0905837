"""Top-k with error feedback: send the k largest entries, remember the rest.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.sparsification.top_k_error_feedback

Each rank sends only the k largest entries of its gradient g, and adds what it
did not send, the residual e, to its next gradient:

    a = g + e        sent = the k largest of a        e' = a - sent

Nothing is lost, only delayed: over any number of steps

    sum of sent  +  last residual  =  sum of gradients

which telescopes, since in each step sent + e' = g + e. Drop the residual, and
entries that are never among the largest never learn.

Different ranks pick different entries, so their vectors cannot be added on
the way as in an all-reduce: values and places are gathered from everyone. A
rank receives k pairs from each of p - 1 others, which pays while p k stays
well below n.

Source: Lin et al. 2018, section 3.1; Stich et al. 2018, algorithm 1.
"""

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import Group, World, meter, report, span, world
from exemplars.workload import Step, Task, characters, digits


class TopK:
    """A compressor: picks what is sent, and carries what is not."""

    def __init__(self, like: Tensor, *, kept: int) -> None:
        if not 0 < kept <= len(like):
            raise ValueError(f"kept = {kept}: must be from 1 to {len(like)}")
        self.residual = torch.zeros_like(like)
        self.kept = kept

    def compress(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The k largest entries of gradient + residual, and their places."""
        #: An entry that is small in every step adds up here until it is
        #: large enough to be sent.
        wanted = gradient + self.residual
        places = wanted.abs().topk(self.kept).indices
        self.residual = wanted.index_fill(0, places, 0.0)
        #: 32-bit places: half the bytes of torch's own 64-bit ones.
        return wanted[places], places.to(torch.int32)


def sum_of_all(
    values: Tensor, places: Tensor, size: int, group: Group = None
) -> Tensor:
    """What all ranks sent, added up as one dense vector."""
    p, kept = dist.get_world_size(group), len(values)
    every_value = values.new_empty(p * kept)
    every_place = places.new_empty(p * kept)
    #: Gathered, not reduced: value i of one rank belongs to another place
    #: than value i of the next.
    dist.all_gather_single(every_value, values, group=group)
    dist.all_gather_single(every_place, places, group=group)
    total = values.new_zeros(size)
    #: Rank after rank, in the same order everywhere: the same bits.
    for v, i in zip(every_value.split(kept), every_place.split(kept)):
        total[i.long()] += v
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
    """SGD in which only the largest entries travel."""
    model = task.model().to(w.device)
    parameters = list(model.parameters())
    weights = parameters_to_vector(parameters).detach()
    top_k = TopK(weights, kept=kept)
    for step in range(steps):
        x, y = task.batch(step * w.size + w.rank, local_batch)
        with span("compute", label=step, cost=3):
            loss = task.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
            grads = torch.autograd.grad(loss, parameters)
        with span("compress", label=step, cost=1):
            sent = top_k.compress(parameters_to_vector(grads))
        #: All ranks apply the same sparse sum, so the replicas stay equal
        #: although no rank has seen another's whole gradient.
        weights = weights - rate / w.size * sum_of_all(*sent, len(weights))
        vector_to_parameters(weights, parameters)
        yield Step(loss.item(), parameters)


def reference(
    w: World, task: Task, steps: int, local_batch: int, rate: float, kept: int
) -> list[Tensor]:
    """One process that keeps what each rank would not have sent."""
    model = task.model().to(w.device)
    weights = parameters_to_vector(model.parameters()).detach()
    vector_to_parameters(weights, model.parameters())  # as views of it
    sgd = torch.optim.SGD([weights], lr=rate)
    unsent = [torch.zeros_like(weights)] * w.size
    for step in range(steps):
        total = torch.zeros_like(weights)
        for r in range(w.size):
            number = step * w.size + r
            whole = unsent[r] + slope(task, model, number, local_batch)
            #: Of equal entries topk may take any, so it is asked again: a
            #: threshold would take all of them.
            largest = whole.abs().topk(kept).indices
            sent = torch.zeros_like(whole)
            sent[largest] = whole[largest]
            unsent[r] = whole - sent
            total = total + sent
        weights.grad = total / w.size
        sgd.step()
    return list(model.parameters())


def slope(task: Task, model: nn.Module, step: int, size: int) -> Tensor:
    """The gradient of one batch's mean loss, for the reference."""
    weights = list(model.parameters())
    x, y = (t.to(weights[0].device) for t in task.batch(step, size))
    loss = task.loss(model, x, y) / y.numel()
    return parameters_to_vector(torch.autograd.grad(loss, weights))


def account(w: World, steps: int, kept: int) -> tuple[Tensor, Tensor]:
    """All that a compressor was given; all it sent, and what it still has."""
    given = torch.stack(
        [w.randn(3 * kept, seed=w.rank + i * w.size) for i in range(steps)]
    )
    top_k = TopK(given[0], kept=kept)
    sent = torch.zeros_like(given[0])
    for gradient in given:
        values, places = top_k.compress(gradient)
        sent[places.long()] += values
    return given.sum(0), sent + top_k.residual


def main(
    w: World,
    *,
    steps: int = 5,
    local_batch: int = 24,
    rate: float = 0.2,
    kept: int = 50,
) -> None:
    sizes = (steps, local_batch, rate, kept)
    for task in (digits, characters):
        run = partial(train, steps=steps, local_batch=local_batch)
        with meter() as moved:
            *_, last = run(w, task, rate=rate, kept=kept)
        # Sums over ranks and steps, in another order.
        w.check(
            task.name,
            last.weights,
            partial(reference, w, task, *sizes),
            slack=8,
        )
    w.check_same("same", last.weights)
    given, accounted = account(w, steps, kept)
    w.check("identity", accounted, lambda: given, slack=steps)
    itemsize = last.weights[0].element_size()
    counts = {"calls": moved.count, "payload": moved.payload}
    report(w, given={"itemsize": itemsize}, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
