"""How each collective of the table is called: a tensor in, a step to repeat.

All kinds take the same input, a tensor x of one size on every rank, cut into p parts
by `tensor_split`. What a step returns:

    all-reduce       the sum of x over the ranks
    reduce-scatter   this rank's part of that sum
    all-gather       part 0 of rank 0's x, part 1 of rank 1's, and so on
    all-to-all       this rank's part of every rank's x, by rank
    broadcast        rank 0's x
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from atlas.views.collectives import PIECES
from exemplars.communication_pattern.collective import (
    all_to_all,
    binomial_broadcast,
    bruck_all_to_all,
    double_binary_tree,
    halving_doubling,
    hierarchical,
    invariant_reduction,
    recursive_doubling,
    reduce_scatter_all_gather,
    ring_all_reduce,
    scatter_all_gather_broadcast,
    tree_all_reduce,
    two_level_all_to_all,
)
from exemplars.communication_pattern.transport import shared_memory_all_reduce

Step = Callable[[], Tensor]
Make = Callable[[Tensor, int], Step]  # of a tensor, and the ranks in a node


def _in_place(reduce: Callable[[Tensor], object]) -> Make:
    def make(x: Tensor, node_size: int) -> Step:
        def step() -> Tensor:
            reduce(x)
            return x

        return step

    return make


def _part(x: Tensor) -> Tensor:
    """This rank's part of x."""
    return x.view(-1).tensor_split(dist.get_world_size())[dist.get_rank()]


def _double_binary_tree(x: Tensor) -> None:
    double_binary_tree.all_reduce(x, PIECES)


def _hierarchical(x: Tensor, node_size: int) -> Step:
    r, p = dist.get_rank(), dist.get_world_size()
    node, place = divmod(r, node_size)
    row = [node * node_size + q for q in range(node_size)]
    column = list(range(place, p, node_size))

    def step() -> Tensor:
        hierarchical.all_reduce(x, row, column)
        return x

    return step


def _both_halves(x: Tensor) -> None:
    shard = reduce_scatter_all_gather.reduce_scatter(x)
    reduce_scatter_all_gather.all_gather(shard, x)


def _shared_memory(x: Tensor, node_size: int) -> Step:
    file = shared_memory_all_reduce.agreed_file(x.device)
    rows = shared_memory_all_reduce.shared_rows(file, x)

    def step() -> Tensor:
        shared_memory_all_reduce.all_reduce(x, rows)
        return x

    return step


def _gloo_reduce_scatter(x: Tensor, node_size: int) -> Step:
    part = torch.empty_like(_part(x))

    def step() -> Tensor:
        dist.reduce_scatter_single(part, x.view(-1))
        return part

    return step


def _pairwise_reduce_scatter(x: Tensor, node_size: int) -> Step:
    return partial(reduce_scatter_all_gather.reduce_scatter, x)


def _ring_reduce_scatter(x: Tensor, node_size: int) -> Step:
    """The ring leaves chunk i + 1 with place i: so rank r has place r - 1."""
    p = dist.get_world_size()
    ring = [(i + 1) % p for i in range(p)]
    chunk = x.view(-1).tensor_split(p)
    return partial(hierarchical.reduce_scatter, chunk, ring)


def _gloo_all_gather(x: Tensor, node_size: int) -> Step:
    whole, part = torch.empty_like(x), _part(x).clone()

    def step() -> Tensor:
        dist.all_gather_single(whole.view(-1), part)
        return whole

    return step


def _pairwise_all_gather(x: Tensor, node_size: int) -> Step:
    whole, part = torch.empty_like(x), _part(x).clone()

    def step() -> Tensor:
        reduce_scatter_all_gather.all_gather(part, whole)
        return whole

    return step


def _ring_all_gather(x: Tensor, node_size: int) -> Step:
    p = dist.get_world_size()
    ring = [(i + 1) % p for i in range(p)]
    chunk = x.view(-1).tensor_split(p)

    def step() -> Tensor:
        hierarchical.all_gather(chunk, ring)
        return x

    return step


def _gloo_all_to_all(x: Tensor, node_size: int) -> Step:
    into = torch.empty_like(x)

    def step() -> Tensor:
        dist.all_to_all_single(into, x)
        return into

    return step


def _all_to_all(x: Tensor, node_size: int) -> Step:
    r, p = dist.get_rank(), dist.get_world_size()
    blocks = list(x.view(-1).tensor_split(p))
    into = torch.empty(p * len(blocks[r]), dtype=x.dtype, device=x.device)
    places = list(into.view(p, -1))

    def step() -> Tensor:
        all_to_all.all_to_all(blocks, places)
        return into

    return step


def _gloo_broadcast(x: Tensor) -> None:
    dist.broadcast(x, src=0)


def _binomial_broadcast(x: Tensor, node_size: int) -> Step:
    return partial(binomial_broadcast.broadcast, x)


def _scatter_all_gather(x: Tensor, node_size: int) -> Step:
    return partial(scatter_all_gather_broadcast.broadcast, x)


def _bruck_all_to_all(x: Tensor, node_size: int) -> Step:
    return partial(bruck_all_to_all.all_to_all, x.view(-1))


def _two_level_all_to_all(x: Tensor, node_size: int) -> Step:
    return partial(two_level_all_to_all.all_to_all, x.view(-1), node_size)


def _invariant(x: Tensor, node_size: int) -> Step:
    """One leaf on every rank: a tree over the ranks, whose order never changes."""
    leaves = dist.get_world_size()
    return partial(invariant_reduction.all_reduce, x.unsqueeze(0), leaves)


#: By the names of the table.
CALLS: dict[str, Make] = {
    "gloo all-reduce": _in_place(dist.all_reduce),
    "ring-all-reduce": _in_place(ring_all_reduce.ring_all_reduce),
    "halving-doubling": _in_place(halving_doubling.all_reduce),
    "recursive-doubling": _in_place(recursive_doubling.all_reduce),
    "tree-all-reduce": _in_place(tree_all_reduce.all_reduce),
    "double-binary-tree": _in_place(_double_binary_tree),
    "hierarchical": _hierarchical,
    "reduce-scatter-all-gather": _in_place(_both_halves),
    "shared-memory-all-reduce": _shared_memory,
    "invariant-reduction": _invariant,
    "gloo reduce-scatter": _gloo_reduce_scatter,
    "pairwise reduce-scatter": _pairwise_reduce_scatter,
    "ring reduce-scatter": _ring_reduce_scatter,
    "gloo all-gather": _gloo_all_gather,
    "pairwise all-gather": _pairwise_all_gather,
    "ring all-gather": _ring_all_gather,
    "gloo all-to-all": _gloo_all_to_all,
    "all-to-all": _all_to_all,
    "bruck-all-to-all": _bruck_all_to_all,
    "two-level-all-to-all": _two_level_all_to_all,
    "gloo broadcast": _in_place(_gloo_broadcast),
    "binomial-broadcast": _binomial_broadcast,
    "scatter-all-gather-broadcast": _scatter_all_gather,
}
