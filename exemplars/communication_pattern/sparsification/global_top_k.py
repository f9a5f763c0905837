"""Global top-k: merge the ranks' largest entries, and keep k after each merge.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.sparsification.global_top_k

Each rank picks the k largest entries of its gradient. On the way up a tree, a
rank adds the k entries of a child to its own and keeps the k largest sums. On
the way down, all ranks receive the k entries that the root has kept:

    up      4 -> 0   5 -> 1   6 -> 2   7 -> 3        merge, keep k
            2 -> 0   3 -> 1                          merge, keep k
            1 -> 0                                   merge, keep k
    down    the same edges, backwards                the final k

Every message has k values and k places, and a rank sends at most lg p of
them. Gathering everyone's entries costs each rank p - 1 such messages. But
merges drop entries, which have to go back into a residual. For each entry
that a rank has sent up, there are two cases:

    its place is not among the final k      the rank takes the entry back
    its place is, but a part of the sum     the rank that dropped this part
    was dropped in some branch              keeps it

The authors' code has the first case alone, and loses the parts of the other.
With both cases nothing is lost:

    sum of updates  +  all residuals  =  sum of all gradients

Source: Shi et al. 2019, gTop-k S-SGD; the second case is our addition.
"""

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.communication_pattern.collective.tree_all_reduce import tree
from exemplars.communication_pattern.sparsification import top_k_error_feedback
from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Step, Task, digits


class GlobalTopK(top_k_error_feedback.TopK):
    """A compressor as top-k is, whose entries are merged to k for all."""

    def sum_of_all(self, values: Tensor, places: Tensor) -> Tensor:
        """The k entries that survive all merges, as one dense vector."""
        r, size = dist.get_rank(), len(self.residual)
        parent, children = tree(r, dist.get_world_size())
        own = merged = spread(values, places, size)
        dropped = torch.zeros_like(own)
        for child in reversed(children):
            with span("merge", label=child, cost=1):
                #: Up to 2k entries meet here, and k of them go on.
                both = merged + spread(*receive(child, like=values), size)
                places = both.abs().topk(self.kept).indices.to(torch.int32)
                values = both[places.long()]
                merged = spread(values, places, size)
                dropped = dropped + (both - merged)
        if r > 0:
            send(values, places, parent)
            #: The root's entries replace those of the branch: all ranks end
            #: with the same bits.
            values, places = receive(parent, like=values)
        for child in children:
            send(values, places, child)
        chosen = spread(torch.ones_like(values), places, size) > 0
        #: At a chosen place, everyone's entries have arrived but for those
        #: that were dropped here; elsewhere, nobody's have.
        self.residual = self.residual + torch.where(chosen, dropped, own)
        return spread(values, places, size)


def spread(values: Tensor, places: Tensor, size: int) -> Tensor:
    """The entries at their places, in a dense vector of zeros."""
    return values.new_zeros(size).index_add(0, places.long(), values)


def send(values: Tensor, places: Tensor, to: int) -> None:
    """Values and places as one message."""
    #: As bytes they fit into one tensor: one round instead of two.
    parts = values.view(torch.uint8), places.view(torch.uint8)
    dist.send(torch.cat(parts), to)


def receive(source: int, *, like: Tensor) -> tuple[Tensor, Tensor]:
    """As many values as these, and their places."""
    #: Zeros are valid places, even in a dry run, where nothing arrives.
    message = like.new_zeros(like.nbytes + 4 * len(like), dtype=torch.uint8)
    dist.recv(message, source)
    values, places = message.split([like.nbytes, 4 * len(like)])
    return values.view(like.dtype), places.view(torch.int32)


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    local_batch: int,
    rate: float,
    kept: int,
) -> Iterator[Step]:
    """SGD in which each update has k entries."""
    model = task.model().to(w.device)
    parameters = list(model.parameters())
    weights = parameters_to_vector(parameters).detach()
    top_k = GlobalTopK(weights, kept=kept)
    for step in range(steps):
        x, y = task.batch(step * w.size + w.rank, local_batch)
        with span("compute", label=step, cost=3):
            loss = task.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
            grads = torch.autograd.grad(loss, parameters)
        sent = top_k.compress(parameters_to_vector(grads))
        weights = weights - rate / w.size * top_k.sum_of_all(*sent)
        vector_to_parameters(weights, parameters)
        yield Step(loss.item(), parameters)


def reference(
    w: World, task: Task, steps: int, local_batch: int, rate: float, kept: int
) -> list[Tensor]:
    """One process that merges all ranks' entries and keeps their residuals."""
    model = task.model().to(w.device)
    weights = parameters_to_vector(model.parameters()).detach()
    unsent = [torch.zeros_like(weights) for _ in range(w.size)]
    slope = top_k_error_feedback.slope
    for step in range(steps):
        for r in range(w.size):
            unsent[r] += slope(task, model, step * w.size + r, local_batch)
        update, *unsent = merged_by_one(unsent, kept)
        weights = weights - rate / w.size * update
        vector_to_parameters(weights, model.parameters())
    return list(model.parameters())


def merged_by_one(every: list[Tensor], kept: int) -> list[Tensor]:
    """The update, and what each rank still has; for the reference."""
    sums = [crop(x, kept) for x in every]
    rest = [torch.zeros_like(x) for x in every]
    while len(sums) > 1:
        #: The list is folded: its upper half is added to the lower one.
        half = 1 << (len(sums) - 1).bit_length() - 1
        for i, upper in enumerate(sums[half:]):
            both = sums[i] + upper
            sums[i] = crop(both, kept)
            rest[i] = rest[i] + (both - sums[i])
        del sums[half:]
    chosen = sums[0] != 0
    pairs = zip(every, rest)
    left = [x - (crop(x, kept) - part) * chosen for x, part in pairs]
    return [sums[0], *left]


def crop(x: Tensor, kept: int) -> Tensor:
    """Its k largest entries among zeros; for the reference."""
    return torch.where(x.abs() >= x.abs().sort().values[-kept], x, 0.0)


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
    # Gradients are added to residuals in another order.
    w.check("digits", last.weights, truth, slack=8)
    w.check_same("same", last.weights)
    #: Whole numbers, whose sums do not round: nothing is lost, to the bit.
    every = (w.randn(w.size, steps, 3 * kept, seed=0) * 2**30).round()
    top_k = GlobalTopK(every[0, 0], kept=kept)
    updates = [top_k.sum_of_all(*top_k.compress(g)) for g in every[w.rank]]
    dist.all_reduce(top_k.residual)
    total = sum(updates, top_k.residual)
    w.check("identity", total, lambda: every.sum((0, 1)), slack=0)
    nonzeros = max(int(update.count_nonzero()) for update in updates)
    counts = {"bytes_sent": moved.bytes_sent, "nonzeros": nonzeros}
    report(w, given={"itemsize": every.element_size()}, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
