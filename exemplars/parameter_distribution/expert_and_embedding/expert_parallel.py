"""Expert parallelism: tokens travel to the experts that the gate chose.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.expert_and_embedding.expert_parallel

Source: Lepikhin et al. 2021 (GShard), section 2.2.

A layer has many experts (perceptrons), two on each rank, and a gate that
sends each token to the K it likes best. Every rank has C seats for each
expert. Tokens take them in order, best choice and first token first; who
finds no seat is dropped: that choice adds nothing to the token's output.

    dispatch   all-to-all: seats to the ranks of their experts
    experts    each on its seats, from all ranks
    combine    all-to-all: results back to the ranks of their tokens

Backward mirrors both: two all-to-alls each way, of all E C seats, taken or
not. Fixed seats give all messages one size, whatever the gate says: too few
drop tokens, too many send air.

    N tokens of this rank   E experts   C seats   D width
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from exemplars.runtime import World, meter, report, span, world

TOKENS, WIDTH, HIDDEN = 12, 8, 16
LOCAL, CHOICES = 2, 2  # experts of a rank, experts of a token
AMPLE, SCARCE = TOKENS, 2  # seats; a token chooses an expert at most once


class Exchange(torch.autograd.Function):
    """An equal all-to-all, and the same one back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return swap(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return swap(dy)


def swap(x: Tensor) -> Tensor:
    """Part q of x goes to rank q, whose part of this rank takes its place."""
    y, x = torch.empty_like(x), x.contiguous()
    with span("exchange"):
        dist.all_to_all_single(y, x)
    return y


def choose(x_ND: Tensor, gate_DE: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and experts: all first choices, then all second ones."""
    weight_NK, expert_NK = (x_ND @ gate_DE).softmax(1).topk(CHOICES)
    return weight_NK.T.flatten(), expert_NK.T.flatten()


def layer(x_ND: Tensor, weights: list[Tensor], seats: int) -> list[Tensor]:
    """Dispatch, compute, combine; the output, and which choices are kept."""
    gate, up, down = weights
    weight, expert = choose(x_ND, gate)
    chosen = F.one_hot(expert, gate.shape[1])
    place = (chosen.cumsum(0) * chosen).sum(1) - 1  # in the expert's queue
    kept = place < seats
    #: Those without a seat share one more, at the end, that goes nowhere.
    nowhere = gate.shape[1] * seats
    seat = torch.where(kept, expert * seats + place, nowhere)
    room = x_ND.new_zeros(nowhere + 1, WIDTH)
    room = room.index_copy(0, seat, x_ND.repeat(CHOICES, 1))[:-1]
    #: From (ranks, my experts, seats) to (my experts, seats of all ranks).
    there = Exchange.apply(room).view(-1, LOCAL, seats, WIDTH).transpose(0, 1)
    with span("experts", cost=4):
        done = torch.tanh(there.flatten(1, 2) @ up) @ down
    home = done.view(LOCAL, -1, seats, WIDTH).transpose(0, 1)
    back = Exchange.apply(home.flatten(0, 2))
    back = torch.cat([back, back.new_zeros(1, WIDTH)])
    each = weight[:, None] * back[seat]
    return [each.view(CHOICES, TOKENS, WIDTH).sum(0), kept.double()]


def dense(x_ND: Tensor, weights: list[Tensor], seats: int) -> list[Tensor]:
    """The same with all experts at hand, and seats counted one by one."""
    gate, up, down = weights
    weight, expert = choose(x_ND, gate)
    load, kept = Counter[int](), []
    for e in expert.tolist():
        kept.append(float(load[e] < seats))
        load[e] += 1
    token = torch.arange(TOKENS, device=x_ND.device).repeat(CHOICES)
    every = torch.tanh(x_ND @ up) @ down
    has_seat = torch.tensor(kept, dtype=torch.double, device=x_ND.device)
    each = (weight * has_seat)[:, None] * every[expert, token]
    return [each.view(CHOICES, TOKENS, WIDTH).sum(0), has_seat]


def parameters(w: World, ranks: Sequence[int]) -> list[Tensor]:
    """The gate, which is everywhere, and the experts of these ranks."""
    gate = w.randn(WIDTH, LOCAL * w.size, of_rank=0)
    up = [w.randn(LOCAL, WIDTH, HIDDEN, of_rank=r) for r in ranks]
    down = [w.randn(LOCAL, HIDDEN, WIDTH, of_rank=r) for r in ranks]
    return [t.requires_grad_() for t in (gate, torch.cat(up), torch.cat(down))]


def reference(w: World) -> list[Tensor]:
    """Gradients over all ranks' tokens, on one process; of them, my own."""
    whole = parameters(w, range(w.size))
    xs = [w.randn(TOKENS, WIDTH, of_rank=r) for r in range(w.size)]
    xs = [x.requires_grad_() for x in xs]
    losses = [dense(x, whole, AMPLE)[0].square().sum() for x in xs]
    d = torch.autograd.grad(torch.stack(losses).sum(), [xs[w.rank], *whole])
    return [*d[:2], *(e.tensor_split(w.size)[w.rank] for e in d[2:])]


def main(w: World) -> None:
    x = w.randn(TOKENS, WIDTH).requires_grad_()
    mine = parameters(w, [w.rank])
    few, kept = layer(x, mine, SCARCE)
    grads = list[Tensor]()
    with w.memory(parameters=lambda: mine, gradients=lambda: grads):
        with meter() as forward:
            y, _ = layer(x, mine, AMPLE)
        with meter() as backward:
            grads += torch.autograd.grad(y.square().sum(), [x, *mine])
    dist.all_reduce(grads[1])  # the gate's, as in data parallelism

    def whole(seats: int) -> list[Tensor]:
        return dense(x, parameters(w, range(w.size)), seats)

    # Other shapes of matrix products: rounding only.
    w.check("output", y, lambda: whole(AMPLE)[0], slack=16)
    w.check("gradients", grads, lambda: reference(w), slack=64)
    w.check("scarce", few, lambda: whole(SCARCE)[0], slack=16)
    w.check("kept", kept, lambda: whole(SCARCE)[1], slack=0)
    counts = dict(calls=forward.count, backward_calls=backward.count)
    counts["payload"] = forward.payload + backward.payload
    given = dict(e=LOCAL, c=AMPLE, n=TOKENS, k=CHOICES, s=SCARCE, h=WIDTH, b=8)
    report(w, given=given, dropped=int((1 - kept).sum()), **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
