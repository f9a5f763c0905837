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

from collections.abc import Callable
from itertools import count, pairwise, product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world

Cost = Callable[[int, str, str], int]  # of a layer, the way before, its way

TAKES = {"data": "rows", "filter": "whole", "channel": "columns"}
TAKES |= {"loss": "rows"}  # comes last, in any plan
HOLDS = {"data": "whole", "filter": "columns", "channel": "rows"}
MAKES = {"data": "rows", "filter": "columns", "channel": "terms"}
DIM = {"rows": 0, "columns": 1}
#: The layout of the gradient. Each rank uses a whole value for its own part
#: of the result, so the gradient comes in terms; and the reverse.
DUAL = {"whole": "terms", "terms": "whole"}


def search(choices: list[list[str]], cost: Cost) -> tuple[int, list[str]]:
    """The least cost, and a plan that has it: a way for every layer."""
    best: dict[str, tuple[int, list[str]]] = {"input": (0, [])}
    for layer, ways in enumerate(choices):
        #: What follows depends on the last way only, so one plan for each is
        #: enough: a dearer beginning can never become the better one.
        longer = {}
        for way in ways:
            plans = [
                (spent + cost(layer, before, way), [*plan, way])
                for before, (spent, plan) in best.items()
            ]
            longer[way] = min(plans)
        best = longer
    return min(best.values())


def traffic(sizes: list[int], layer: int, before: str, way: str) -> int:
    """Bytes that a rank sends if this layer is cut in this way."""
    p, (batch, *widths) = dist.get_world_size(), sizes
    x, want = batch * widths[layer], TAKES[way]
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
        #: The other ways see all samples: the gradient of their part is done.
        if way == "data":
            dist.all_reduce(dw)
    return [*grads, y.detach()]


def reference(x: Tensor, weights: list[Tensor]) -> list[Tensor]:
    """One process: the gradients, and the output."""
    leaves = [t.detach().requires_grad_() for t in weights]
    y = x
    for leaf in leaves:
        y = y.tanh() @ leaf
    return [*torch.autograd.grad(y.square().sum() / 2, leaves), y.detach()]


def cheapest(choices: list[list[str]], cost: Cost) -> Tensor:
    """The truth about the search: all plans, one after the other."""
    plans = product(*choices)
    totals = [sum(map(cost, count(), ["input", *way], way)) for way in plans]
    return torch.tensor(min(totals))


def main(w: World, *, batch: int = 48, width: int = 24) -> None:
    fits = batch % w.size == width % w.size == 0
    w.require(fits, f"{batch} x {width}: not into {w.size} equal parts")
    widths = [width, width, 4 * width, width, width]
    asked: list[str] = []

    def cost(layer: int, before: str, way: str) -> int:
        asked.append(way)
        return traffic([batch, *widths], layer, before, way)

    choices = [[*HOLDS]] * 4 + [["loss"]]
    least, (*plan, _) = search(choices, cost)
    costs = len(asked)
    shapes = [*pairwise(widths)]
    whole = [w.randn(*shape, seed=i) / 5 for i, shape in enumerate(shapes)]
    x = w.randn(batch, width, seed=0) / 5
    layouts = [*(HOLDS[way] for way in plan), TAKES["loss"]]
    weights = [own_part(t, layout) for t, layout in zip(whole, layouts)]
    with w.memory(parameters=lambda: weights), meter() as moved:
        parts = step(plan, weights, own_part(x, TAKES[plan[0]]))
    # Put together again, to be compared with those of one process.
    found = [move(t, layout, "whole") for t, layout in zip(parts, layouts)]
    # Sums in another order, through four layers each way.
    w.check("result", found, lambda: reference(x, whole), slack=64)
    best = torch.tensor(least)
    w.check("optimum", best, lambda: cheapest(choices, cost), slack=0)
    w.check("cost", torch.tensor(moved.wire), lambda: best, slack=0)
    given = {"elements": sum(a * b for a, b in shapes), "itemsize": 8}
    given |= {"inputs": sum(widths[1:-1]), "outputs": width}
    given |= {"ways": len(HOLDS), "layers": len(shapes)}
    report(w, given=given, bytes_sent=moved.wire, asked=costs)


if __name__ == "__main__":
    with world() as w:
        main(w)
