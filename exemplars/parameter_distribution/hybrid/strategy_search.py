"""Strategy search: a way to cut each layer, so that together they send least.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.hybrid.strategy_search

Source: Jia et al. 2018 (OptCNN); cost and search of Song et al. 2019 (HyPar).

A layer y = x w can be cut in three ways. All divide the work by p, but each
takes x in one layout and makes y in another: so between layers y is moved, and
later its gradient back. Where a value is whole its gradient is terms, yet to
be added, and the other way round. There and back, a move takes

    from, to    rows           columns        whole
    rows        -              2 turns        1 all-reduce
    columns     2 turns        -              1 all-reduce
    terms       1 all-reduce   1 all-reduce   2 all-reduces

and the dw of `data` 1 more. A cost concerns two neighbours: the best plan is a
best beginning and one layer more, and k^2 costs a layer decide on k^L plans.
"""

from collections.abc import Callable
from functools import cache
from itertools import count, pairwise, product

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world

SIZES = BATCH, *WIDTHS = 50, 20, 30, 20, 160, 20  # samples; features
PARTS = 10  # of samples and of features: a rank has some, or none
TAKES = dict(data="rows", filter="whole", channel="columns", loss="rows")
HOLDS = dict(data="whole", filter="columns", channel="rows", loss="rows")
MAKES = dict(data="rows", filter="columns", channel="terms")
DUAL = dict(rows="rows", columns="columns", whole="terms", terms="whole")
DIM = dict(rows=0, columns=1)
CHOICE = [[*MAKES]] * (len(WIDTHS) - 1) + [["loss"]]
Cost = Callable[[int, str, str], int]


def search(choice: list[list[str]], cost: Cost) -> tuple[int, list[str]]:
    """The least cost, and the plan that has it: a way for every layer."""
    best = {"input": (0, list[str]())}  # by the way of the layer before
    for i, ways in enumerate(choice):
        #: To what follows only its last way matters: one plan for each.
        begun, best = best.items(), {}
        for b in ways:
            best[b] = min((c + cost(i, a, b), [*p, b]) for a, (c, p) in begun)
    return min(best.values())


def traffic(i: int, before: str, way: str) -> tuple[int, int, int]:
    """For layer i: bytes that all ranks send, elements all-reduced, turned."""
    p, have, want = dist.get_world_size(), MAKES.get(before, ""), TAKES[way]
    x = BATCH * WIDTHS[i] if have else 0  # the input is read in any layout
    dw = WIDTHS[i] * WIDTHS[i + 1] if way == "data" else 0
    summed = x * ((have == "terms") + (want == "whole")) + dw
    turned = 2 * x * ({have, want} == {"rows", "columns"})
    stay = sum(len(h) ** 2 for h in torch.arange(PARTS).tensor_split(p))
    sent = 2 * (p - 1) * summed + turned - turned * stay // PARTS**2
    return 8 * sent, summed, turned


def split(x: Tensor, layout: str) -> list[Tensor]:
    """What each rank has of x in this layout."""
    p, d = dist.get_world_size(), DIM.get(layout)
    if d is None:
        return [x] * p
    parts = x.unflatten(d, (PARTS, -1)).tensor_split(p, d)
    return [part.flatten(d, d + 1) for part in parts]


def move(x: Tensor, have: str, want: str, shape: tuple[int, ...]) -> Tensor:
    """From layout to layout; the whole matrix has this shape."""
    if have == want:
        return x
    if (have, want) == ("terms", "whole"):
        return move(move(x, have, "rows", shape), "rows", want, shape)
    r, p = dist.get_rank(), dist.get_world_size()
    parcels = [part.contiguous() for part in split(x, want)]
    mine = split(x.new_empty(()).expand(shape), want)[r]
    got = [x.new_empty(part.shape) for part in split(mine, have)]
    got[r].copy_(parcels[r])
    #: In one batch: one by one, ranks would wait for each other.
    others = [(r + k) % p for k in range(1, p)]
    batch = [dist.P2POp(dist.isend, parcels[q], q) for q in others]
    batch += [dist.P2POp(dist.irecv, got[q], q) for q in others]
    batch = [message for message in batch if message.tensor.numel()]
    for work in dist.batch_isend_irecv(batch) if batch else ():
        work.wait()
    return torch.cat(got, DIM[have]) if have in DIM else sum(got[1:], got[0])


def step(plan: list[str], weights: list[Tensor], x: Tensor) -> list[Tensor]:
    """Gradients of half the outputs' squares, and the outputs."""
    have, kept = TAKES[plan[0]], list[tuple[Tensor, Tensor]]()
    for i, weight in enumerate(weights):
        x = move(x, have, TAKES[plan[i]], (BATCH, WIDTHS[i])).requires_grad_()
        with span(plan[i], label=i, cost=1):
            kept.append((x, x.tanh() @ weight.requires_grad_()))
        x, have = kept[-1][1].detach(), MAKES[plan[i]]
    found = [dx := move(x, have, TAKES["loss"], (BATCH, WIDTHS[-1]))]
    for i, way in reversed([*enumerate(plan[:-1])]):
        have, want = DUAL[TAKES[plan[i + 1]]], DUAL[MAKES[way]]
        dy = move(dx, have, want, (BATCH, WIDTHS[i + 1]))
        x, y = kept.pop()
        with span("backward", label=i, cost=2):
            #: One layer at a time: before the next, dx has to move.
            dx, dw = torch.autograd.grad(y, (x, weights[i]), dy)
        found.insert(0, move(dw, DUAL[HOLDS[way]], HOLDS[way], dw.shape))
    return found


def reference(plan: list[str], ws: list[Tensor], x: Tensor) -> list[Tensor]:
    """On one process; of gradients and outputs, this rank's."""
    for weight in ws:
        x = x.tanh() @ weight.requires_grad_()
    found = *torch.autograd.grad(x.square().sum() / 2, ws), x.detach()
    return [split(t, HOLDS[k])[dist.get_rank()] for t, k in zip(found, plan)]


def main(w: World) -> None:
    cost = cache(lambda *at: traffic(*at)[0])
    least, plan = search(CHOICE, cost)
    asked = sum(cost.cache_info()[:2])  # hits and misses
    plans = [*product(*CHOICE)]
    best = min(sum(map(cost, count(), ["input", *p], p)) for p in plans)
    x, *whole = [w.randn(*s, of_rank=0) / 5 for s in pairwise(SIZES)]
    weights = [split(t, HOLDS[k])[w.rank].clone() for t, k in zip(whole, plan)]
    found = list[Tensor]()
    memory = w.memory(parameters=lambda: weights, gradients=lambda: found[:-1])
    with memory, meter() as moved:
        found += step(plan, weights, split(x, TAKES[plan[0]])[w.rank])
    # Sums in another order, through four layers each way.
    w.check("result", found, lambda: reference(plan, whole, x), slack=64)
    w.check("optimum", x.new_tensor(least), lambda: x.new_tensor(best), 0)
    _, s, t = map(sum, zip(*map(traffic, count(), ["input", *plan], plan)))
    z = sum(v.numel() for v, way in zip(whole, plan) if way == "data")
    n, a = sum(v.numel() for v in whole) - z, BATCH * sum(WIDTHS[1:-1])
    given = dict(s=s, t=t, n=n, z=z, a=a, y=BATCH * WIDTHS[-1], c=PARTS)
    given |= dict(b=8, k=len(MAKES), l=len(WIDTHS) - 1)
    counts = dict(total=least, single=least, asked=asked, plans=len(plans))
    held = memory.live()["parameters"]
    report(w, given=given, bytes_sent=moved.bytes_sent, held=held, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
