"""3D parallelism: data, pipeline and tensor parallelism, one axis for each.

    torchrun --standalone --nproc-per-node 8 -m exemplars.parameter_distribution.hybrid.three_d

Source: Narayanan et al. 2021 (Megatron-LM on clusters).

Ranks stand in a box: arange(p).view(D, S, T) gives each rank its place
(d, s, t). Two ranks talk only along an axis. For 8 ranks:

          d=0     d=1
    s=0   0 1     4 5     along t   twice a micro-batch: all-reduce y, dx
    s=1   2 3     6 7     along s   once each way: y to s+1, dx to s-1
      t = 0 1     0 1     along d   once a step: all-reduce gradients

Each axis leaves the others alone. The bubble is that of S stages, not of p;
and a rank sums over d the gradient of its own part only, an S-th of a T-th.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from exemplars.runtime import World, meter, report, span, world

MICROS, ROWS, WIDTH, HIDDEN = 4, 3, 6, 19  # an odd number of neurons to cut
SHAPES = (HIDDEN, WIDTH), (HIDDEN,), (HIDDEN, WIDTH), (WIDTH,)
FORWARD, BACKWARD = 1, 2  # virtual seconds
Group = dist.ProcessGroup


def factors(p: int) -> tuple[int, int, int]:
    """Twos go to stages, data and tensor in turn; the odd rest is data."""
    twos = (p & -p).bit_length() - 1
    stages, tensor = 2 ** ((twos + 2) // 3), 2 ** (twos // 3)
    return p // stages // tensor, stages, tensor


class Place:
    """Where this rank stands: its line along each axis."""

    def __init__(self, w: World) -> None:
        box = torch.arange(w.size).view(factors(w.size))
        d, self.stage, t = (box == w.rank).nonzero()[0].tolist()
        self.stages: list[int] = box[d, :, t].tolist()
        #: All ranks make all groups, in the same order.
        data, tensor = box.movedim(0, -1).flatten(0, 1), box.flatten(0, 1)
        self.data, _ = dist.new_subgroups_by_enumeration(data.tolist())
        self.tensor, _ = dist.new_subgroups_by_enumeration(tensor.tolist())


class Sum(torch.autograd.Function):
    """Along t, one way: of values forward, or of gradients backward."""

    @staticmethod
    def forward(ctx: Any, onward: bool, group: Group, x: Tensor) -> Tensor:
        ctx.onward, ctx.group = onward, group
        x = x.clone(memory_format=torch.contiguous_format)
        if onward:
            dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[None, None, Tensor]:
        dx = dx.clone(memory_format=torch.contiguous_format)
        if not ctx.onward:
            dist.all_reduce(dx, group=ctx.group)
        return None, None, dx


def perceptron(x: Tensor, layer: list[Tensor], group: Group) -> Tensor:
    """Columns, then rows; the last bias is added once, after the sum."""
    up, up_bias, down, bias = layer
    hidden = (Sum.apply(False, group, x) @ up.T + up_bias).tanh()
    return x + Sum.apply(True, group, hidden @ down) + bias


def pipeline(at: Place, layer: list[Tensor], batch: Tensor) -> Tensor:
    """GPipe along s: all forwards, all backwards; at the end, the loss."""
    before, after = ([-1, *at.stages, -1][at.stage + i] for i in (0, 2))
    kept = list[tuple[Tensor, Tensor]]()
    for i, x in enumerate(batch.clone()):
        if before >= 0:
            dist.recv(x, before)
        with span("F", label=i, cost=FORWARD):
            y = perceptron(x.requires_grad_(), layer, at.tensor)
        kept.append((x, y))
        if after >= 0:
            dist.send(y.detach(), after)
    for i, (x, y) in reversed([*enumerate(kept)]):
        dy = 2 * y.detach()  # of the sum of squares
        if after >= 0:
            dist.recv(dy, after)
        with span("B", label=i, cost=BACKWARD):
            y.backward(dy)
        if before >= 0 and x.grad is not None:
            dist.send(x.grad.contiguous(), before)
    return torch.stack([y.detach() for _, y in kept]).square().sum()


def cut(layer: list[Tensor], group: Group) -> list[Tensor]:
    """This rank's neurons: weights in, biases, weights out."""
    parts = [x.tensor_split(group.size())[group.rank()] for x in layer[:3]]
    return [*parts, layer[3]]  # the last bias is whole


def network(w: World, stage: int) -> list[Tensor]:
    seeds = enumerate(SHAPES, 4 * stage)  # or equal shapes would be equal
    return [w.randn(*s, of_rank=i) / WIDTH for i, s in seeds]


def reference(w: World, at: Place, y: Tensor) -> Tensor:
    """On one process: the loss, and the gradients of this rank's part."""
    layers = [network(w, s) for s, _ in enumerate(at.stages)]
    mine = [t.requires_grad_() for t in layers[at.stage]]
    for up, up_bias, down, bias in layers:
        y = y + (y @ up.T + up_bias).tanh() @ down + bias
    loss = y.square().sum()
    slopes = torch.autograd.grad(loss, mine)
    return parameters_to_vector([loss, *cut([*slopes], at.tensor)]).detach()


def main(w: World) -> None:
    at, (d, q, k) = Place(w), factors(w.size)
    layer = [t.requires_grad_() for t in cut(network(w, at.stage), at.tensor)]
    batch = w.randn(d, MICROS, ROWS, WIDTH, of_rank=0)
    with w.memory(parameters=lambda: layer), meter() as inner:
        loss = pipeline(at, layer, batch[at.data.rank()])
    grads = (t.grad for t in layer if t.grad is not None)
    sums = parameters_to_vector([loss, *grads])
    with meter() as outer:
        dist.all_reduce(sums, group=at.data)
    # Sums in another order, through all the stages each way.
    w.check("gradients", sums[1:], lambda: reference(w, at, batch)[1:], 64)
    if at.stage == q - 1:
        w.check("loss", sums[0], lambda: reference(w, at, batch)[0], 16)
    number = (at.data.rank() * q + at.stage) * k + at.tensor.rank()
    found = dict(tensor_calls=inner.count, tensor_bytes=inner.payload)
    found |= dict(messages=inner.calls["send"].count, sent=inner.bytes_sent)
    found |= dict(data_calls=outer.count, data_bytes=outer.payload)
    given = dict(m=MICROS, a=batch[0, 0].nbytes, h=WIDTH, u=HIDDEN, e=8)
    given |= dict(d=d, q=q, k=k, f=FORWARD, b=BACKWARD)
    report(w, given=given, ranks=w.size, place=number, **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
