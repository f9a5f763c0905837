r"""Strategy search: cut each layer its own way, so that a step sends least.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.hybrid.strategy_search

A layer y = x w can be divided among p ranks in three ways. Each of them takes
x in one layout and makes y in another:

    way        takes x    holds w    makes y
    data       rows       whole      rows
    filter     whole      columns    columns
    channel    columns    rows       terms, still to be summed

All three divide the work by p; they differ in traffic. Between two layers y
moves from the layout it has to the one that is wanted, and backward its
gradient moves back. Both moves together cost

    from \ to   rows           columns        whole
    rows        -              2 turns        1 all-reduce
    columns     2 turns        -              1 all-reduce
    terms       1 all-reduce   1 all-reduce   2 all-reduces

of y, and the way `data` costs one all-reduce of w's gradient as well.

No layer has a best way by itself: channels after filters are free, channels
after channels are not. But a cost concerns only two neighbors. So the best
plan that ends in some way extends a best plan of the layers before, and
k^2 costs per layer settle the choice among k^L plans.

Source: Jia et al. 2018 (OptCNN); cost and search of Song et al. 2019 (HyPar).
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import chain, count, pairwise, product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world

Cost = Callable[[int, str, str], int]  # of a layer, the way before, its way

TAKES = {"data": "rows", "filter": "whole", "channel": "columns"}
HOLDS = {"data": "whole", "filter": "columns", "channel": "rows"}
MAKES = {"data": "rows", "filter": "columns", "channel": "terms"}
#: The loss is the last way of any plan. It takes the output by rows.
TAKES["loss"] = HOLDS["loss"] = "rows"
DIM = {"rows": 0, "columns": 1}
#: The layout of the gradient. Each rank uses a whole value for its own part
#: of the result, so the gradient comes in terms; and the reverse.
DUAL = {"whole": "terms", "terms": "whole"}
#: Together these plans make every move that a plan can need.
OTHERS = [["data", *["channel"] * 2, "filter", "loss"]]
OTHERS += [["data", *["filter"] * 2, "channel", "loss"]]


def search(layers: int, cost: Cost) -> tuple[int, list[str]]:
    """The least cost, and a plan that has it: a way for every layer."""
    best: dict[str, tuple[int, list[str]]] = {"input": (0, [])}

    def extended(layer: int, way: str) -> tuple[int, list[str]]:
        return min(
            (spent + cost(layer, before, way), [*plan, way])
            for before, (spent, plan) in best.items()
        )

    for layer in range(layers):
        #: What follows depends on the last way only, so one plan for each is
        #: enough: a dearer beginning can never become the better one.
        best = {way: extended(layer, way) for way in MAKES}
    return extended(layers, "loss")


def traffic(sizes: list[int], layer: int, before: str, way: str) -> int:
    """Bytes that a rank sends if this layer is cut in this way."""
    p, (batch, *widths), want = dist.get_world_size(), sizes, TAKES[way]
    x = batch * widths[layer]
    #: The input can be read in any layout: before the first, nothing moves.
    have = MAKES.get(before, want)
    #: A gather forward and its reduce-scatter backward are together as much
    #: as one all-reduce.
    summed = x * ((have == "terms") + (have != want == "whole"))
    turned = 2 * x * ({have, want} == {"rows", "columns"})
    if way == "data":
        summed += widths[layer] * widths[layer + 1]
    return 8 * (p - 1) * (2 * p * summed + turned) // p**2


def move(x: Tensor, have: str, want: str) -> Tensor:
    """From one layout to another."""
    p = dist.get_world_size()
    if have == want:
        return x.view_as(x)
    if (have, want) == ("terms", "whole"):
        #: An all-reduce is a reduce-scatter and a gather.
        return move(move(x, have, "rows"), "rows", want)
    if want == "whole":
        every = x.new_empty(p * len(x), *x.shape[1:])
        dist.all_gather_single(every, x.contiguous())
        return torch.cat(every.chunk(p), DIM[have])
    parts = torch.cat(x.chunk(p, DIM[want]))
    if have == "terms":
        own = parts.new_empty(len(parts) // p, *parts.shape[1:])
        dist.reduce_scatter_single(own, parts)
        return own
    #: A turn: a rank has 1/p of the matrix, and keeps 1/p of that.
    arrived = torch.empty_like(parts)
    dist.all_to_all_single(arrived, parts)
    return torch.cat(arrived.chunk(p), DIM[have])


class Move(torch.autograd.Function):
    """Forward one way, backward the other, in the layouts of gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, have: str, want: str) -> Tensor:
        ctx.back = DUAL.get(want, want), DUAL.get(have, have)
        return move(x, have, want)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor, None, None]:
        return move(dx, *ctx.back), None, None


def own_part(t: Tensor, layout: str) -> Tensor:
    """A copy of what this rank has of a matrix in this layout."""
    if layout in DIM:
        t = t.chunk(dist.get_world_size(), DIM[layout])[dist.get_rank()]
    return t.clone()


def step(plan: list[str], weights: list[Tensor], x: Tensor) -> list[Tensor]:
    """Gradients of half the output's sum of squares, and its rows."""
    layout = TAKES[plan[0]]
    for way, weight in zip(plan, weights):
        x = Move.apply(x, layout, TAKES[way])
        with span(way, cost=1):
            x = x.tanh() @ weight.requires_grad_()
        layout = MAKES[way]
    y: Tensor = Move.apply(x, layout, TAKES["loss"])
    grads = torch.autograd.grad(y.square().sum() / 2, weights)
    for way, dw in zip(plan, grads):
        # The other ways see all samples: the gradient of their part is done.
        if way == "data":
            dist.all_reduce(dw)
    return [*grads, y.detach()]


def reference(x: Tensor, weights: list[Tensor]) -> list[Tensor]:
    """One process: the gradients, and the output."""
    leaves = [t.detach().requires_grad_() for t in weights]
    for leaf in leaves:
        x = x.tanh() @ leaf
    return [*torch.autograd.grad(x.square().sum() / 2, leaves), x.detach()]


def prices(plans: Iterable[Sequence[str]], cost: Cost) -> list[int]:
    """What each plan costs, layer by layer."""
    return [sum(map(cost, count(), ["input", *way], way)) for way in plans]


def run(
    w: World, plan: list[str], whole: list[Tensor], x: Tensor
) -> tuple[list[Tensor], float]:
    """One step under a plan: its results, put together, and bytes sent."""
    layouts = [HOLDS[way] for way in plan]
    weights = [own_part(t, layout) for t, layout in zip(whole, layouts)]
    counted = meter(shown=plan not in OTHERS)
    with w.memory(parameters=lambda: weights), counted as moved:
        parts = step(plan, weights, own_part(x, TAKES[plan[0]]))
    found = [move(t, layout, "whole") for t, layout in zip(parts, layouts)]
    return found, moved.wire


def main(w: World, *, batch: int = 48, width: int = 24) -> None:
    fits = batch % w.size == width % w.size == 0
    w.require(fits, f"{batch} x {width}: not into {w.size} equal parts")
    widths = [width, 2 * width, 4 * width, width, width]
    # Each cost is computed once, so the cache counts them.
    cost = cache(partial(traffic, [batch, *widths]))
    least, plan = search(4, cost)
    asked = cost.cache_info().misses
    x = w.randn(batch, width, seed=0) / 5
    whole = [w.randn(*s, seed=i) / 5 for i, s in enumerate(pairwise(widths))]
    #: The best plan may have no turn: two others make all the other moves.
    found, sent = zip(*(run(w, p, whole, x) for p in (*OTHERS, plan)))
    # Sums in another order, through four layers each way.
    truth = reference(x, whole) * len(found)
    w.check("result", [*chain(*found)], lambda: truth, slack=64)
    expected = torch.tensor([*prices(OTHERS, cost), least])
    w.check("cost", torch.tensor(sent), lambda: expected, slack=0)
    #: The truth about the search: all plans, one after the other.
    tried = prices(product(*[MAKES] * 4, ["loss"]), cost)
    best, cheapest = torch.tensor(least), torch.tensor(min(tried))
    w.check("optimum", best, lambda: cheapest, slack=0)
    given = {"elements": sum(t.numel() for t in whole), "itemsize": 8}
    given |= {"inputs": sum(widths[1:-1]), "outputs": width}
    given |= {"ways": len(MAKES), "layers": len(whole)}
    report(w, given=given, bytes_sent=sent[-1], asked=asked)


if __name__ == "__main__":
    with world() as w:
        main(w)
