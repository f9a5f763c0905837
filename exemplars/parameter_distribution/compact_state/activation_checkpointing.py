"""Activation checkpointing: keep a few activations, compute the rest anew.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.compact_state.activation_checkpointing

Source: Chen et al. 2016 (sublinear memory), section 4.1.

Cut the l layers into s segments. Forward keeps the input of each segment and
nothing else. Backward takes the segments from the last to the first, runs
each forward once more from its input, this time keeping what its layers need,
and goes back through it. At worst that is

    s inputs of segments  +  l / s activations of one segment

and s + l/s is least at s = sqrt(l): a network of 16 layers keeps 8 tensors,
not 17. With s = 1 or s = l nothing is gained. The price is exactly one more
forward: 4 l instead of 3 l, if a layer takes 1 forward and 2 backward.

The same operations on the same numbers: the gradients have the same bits.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import equal_layers

LAYERS, WIDTH, ROWS = 16, 8, 5  # rows of each rank
SEGMENTS = 4
TRIED = 1, 2, 4, 8, 16


class Segment(torch.autograd.Function):
    """Some layers that keep only their input."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, layers: nn.Sequential, label: int, *_: Tensor
    ) -> Tensor:
        ctx.layers, ctx.label = layers, label
        ctx.save_for_backward(x)
        #: autograd does not look inside a Function: nothing else is saved.
        with span("forward", label=label, cost=len(layers)):
            y: Tensor = layers(x)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with (
            span("recompute", label=ctx.label, cost=len(ctx.layers)),
            torch.enable_grad(),
        ):
            y = ctx.layers(x)
        with span("backward", label=ctx.label, cost=2 * len(ctx.layers)):
            inputs = x, *ctx.layers.parameters()
            dx, *d_weights = torch.autograd.grad(y, inputs, dy)
        return dx, None, None, *d_weights


def loss_of(model: nn.Sequential, x: Tensor, segments: int) -> Tensor:
    """The network in this many segments."""
    size = len(model) // segments
    for i in range(segments):
        part = model[i * size : (i + 1) * size]
        #: The weights are arguments so that autograd asks for their gradients.
        x = Segment.apply(x, part, i, *part.parameters())
    return x.square().sum()


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def most_kept(w: World, x: Tensor, segments: int) -> int:
    """Bytes of activations alive at once, at most, with these segments."""
    model = equal_layers(LAYERS, WIDTH).to(w.device)
    memory = w.memory(
        parameters=model.parameters, gradients=lambda: gradients(model)
    )
    with memory:
        loss_of(model, x, segments).backward()
    return memory.peak["activations"]


def everybody(w: World) -> Tensor:
    """The rows of all ranks."""
    return torch.cat([w.randn(ROWS, WIDTH, of_rank=r) for r in range(w.size)])


def reference(w: World, x: Tensor) -> list[Tensor]:
    """Plain backward, which keeps everything."""
    model = equal_layers(LAYERS, WIDTH).to(w.device)
    model(x).square().sum().backward()
    return gradients(model)


def main(w: World) -> None:
    x = w.randn(ROWS, WIDTH)
    kept = {s: most_kept(w, x, s) for s in TRIED}
    model, runs = equal_layers(LAYERS, WIDTH).to(w.device), list[int]()
    for layer in model:
        layer.register_forward_hook(lambda *_: runs.append(1))
    memory = w.memory(
        parameters=model.parameters, gradients=lambda: gradients(model)
    )
    with memory, meter() as moved:
        loss_of(model, x, SEGMENTS).backward()
        memory.mark("backward")
        mine = [g.clone() for g in gradients(model)]
        for g in gradients(model):
            dist.all_reduce(g)
    w.check("gradients", mine, lambda: reference(w, x), slack=0)
    # The batch of all ranks, on one process: another order of additions.
    summed = gradients(model)
    w.check("batch", summed, lambda: reference(w, everybody(w)), slack=64)
    n = sum(p.numel() for p in model.parameters())
    report(
        w,
        given={"l": LAYERS, "s": SEGMENTS, "a": x.nbytes, "n": n, "b": 8},
        peak=memory.peak["activations"],
        best=min(kept, key=lambda s: kept[s]),
        forwards=len(runs),
        payload=moved.payload,
    )


if __name__ == "__main__":
    with world() as w:
        main(w)
