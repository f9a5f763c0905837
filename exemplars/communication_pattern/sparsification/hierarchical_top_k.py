"""Hierarchical top-k: whole sums inside a node, the largest entries between.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.sparsification.hierarchical_top_k

Arrange the ranks in a table: a row is a node, whose links are fast, and a
column has one rank of every node, across slow links.

    1 inside    reduce-scatter along the row: each rank owns one shard of the
                sum over its node
    2 between   the k largest entries of the shard, with their places, go to
                all ranks of the column, which add up what arrives
    3 inside    all-gather of the dense shards along the row

Top-k with error feedback runs on the shard, so a residual has n/g entries
with g ranks per node, where a flat top-k keeps n on every rank. What is left
unsent is a part of the node's sum; the owner of the shard has all of it:

    updates  +  residuals, one shard per rank  =  gradients of all ranks

The g ranks of a node each send k entries to the other p/g - 1 nodes. In a
flat top-k of the same density each rank has g k entries, and a ring of all
ranks passes p - 1 such shares through every node's uplink: more than g times
as many. In return the update has fewer entries.

Source: Shi et al. 2020.
"""

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.communication_pattern.collective import hierarchical
from exemplars.communication_pattern.sparsification import top_k_error_feedback
from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Step, Task, digits


class HierarchicalTopK:
    """Sums vectors over all ranks; between nodes, only k entries per shard."""

    def __init__(self, like: Tensor, *, kept: int) -> None:
        r, p = dist.get_rank(), dist.get_world_size()
        self.row, self.column = row_and_column(r, p)
        shards = like.tensor_split(len(self.row))
        if not 0 < kept <= len(shards[-1]):
            raise ValueError(f"kept = {kept}: a shard has {len(shards[-1])}")
        #: A reduce-scatter on a ring leaves place i with the shard i + 1.
        self.owned = (self.row.index(r) + 1) % len(self.row)
        #: For one shard, of the sum over the node: n/g residual entries.
        mine = shards[self.owned]
        self.top_k = top_k_error_feedback.TopK(mine, kept=kept)

    def sum_of_all(self, x: Tensor) -> None:
        """Replace x by the sum of what the nodes send, on all ranks."""
        shards = x.tensor_split(len(self.row))
        with span("inside: reduce"):
            mine = hierarchical.reduce_scatter(shards, self.row)
        #: Nothing is dropped before this: the node's sum is dense, and only
        #: here does the residual come in.
        values, places = self.top_k.compress(mine)
        with span("between"):
            every_value = self.from_column(values)
            every_place = self.from_column(places)
        mine.zero_()
        #: All owners of this shard add in the same order: the same bits.
        for v, i in zip(every_value, every_place):
            mine.index_add_(0, i.long(), v)
        with span("inside: gather"):
            hierarchical.all_gather(shards, self.row)

    def from_column(self, own: Tensor) -> tuple[Tensor, ...]:
        """The tensors of all owners of this shard."""
        nodes = len(self.column)
        #: Zeros are valid places, even in a dry run, where nothing arrives.
        every = own.new_zeros(nodes, len(own))
        every[(self.column.index(dist.get_rank()) + 1) % nodes] = own
        #: Values and places travel as two tensors: in one buffer of bytes,
        #: a row of 12 k bytes would begin between two 8-byte numbers.
        hierarchical.all_gather(every.unbind(), self.column)
        return every.unbind()


def row_and_column(r: int, p: int) -> tuple[list[int], list[int]]:
    """The ranks of this rank's node, and its counterparts in all nodes."""
    #: At least as many nodes as ranks per node; a prime p has p nodes of 1.
    table = torch.arange(p).view(-1, hierarchical.nodes_of(p))
    node, place = divmod(r, table.shape[1])
    return table[node].tolist(), table[:, place].tolist()


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    local_batch: int,
    rate: float,
    kept: int,
) -> Iterator[Step]:
    """SGD in which only the largest entries travel between nodes."""
    model = task.model().to(w.device)
    parameters = list(model.parameters())
    weights = parameters_to_vector(parameters).detach()
    top_k = HierarchicalTopK(weights, kept=kept)
    for step in range(steps):
        x, y = task.batch(step * w.size + w.rank, local_batch)
        with span("compute", label=step, cost=3):
            loss = task.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
            grads = torch.autograd.grad(loss, parameters)
        total = parameters_to_vector(grads)
        top_k.sum_of_all(total)
        weights = weights - rate / w.size * total
        vector_to_parameters(weights, parameters)
        yield Step(loss.item(), parameters)


def reference(
    w: World, node_size: int, steps: int, batch: int, rate: float, kept: int
) -> list[Tensor]:
    """One process that keeps what each node would not have sent."""
    model = digits.model().to(w.device)
    weights = parameters_to_vector(model.parameters()).detach()
    slope = top_k_error_feedback.slope
    unsent = weights.new_zeros(w.size // node_size, len(weights))
    for step in range(steps):
        for r in range(w.size):
            number = step * w.size + r
            unsent[r // node_size] += slope(digits, model, number, batch)
        sent = torch.zeros_like(unsent)
        #: Of all nodes at once: one shard of every node's sum.
        shards = (t.tensor_split(node_size, dim=1) for t in (unsent, sent))
        for whole, part in zip(*shards):
            largest = whole.abs().topk(kept, dim=1).indices
            part.scatter_(1, largest, whole.gather(1, largest))
        unsent -= sent
        weights = weights - rate / w.size * sent.sum(0)
        vector_to_parameters(weights, model.parameters())
    return list(model.parameters())


def main(
    w: World,
    *,
    elements: int = 2003,
    steps: int = 5,
    local_batch: int = 24,
    rate: float = 0.2,
    kept: int = 51,
) -> None:
    node_size = hierarchical.nodes_of(w.size)
    run = partial(train, steps=steps, local_batch=local_batch, rate=rate)
    *_, last = run(w, digits, kept=kept)
    sizes = (node_size, steps, local_batch, rate, kept)
    # Sums over ranks and steps, in another order.
    w.check("digits", last.weights, partial(reference, w, *sizes), slack=8)
    w.check_same("same", last.weights)
    # Whole numbers, whose sums do not round; a prime, so shards are uneven.
    every = (w.randn(w.size, steps, elements, seed=0) * 2**30).round()
    updates = every[w.rank].clone()
    top_k = HierarchicalTopK(updates[0], kept=kept)
    with meter() as moved:
        for update in updates:
            top_k.sum_of_all(update)
    unsent, residual = torch.zeros_like(updates[0]), top_k.top_k.residual
    #: Every rank holds one shard of what its node has not sent.
    unsent.tensor_split(len(top_k.row))[top_k.owned].copy_(residual)
    dist.all_reduce(unsent)
    total = updates.sum(0) + unsent
    w.check("telescopes", total, lambda: every.sum((0, 1)), slack=0)
    inside = sum(moved.sent_to.get(q, 0) for q in top_k.row)
    given = {"itemsize": total.element_size(), "node_size": node_size}
    counts = {"inside": inside, "between": moved.bytes_sent - inside}
    report(w, given=given, residual=residual.nbytes, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
