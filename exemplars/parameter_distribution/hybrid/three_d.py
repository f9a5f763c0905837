"""3D parallelism: data, pipeline and tensor parallelism, one axis for each.

    torchrun --standalone --nproc-per-node 8 -m exemplars.parameter_distribution.hybrid.three_d

Arrange the ranks in a box, arange(p).view(D, S, T): each rank has a place
(d, s, t), and two ranks communicate only along an axis. For 8 ranks:

          d=0     d=1
    s=0   0 1     4 5     along t   twice a micro-batch: all-reduce y, dx
    s=1   2 3     6 7     along s   once each way: y to s+1, dx to s-1
      t = 0 1     0 1     along d   once a step: all-reduce gradients

The axes do not disturb one another. The bubble is that of S stages, not of p
ranks, and a rank sums over d the gradient of its own part only, an S-th of a
T-th. The axis that communicates most, t, has its ranks side by side.

How a layer is cut along t is tensor parallelism by column and row, unchanged.

Source: Narayanan et al. 2021 (Megatron-LM on clusters).
"""

from itertools import count, pairwise

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from exemplars.parameter_distribution.intra_layer import (
    tensor_parallel_column_row as tensor_parallel,
)
from exemplars.runtime import World, meter, report, span, world

Group = dist.ProcessGroup


def axes(p: int, stages: int, tensor_ranks: int) -> tuple[int, int, int]:
    """The box's lengths D, S, T. What p cannot fill has length 1."""
    #: The tensor axis is given up first, and data is what remains.
    if p % stages or p // stages % tensor_ranks:
        tensor_ranks = 1
    if p % stages:
        stages = 1
    return p // (stages * tensor_ranks), stages, tensor_ranks


class Place:
    """Where this rank stands, and whom it talks to along each axis."""

    def __init__(self, rank: int, lengths: tuple[int, int, int]) -> None:
        box = torch.arange(dist.get_world_size()).view(lengths)
        d, s, t = (box == rank).nonzero()[0].tolist()
        self.stage, self.stages = s, lengths[1]
        line = box[d, :, t].tolist()
        self.after = dict(pairwise(line)).get(rank)
        self.before = dict(pairwise(line[::-1])).get(rank)
        #: Every rank creates every group, in the same order.
        lines = box.movedim(0, -1).flatten(0, 1)
        self.data, _ = dist.new_subgroups_by_enumeration(lines.tolist())
        lines = box.flatten(0, 1)
        self.tensor, _ = dist.new_subgroups_by_enumeration(lines.tolist())


def perceptron(x: Tensor, layer: list[Tensor], group: Group) -> Tensor:
    """Along t: columns, then rows, and one sum each way."""
    up, up_bias, down, bias = layer
    hidden = tensor_parallel.Enter.apply(x, group) @ up.T + up_bias
    part = hidden.tanh() @ down
    #: The last bias is whole everywhere, and added once, after the sum.
    return x + tensor_parallel.Leave.apply(part, group) + bias


def pipeline(
    at: Place, layer: list[Tensor], batch: Tensor, costs: tuple[float, float]
) -> Tensor:
    """Along s: all micro-batches forward, then all backward; the loss."""
    kept = []
    for i, x in enumerate(batch.clone()):
        #: Only the first stage has samples; the others receive activations.
        if at.before is not None:
            dist.recv(x, at.before)
        with span("F", label=i, cost=costs[0]):
            y = perceptron(x.requires_grad_(), layer, at.tensor)
        kept.append((i, x, y))
        if at.after is not None:
            dist.send(y.detach(), at.after)
    for i, x, y in kept:
        #: Only the last stage has a loss, the sum of squares: its slope is 2y.
        dy = 2 * y.detach()
        if at.after is not None:
            dist.recv(dy, at.after)
        with span("B", label=i, cost=costs[1]):
            y.backward(dy)
        if at.before is not None:
            assert x.grad is not None
            dist.send(x.grad.contiguous(), at.before)
    outputs = torch.stack([y.detach() for _, _, y in kept])
    return outputs.square().sum()


def agree(loss: Tensor, layer: list[Tensor], group: Group) -> Tensor:
    """Along d: the loss and the gradients, summed over all samples."""
    grads = [t.grad for t in layer if t.grad is not None]
    #: One vector per step: the loss travels with the gradients.
    sums = parameters_to_vector([loss, *grads])
    dist.all_reduce(sums, group=group)
    return sums


def cut(layer: list[Tensor], group: Group) -> list[Tensor]:
    """This rank's neurons: weights in, biases, weights out; a whole bias."""
    *neurons, bias = layer
    part, parts = group.rank(), group.size()
    mine = torch.arange(len(neurons[0])).tensor_split(parts)[part]
    return [t.requires_grad_() for t in (*(x[mine] for x in neurons), bias)]


def network(w: World, stage: int, width: int, hidden: int) -> list[Tensor]:
    """The whole weights of a stage, the same on every rank."""
    shapes = (hidden, width), (hidden,), (hidden, width), (width,)
    #: A seed for each: equal shapes of one seed would be equal numbers.
    seeds = count(4 * stage)
    return [w.randn(*s, seed=i) / width for i, s in zip(seeds, shapes)]


def reference(w: World, x: Tensor, hidden: int, *place: int) -> list[Tensor]:
    """One process: the loss, and gradients of one part of one stage."""
    stages, stage, part, parts = place
    layers = [network(w, s, x.shape[-1], hidden) for s in range(stages)]
    mine = [t.requires_grad_() for t in layers[stage]]
    for up, up_bias, down, bias in layers:
        x = x + (x @ up.T + up_bias).tanh() @ down + bias
    loss = x.square().sum()
    *grads, bias_grad = torch.autograd.grad(loss, mine)
    own = [grad.tensor_split(parts)[part] for grad in grads]
    return [loss.detach(), parameters_to_vector([*own, bias_grad])]


def shape(at: Place) -> dict[str, int]:
    """The box as this rank's groups show it."""
    return {
        "data": at.data.size(),
        "stages": at.stages,
        "tensor": at.tensor.size(),
        "data_first": dist.get_global_rank(at.data, 0),
        "tensor_first": dist.get_global_rank(at.tensor, 0),
    }


def main(
    w: World,
    *,
    stages: int = 2,
    tensor_ranks: int = 2,
    microbatches: int = 4,
    rows: int = 3,
    width: int = 6,
    hidden: int = 20,
    forward: float = 1,
    backward: float = 2,
) -> None:
    at = Place(w.rank, axes(w.size, stages, tensor_ranks))
    layer = cut(network(w, at.stage, width, hidden), at.tensor)
    batch = w.randn(at.data.size(), microbatches, rows, width, seed=0)
    with w.memory(parameters=lambda: layer), meter() as inner:
        loss = pipeline(at, layer, batch[at.data.rank()], (forward, backward))
    with meter() as outer:
        sums = agree(loss, layer, at.data)
    place = at.stages, at.stage, at.tensor.rank(), at.tensor.size()
    truth = reference(w, batch, hidden, *place)
    # Sums in another order, through all the stages each way.
    w.check("gradients", sums[1:], lambda: truth[1], slack=64)
    if at.after is None:
        w.check("loss", sums[0], lambda: truth[0], slack=16)
    t = {"tensor_calls": inner.count, "tensor_bytes": inner.payload}
    s = {"messages": inner.calls["send"].count, "sent": inner.bytes_sent}
    d = {"data_calls": outer.count, "data_bytes": outer.payload}
    given = {"activation_bytes": batch[0, 0].nbytes, "itemsize": 8}
    report(w, given=given, **shape(at), **t, **s, **d)


if __name__ == "__main__":
    with world() as w:
        main(w)
