"""Pipeline point-to-point: a stage sends its output on and gets a gradient.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.neighbor.pipeline_point_to_point

The layers of a network are cut into p stages, one on each rank, and a batch
into m micro-batches. At each of the p - 1 boundaries, for every micro-batch,

    forward    stage r sends its output to stage r + 1
    backward   stage r + 1 sends the gradient of that output to stage r

so a rank only ever talks to the ranks before and after it. Written as two
functions that autograd knows, each has its answer beside it:

                   forward              backward
    ToNext         send y to r + 1      receive dy from r + 1
    FromPrevious   receive x from r-1   send dx to r - 1

and calling backward on every stage makes the messages by itself. A boundary
carries 2 B h entries per step, for B samples of h features: neither the
number of ranks nor that of weights or micro-batches is in it. Micro-batches
only cut the same bytes into more messages.

Source: Huang et al. 2019 (GPipe); Narayanan et al. 2021, section 2.2.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import equal_layers


class ToNext(torch.autograd.Function):
    """What leaves this stage; in backward its gradient comes back."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        """Send; what is returned stands for all that happens later."""
        ctx.save_for_backward(y)
        dist.send(y, dist.get_rank() + 1)
        return y.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Tensor:
        """The gradient of y: the next stage knows it, and nobody else."""
        #: Both ends know the shape: that of the activation, so none is sent.
        dy = torch.empty_like(ctx.saved_tensors[0])
        dist.recv(dy, dist.get_rank() + 1)
        return dy


class FromPrevious(torch.autograd.Function):
    """What enters this stage; in backward its gradient goes back."""

    @staticmethod
    def forward(ctx: Any, room: Tensor) -> Tensor:
        """Receive into a tensor like `room`, which is a leaf of the graph."""
        x = torch.empty_like(room)
        dist.recv(x, dist.get_rank() - 1)
        return x

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> Tensor:
        """Send back the gradient of what came."""
        #: As it was computed it may lie in any order; a message may not.
        dist.send(dx.contiguous(), dist.get_rank() - 1)
        return dx


def forward(stage: nn.Module, x: Tensor, target: Tensor) -> list[Tensor]:
    """One micro-batch: what enters, what leaves, and where backward starts."""
    r, p = dist.get_rank(), dist.get_world_size()
    if r > 0:
        #: Without a leaf that wants a gradient, autograd would stop at the
        #: stage's weights, and the stage before would wait forever.
        x = FromPrevious.apply(torch.empty_like(x, requires_grad=True))
    with span("F", cost=1):
        y = stage(x)
    if r < p - 1:
        return [x, y, ToNext.apply(y)]
    #: The last stage has nobody to ask: its gradient is that of the loss.
    return [x, y, (y - target).square().sum() / 2]


def step(
    stage: nn.Module, xs: Sequence[Tensor], targets: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """All micro-batches there and back: what entered, and what left."""
    passes = [forward(stage, x, t) for x, t in zip(xs, targets)]
    for _, y, _ in passes:
        y.retain_grad()
    #: In the order of the forwards, on every stage: the k-th gradient that
    #: a stage receives is that of its k-th output.
    for _, _, end in passes:
        with span("B", cost=2):
            end.backward()
    return [x for x, _, _ in passes], [y for _, y, _ in passes]


def reference(
    w: World, width: int, xs: Sequence[Tensor], targets: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """All stages on one process; of it, what this rank should get."""
    net = equal_layers(w.size, width).to(w.device)
    came, gradients = list[Tensor](), list[Tensor]()
    for x, target in zip(xs, targets):
        outputs = [x]
        for layer in net:
            outputs.append(layer(outputs[-1]))
            outputs[-1].retain_grad()
        ((outputs[-1] - target) ** 2 / 2).sum().backward()
        came.append(outputs[w.rank])
        gradients.append(grad_of(outputs[w.rank + 1]))
    return [*came, *gradients], [grad_of(p) for p in net[w.rank].parameters()]


def grad_of(t: Tensor) -> Tensor:
    """The gradient, which backward has left there."""
    assert t.grad is not None
    return t.grad


def main(
    w: World, *, batch: int = 18, microbatches: int = 4, width: int = 12
) -> None:
    cut = f"{microbatches} micro-batches of {batch} samples: some are empty"
    w.require(0 < microbatches <= batch, cut)
    stage = equal_layers(w.size, width)[w.rank].to(w.device)
    #: 18 samples in 4 parts: not all micro-batches are of one size.
    xs = w.randn(batch, width, seed=0).tensor_split(microbatches)
    targets = w.randn(batch, width, seed=1).tensor_split(microbatches)
    with meter() as moved:
        entered, left = step(stage, xs, targets)
    truth = partial(reference, w, width, xs, targets)
    received = entered + [grad_of(y) for y in left]
    w.check("received", received, lambda: truth()[0], slack=0)
    weights = [grad_of(p) for p in stage.parameters()]
    w.check("gradient", weights, lambda: truth()[1], slack=0)
    sent = [e.bytes for e in moved.events if e.kind == "send"]
    report(
        w,
        given={"itemsize": xs[0].element_size()},
        messages=len(sent),
        largest=max(sent, default=0),
        bytes_sent=moved.bytes_sent,
    )


if __name__ == "__main__":
    with world() as w:
        main(w)
