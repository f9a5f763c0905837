"""Dropless experts: every choice of the gate is computed, and no padding.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.expert_and_embedding.dropless_experts

With seats of fixed number, expert parallelism drops tokens where a gate favors
an expert, and sends padding where it does not. Without seats, messages are as
long as they need to be, and so are the experts' products:

    sort       choices by expert, so each rank's rows lie side by side
    counts     all-to-all: how many rows come, from whom, for which expert
    dispatch   all-to-all of so many rows
    experts    grouped products: each expert on its rows, be it 1000 or none
    combine    all-to-all with the same sizes, the other way

To be sure that none is dropped, fixed seats would need C = N for each of the
E experts, E N rows. Here N K rows leave each rank, whatever the gate says.
How many arrive, the gate decides: if all choose the experts of one rank, that
one computes everything, and the others wait. Nothing is lost but time.

    N tokens of this rank   K choices   E experts   D width

Source: Gale et al. 2023 (MegaBlocks), sections 3 and 4.
"""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world

#: The gate (D, E), whole on every rank, and both matrices of some experts:
#: (experts, D, hidden) and (experts, hidden, D).
Weights = tuple[Tensor, Tensor, Tensor]


class Exchange(torch.autograd.Function):
    """An all-to-all of uneven parts, and the same one back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *sizes: list[int]) -> Tensor:
        ctx.sizes = sizes
        return swap(x, *sizes)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        #: What came from rank q has its gradient sent to rank q.
        return swap(dy, *reversed(ctx.sizes)), None, None


def swap(x: Tensor, send: list[int], receive: list[int]) -> Tensor:
    """send[q] rows go to rank q, receive[q] come from it."""
    arrived = x.new_empty(sum(receive), x.shape[1])
    with span("exchange"):
        dist.all_to_all_single(arrived, x.contiguous(), receive, send)
    return arrived


class Route(NamedTuple):
    """Where a rank's choices go, and what comes to its experts."""

    order: Tensor  # the choices, sorted by expert
    send: list[int]  # rows to each rank
    receive: list[int]  # rows from each rank
    blocks: list[int]  # the same by rank, then by my experts


def plan(chosen: Tensor, experts: int) -> Route:
    """Sort the choices by expert, and tell each rank what will come."""
    p = dist.get_world_size()
    counts = chosen.bincount(minlength=experts).view(p, -1)
    arriving = torch.empty_like(counts)
    #: A few numbers first: nobody knows what the others' gates have chosen.
    dist.all_to_all_single(arriving, counts)
    #: Sizes of messages are the host's business: a GPU is waited for here.
    send, receive = counts.sum(1).tolist(), arriving.sum(1).tolist()
    #: Which of an expert's rows comes first makes no difference.
    order = chosen.argsort()
    return Route(order, send, receive, arriving.flatten().tolist())


def grouped(
    rows: Tensor, sizes: list[int], up: Tensor, down: Tensor
) -> Tensor:
    """Each of my experts on its own rows, from all ranks."""
    blocks, local = list(rows.split(sizes)), len(up)
    for e in range(local):
        #: Rows came by rank. Those of expert e are every local-th block.
        mine = torch.cat(blocks[e::local])
        with span("expert", label=e, cost=len(mine)):
            done = torch.tanh(mine @ up[e]) @ down[e]
        blocks[e::local] = done.split(sizes[e::local])
    return torch.cat(blocks)


def moe(x_ND: Tensor, taste_NE: Tensor, weights: Weights, k: int) -> Tensor:
    """A layer of experts without seats: each token has all its K choices."""
    gate_DE, up, down = weights
    like_NE = (x_ND @ gate_DE + taste_NE).softmax(1)
    weight_NK, expert_NK = like_NE.topk(k)
    route = plan(expert_NK.flatten(), gate_DE.shape[1])
    rows = x_ND[route.order // k]
    there = Exchange.apply(rows, route.send, route.receive)
    done = grouped(there, route.blocks, up, down)
    home = Exchange.apply(done, route.receive, route.send)
    #: Back in the order of the tokens, K rows for each.
    each = torch.empty_like(home).index_copy(0, route.order, home)
    return (weight_NK[..., None] * each.view(*weight_NK.shape, -1)).sum(1)


def parameters(w: World, ranks: range, sizes: tuple[int, int, int]) -> Weights:
    """The gate, and the experts of these ranks."""
    local, width, hidden = sizes
    gate = w.randn(width, local * w.size, seed=0) / width**0.5
    up = torch.cat([w.randn(local, width, hidden, seed=r) for r in ranks])
    down = torch.cat([w.randn(local, hidden, width, seed=r) for r in ranks])
    return gate.requires_grad_(), up.requires_grad_(), down.requires_grad_()


def reference(
    w: World, shape: torch.Size, tastes: Tensor, whole: Weights, k: int
) -> list[Tensor]:
    """One process, all experts on all tokens: output, gradients of mine."""
    xs = [w.randn(*shape, seed=r).requires_grad_() for r in range(w.size)]
    tokens, (gate, up, down) = torch.cat(xs), whole
    like = (tokens @ gate + tastes).softmax(1)
    liked = like * (like >= like.sort(1).values[:, -k, None])
    y = torch.zeros_like(tokens)
    for e, weight in enumerate(liked.T):
        y = y + weight[:, None] * (torch.tanh(tokens @ up[e]) @ down[e])
    slopes = torch.autograd.grad(y.square().sum(), [xs[w.rank], *whole])
    experts = (s.tensor_split(w.size)[w.rank] for s in slopes[2:])
    mine = y.detach().tensor_split(w.size)[w.rank]
    return [mine, *slopes[:2], *experts]


def preferred(
    w: World, tokens: int, experts: int, k: int
) -> dict[str, Tensor]:
    """What all ranks' tokens like beside the gate, for three cases."""
    free = torch.zeros(tokens, experts, dtype=torch.double, device=w.device)
    chosen = torch.arange(tokens * k, device=w.device).view(tokens, k)
    even = free.scatter(1, chosen % experts, 12)
    return {"free": free, "one": free + even[0], "even": even}


def check(
    w: World, tastes: Tensor, sizes: tuple[int, int, int], k: int, name: str
) -> dict[str, int]:
    """One layer, forward and backward; what this rank sent and computed."""
    taste = tastes.chunk(w.size)[w.rank]
    x = w.randn(len(taste), sizes[1], seed=w.rank).requires_grad_()
    mine = parameters(w, range(w.rank, w.rank + 1), sizes)
    grads: list[Tensor] = []
    memory = w.memory(parameters=lambda: [*mine], gradients=lambda: grads)
    with memory, meter(shown=name != "free") as moved:
        y = moe(x, taste, mine, k)
        grads += torch.autograd.grad(y.square().sum(), [x, *mine])
    #: Every rank has the gate, as in data parallelism; an expert has one home.
    dist.all_reduce(grads[1])
    whole = parameters(w, range(w.size), sizes)
    truth = reference(w, x.shape, tastes, whole, k)
    # Other shapes of matrix products, and sums of p parts: rounding only.
    w.check("output", y, lambda: truth[0], slack=16)
    w.check("gradients", grads, lambda: truth[1:], slack=64)
    rows = sum(int(e.cost) for e in moved.events if e.name == "expert")
    sent = {f"payload_{name}": moved.payload, f"rows_{name}": rows}
    #: What a free gate chooses is anyone's guess: only its values are held.
    return {} if name == "free" else {"calls": moved.count, **sent}


def main(
    w: World,
    *,
    tokens_per_expert: int = 4,
    width: int = 8,
    hidden: int = 16,
    experts_per_rank: int = 2,
    choices: int = 2,
) -> None:
    experts = experts_per_rank * w.size
    tokens = experts_per_rank * tokens_per_expert
    w.require(choices <= experts, f"{choices} of {experts} experts: too many")
    sizes = experts_per_rank, width, hidden
    measured: dict[str, int] = {}
    cases = preferred(w, w.size * tokens, experts, choices)
    for name, tastes in cases.items():
        measured |= check(w, tastes, sizes, choices, name)
    report(w, given={"tokens": tokens, "itemsize": 8}, **measured)


if __name__ == "__main__":
    with world() as w:
        main(w)
