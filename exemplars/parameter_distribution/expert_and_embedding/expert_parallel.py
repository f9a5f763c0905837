"""Expert parallelism: tokens travel to the experts that the gate chose.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.expert_and_embedding.expert_parallel

A layer has many experts (perceptrons), some on each rank, and a gate that
sends each token to the K experts it likes best. Every rank has C seats for
each expert. Tokens take them in order, best choice and first token first; a
choice that finds no seat is dropped and adds nothing to the token's output.

    dispatch   all-to-all: seats to the ranks of their experts
    experts    each on its seats, from all ranks
    combine    all-to-all: results back to the ranks of their tokens

Backward mirrors both: two all-to-alls each way, of all E C seats, taken or
not. Fixed seats give all messages one size, whatever the gate says: too few
seats drop tokens, too many send padding.

    N tokens of this rank   E experts   C seats   D width

Source: Lepikhin et al. 2021 (GShard), section 2.2.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from exemplars.runtime import Group, World, meter, report, span, world

#: The gate (D, E), whole on every rank, and both matrices of some experts:
#: (experts, D, hidden) and (experts, hidden, D).
Weights = tuple[Tensor, Tensor, Tensor]


class Exchange(torch.autograd.Function):
    """An equal all-to-all, and the same one back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        """Part q of x goes to rank q; its place is taken by q's part."""
        ctx.group = group
        arrived, x = torch.empty_like(x), x.contiguous()
        with span("exchange"):
            dist.all_to_all_single(arrived, x, group=group)
        return arrived

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        #: What came from rank q has its gradient sent to rank q.
        return Exchange.apply(dy, ctx.group), None


def choose(x_ND: Tensor, gate_DE: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Weights and experts: all first choices, then all second ones."""
    weight_NK, expert_NK = (x_ND @ gate_DE).softmax(1).topk(k)
    #: No second choice takes a seat from a first one, of whatever token.
    return weight_NK.T.flatten(), expert_NK.T.flatten()


def take_seats(expert: Tensor, experts: int, seats: int) -> Tensor:
    """Seats, in the order of choices; a choice that finds none has E C."""
    chosen = F.one_hot(expert, experts)
    #: Counting along the queue gives each choice its place at its expert.
    place = (chosen.cumsum(0) * chosen).sum(1) - 1
    return torch.where(place < seats, expert * seats + place, experts * seats)


def dispatch(
    x_ND: Tensor, seat: Tensor, experts: int, seats: int, group: Group = None
) -> Tensor:
    """Tokens to their seats, and those to their experts: (experts, all, D)."""
    choices = len(seat) // len(x_ND)
    #: Those without a seat share one more, at the end, that goes nowhere.
    room = x_ND.new_zeros(experts * seats + 1, x_ND.shape[1])
    room = room.index_copy(0, seat, x_ND.repeat(choices, 1))[:-1]
    arrived = Exchange.apply(room, group)
    #: From (ranks, my experts, seats) to (my experts, seats of all ranks).
    by_rank = arrived.unflatten(0, (dist.get_world_size(group), -1, seats))
    return by_rank.transpose(0, 1).flatten(1, 2)


def combine(
    done: Tensor, seat: Tensor, weight: Tensor, seats: int, group: Group = None
) -> Tensor:
    """Results back to their tokens: one row for each choice, weighted."""
    by_rank = done.unflatten(1, (-1, seats)).transpose(0, 1)
    #: Who had no seat finds zeros: one more row.
    home = F.pad(Exchange.apply(by_rank.flatten(0, 2), group), (0, 0, 0, 1))
    return weight[:, None] * home[seat]


def moe(x_ND: Tensor, weights: Weights, k: int, seats: int) -> Tensor:
    """A layer of experts: K choices per token, C seats per expert."""
    gate_DE, up, down = weights
    experts = gate_DE.shape[1]
    weight, expert = choose(x_ND, gate_DE, k)
    seat = take_seats(expert, experts, seats)
    there = dispatch(x_ND, seat, experts, seats)
    with span("experts", cost=4):
        done = torch.tanh(there @ up) @ down
    each = combine(done, seat, weight, seats)
    return each.view(k, *x_ND.shape).sum(0)


def parameters(w: World, ranks: range, sizes: tuple[int, int, int]) -> Weights:
    """The gate, and the experts of these ranks."""
    local, width, hidden = sizes
    gate = w.randn(width, local * w.size, seed=0)
    up = torch.cat([w.randn(local, width, hidden, seed=r) for r in ranks])
    down = torch.cat([w.randn(local, hidden, width, seed=r) for r in ranks])
    return gate.requires_grad_(), up.requires_grad_(), down.requires_grad_()


def reference(
    x_ND: Tensor, whole: Weights, k: int, seats: int
) -> list[Tensor]:
    """All experts at hand, choice by choice: the output, and what is kept."""
    gate, up, down = whole
    like = (x_ND @ gate).softmax(1)
    order = like.argsort(1, descending=True)
    taken = [0] * like.shape[1]
    rows, kept = [torch.zeros_like(x) for x in x_ND], []
    for choice in range(k):
        for n, x in enumerate(x_ND):
            e = int(order[n, choice])
            taken[e] += 1
            kept.append(float(taken[e] <= seats))
            y = torch.tanh(x @ up[e]) @ down[e]
            rows[n] = rows[n] + kept[-1] * like[n, e] * y
    return [torch.stack(rows), x_ND.new_tensor(kept)]


def slopes(w: World, whole: Weights, k: int, x: Tensor) -> list[Tensor]:
    """One process, all ranks' tokens: gradients of x, gate, own experts."""
    xs = [w.randn(*x.shape, seed=r).requires_grad_() for r in range(w.size)]
    outputs = [reference(each, whole, k, len(x))[0] for each in xs]
    loss = torch.stack(outputs).square().sum()
    dx, gate, *experts = torch.autograd.grad(loss, [xs[w.rank], *whole])
    return [dx, gate, *(e.tensor_split(w.size)[w.rank] for e in experts)]


def overflow(
    w: World, x: Tensor, mine: Weights, whole: Weights, k: int, seats: int
) -> int:
    """The layer where seats are too few: how many choices are dropped."""
    gate, experts = mine[0], mine[0].shape[1]
    seat = take_seats(choose(x, gate, k)[1], experts, seats)
    kept = (seat < experts * seats).double()
    y = moe(x, mine, k, seats)
    w.check("scarce", y, lambda: reference(x, whole, k, seats)[0], slack=16)
    w.check("kept", kept, lambda: reference(x, whole, k, seats)[1], slack=0)
    return int((1 - kept).sum())


def main(
    w: World,
    *,
    tokens: int = 12,
    width: int = 8,
    hidden: int = 16,
    experts_per_rank: int = 2,
    choices: int = 2,
    seats: int = 12,
    scarce_seats: int = 2,
) -> None:
    w.require(seats >= tokens, f"{seats} seats for {tokens} tokens: too few")
    x = w.randn(tokens, width, seed=w.rank).requires_grad_()
    sizes = experts_per_rank, width, hidden
    mine = parameters(w, range(w.rank, w.rank + 1), sizes)
    whole = parameters(w, range(w.size), sizes)
    grads: list[Tensor] = []
    with w.memory(parameters=lambda: [*mine], gradients=lambda: grads):
        with meter() as forward:
            y = moe(x, mine, choices, seats)
        with meter() as backward:
            grads += torch.autograd.grad(y.square().sum(), [x, *mine])
    #: Every rank has the gate, as in data parallelism; an expert has one home.
    dist.all_reduce(grads[1])
    # Other shapes of matrix products: rounding only.
    w.check("output", y, lambda: reference(x, whole, choices, seats)[0], 16)
    w.check("gradients", grads, lambda: slopes(w, whole, choices, x), slack=64)
    calls = {"calls": forward.count, "backward_calls": backward.count}
    payload = forward.payload + backward.payload
    dropped = overflow(w, x, mine, whole, choices, scarce_seats)
    report(w, given={"itemsize": 8}, payload=payload, dropped=dropped, **calls)


if __name__ == "__main__":
    with world() as w:
        main(w)
