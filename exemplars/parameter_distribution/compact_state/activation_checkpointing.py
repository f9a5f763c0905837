"""Activation checkpointing: keep a few activations, compute the rest again.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.compact_state.activation_checkpointing

Cut the l layers into s segments. Forward keeps the input of each segment and
nothing else. Backward takes the segments from the last to the first, runs
each forward once more from its input, this time keeping what its layers need,
and goes back through it. At most, it holds

    s inputs of segments  +  l / s activations of one segment

and s + l/s is least at s = sqrt(l): a network of 16 layers keeps 8 tensors,
not 17. With s = 1 or s = l nothing is gained. The price is exactly one more
forward pass: 4 l instead of 3 l, if a layer takes 1 forward and 2 backward.

The same operations on the same numbers: the gradients have the same bits.

Source: Chen et al. 2016 (sublinear memory), section 4.1.
"""

from functools import partial
from math import isqrt
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import equal_layers


class Segment(torch.autograd.Function):
    """Some layers that keep only their input."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        layers: nn.Sequential,
        label: int,
        *weights: nn.Parameter,
    ) -> Tensor:
        ctx.layers, ctx.label, ctx.weights = layers, label, weights
        #: The one activation of this segment that is kept.
        ctx.save_for_backward(x)
        #: autograd does not look inside a Function: nothing else is saved.
        with span("forward", label=label, cost=len(layers)):
            y: Tensor = layers(x)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        #: Detached: the new graph ends here, and not in the segment before.
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with (
            span("recompute", label=ctx.label, cost=len(ctx.layers)),
            torch.enable_grad(),
        ):
            #: On the same numbers as before, so what is saved now is the same.
            y = ctx.layers(x)
        with span("backward", label=ctx.label, cost=2 * len(ctx.layers)):
            inputs = x, *ctx.weights
            dx, *d_weights = torch.autograd.grad(y, inputs, dy)
        return dx, None, None, *d_weights


def learned(layers: nn.Module) -> list[nn.Parameter]:
    """A frozen weight has no gradient, and a tied one has one."""
    return [p for p in layers.parameters() if p.requires_grad]


def checkpointed(layers: nn.Sequential, x: Tensor, segments: int) -> Tensor:
    """The output of the layers, computed in this many segments."""
    #: As even as can be: the first ones may have a layer more.
    parts = torch.arange(len(layers)).tensor_split(segments)
    for i, part in enumerate(parts):
        segment = nn.Sequential(*(layers[k] for k in part.tolist()))
        #: The weights are arguments so that autograd asks for their gradients.
        x = Segment.apply(x, segment, i, *learned(segment))
    return x


def backward(layers: nn.Sequential, x: Tensor, segments: int) -> None:
    """Leave the gradients of the output's sum of squares."""
    checkpointed(layers, x, segments).square().sum().backward()


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def most_kept(w: World, layers: int, x: Tensor, segments: int) -> int:
    """Most bytes of activations alive at once, with this many segments."""
    model = equal_layers(layers, x.shape[1]).to(w.device)
    memory = w.memory(
        parameters=model.parameters, gradients=lambda: gradients(model)
    )
    with memory:
        backward(model, x, segments)
    return memory.peak["activations"]


def reference(w: World, layers: int, rows: list[Tensor]) -> list[Tensor]:
    """Plain backward, which keeps everything."""
    x = torch.cat(rows)
    model = equal_layers(layers, x.shape[1]).to(w.device)
    loss = model(x).square().sum()
    return [*torch.autograd.grad(loss, [*model.parameters()])]


def check_frozen(w: World, layers: int, x: Tensor, segments: int) -> None:
    """The same claim where the first layer does not learn."""
    model = equal_layers(layers, x.shape[1]).to(w.device)
    model[0].requires_grad_(False)
    backward(model, x, segments)
    truth = partial(reference, w, layers, [x])
    w.check("gradients", gradients(model), lambda: truth()[2:], slack=0)


def main(
    w: World,
    *,
    layers: int = 16,
    segments: int = 4,
    width: int = 8,
    batch: int = 5,
) -> None:
    fit = isqrt(layers) ** 2 == layers and layers % segments == 0
    w.require(fit, f"{layers} layers: no square that {segments} divides")
    rows = [w.randn(batch, width, seed=r) for r in range(w.size)]
    x = rows[w.rank]
    tried = [s for s in range(1, layers + 1) if layers % s == 0]
    kept = {s: most_kept(w, layers, x, s) for s in tried}
    model, runs = equal_layers(layers, width).to(w.device), list[int]()
    for layer in model:
        layer.register_forward_hook(lambda *_: runs.append(1))
    with meter() as moved:
        backward(model, x, segments)
        mine = [g.clone() for g in gradients(model)]
        for g in gradients(model):
            dist.all_reduce(g)
    plain = partial(reference, w, layers)
    w.check("gradients", mine, lambda: plain([x]), slack=0)
    check_frozen(w, layers, x, segments)
    # The batch of all ranks, on one process: another order of additions.
    w.check("batch", gradients(model), lambda: plain(rows), slack=64)
    size = sum(p.numel() for p in model.parameters())
    given = {"elements": size, "itemsize": 8, "activation_bytes": x.nbytes}
    found = {"best": min(kept, key=lambda s: kept[s]), "forwards": len(runs)}
    report(w, given=given, peak=kept[segments], payload=moved.payload, **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
