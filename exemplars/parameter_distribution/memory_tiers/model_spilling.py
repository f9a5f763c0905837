"""Model spilling: fast memory holds one layer's weights, slow memory all.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.memory_tiers.model_spilling

Source: Pudipeddi et al. 2020 (L2L).

Layers are needed one after the other, so they can take turns in fast memory:

    forward    up 0, x0 -> x1    up 1, x1 -> x2    up 2, x2 -> y
    backward   (2 is there)      sum dw2, down     dx2
               up 1              sum dw1, down     dx1
               up 0              sum dw0, down

The largest layer, not the model, must fit: once for its weights, once for
their gradient. Forward keeps a layer's input only, and backward computes the
layer again; otherwise autograd would hold on to all the weights.

A layer that leaves is dropped, not copied: slow memory has the same bits. So
weights only come up, twice each but the last, and gradients only go down. On
a CPU both tiers are host memory; the bytes counted are the same.
"""

from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world

WIDTHS = 7, 24, 31, 11, 19, 5  # of the layers' inputs, and of the output
ROWS = 13
SLOW = torch.device("cpu")


class Fast:
    """The small tier: a layer's weights, and their gradient once made."""

    def __init__(self, w: World, slow: list[Tensor]) -> None:
        self.device, self.slow = w.device, slow
        self.layer = -1  # none yet
        self.weights: Tensor | None = None
        self.gradients: list[Tensor] = []
        self.bytes_up = self.bytes_down = self.most = 0
        self.memory = w.memory(
            fast_weights=lambda: [self.weights],
            fast_gradients=lambda: self.gradients,
            slow=lambda: self.slow,
        )

    def up(self, layer: int) -> Tensor:
        """This layer's weights, in the place of another's."""
        if self.weights is None or self.layer != layer:
            self.weights = None  # first make room
            with span("up", label=layer):
                source = self.slow[layer]
                self.weights = source.to(self.device, copy=True)
            self.bytes_up += source.nbytes
            self.layer = layer
            self.moved("up")
        return self.weights

    def down(self, gradient: Tensor) -> Tensor:
        """A gradient, summed over the ranks while it is here."""
        self.gradients.append(gradient)
        self.moved("here")
        dist.all_reduce(gradient)
        with span("down", label=self.layer):
            spilled = gradient.to(SLOW, copy=True)
        self.bytes_down += spilled.nbytes
        self.gradients.clear()
        self.moved("down")
        return spilled

    def moved(self, what: str) -> None:
        """After every move: is there more here than ever before?"""
        self.memory.mark(what)
        here = [t for t in (self.weights, *self.gradients) if t is not None]
        self.most = max(self.most, sum(t.nbytes for t in here))


def apply(layer: int, x: Tensor, weights: Tensor) -> Tensor:
    y = x @ weights
    return y.relu() if layer < len(WIDTHS) - 2 else y


def forward(fast: Fast, x: Tensor) -> list[Tensor]:
    """Every layer's input, and the output."""
    kept = [x]
    for i in range(len(fast.slow)):
        weights = fast.up(i)
        with torch.no_grad(), span("F", label=i, cost=1):
            kept.append(apply(i, kept[-1], weights))
        del weights  # or two layers would be here when the next comes
    return kept


def backward(fast: Fast, kept: list[Tensor]) -> list[Tensor]:
    """The gradient of half the sum of squares, layer by layer, in slow."""
    dy, slopes = kept.pop(), list[Tensor]()
    for i in reversed(range(len(fast.slow))):
        dy, slope = step_back(i, kept.pop(), fast.up(i), dy)
        slopes.insert(0, fast.down(slope))
        del slope
    return slopes


def step_back(
    i: int, x: Tensor, weights: Tensor, dy: Tensor
) -> tuple[Tensor, Tensor]:
    """Through one layer: the gradients of its input and of its weights."""
    with span("B", label=i, cost=3):  # once more forward, then backward
        inputs = x.requires_grad_(), weights.requires_grad_()
        dx, slope = torch.autograd.grad(apply(i, *inputs), inputs, dy)
    return dx, slope.contiguous()


def network(w: World) -> list[Tensor]:
    """Small whole numbers, so that sums are exact in whatever order."""
    shapes = pairwise(WIDTHS)
    return [w.randn(*s, of_rank=0).round().to(SLOW) for s in shapes]


def reference(w: World, rows: Tensor) -> list[Tensor]:
    """All layers in one tier, all rows on one process."""
    weights = [t.to(w.device).requires_grad_() for t in network(w)]
    for i, t in enumerate(weights):
        rows = apply(i, rows, t)
    loss = rows.square().sum() / 2
    return [g.to(SLOW) for g in torch.autograd.grad(loss, weights)]


def main(w: World) -> None:
    rows = w.randn(ROWS, WIDTHS[0], of_rank=0).round()
    fast = Fast(w, network(w))
    with fast.memory, meter() as moved:
        kept = forward(fast, rows.tensor_split(w.size)[w.rank])
        slopes = backward(fast, kept)
    # Whole numbers below 2^53: the same bits, in whatever order.
    w.check("gradients", slopes, lambda: reference(w, rows), slack=0)
    found = dict(weights=fast.memory.peak["fast_weights"], fast=fast.most)
    found |= dict(up=fast.bytes_up, down=fast.bytes_down)
    sizes = [t.numel() for t in fast.slow]
    given = dict(n=sum(sizes), m=max(sizes), z=sizes[-1], b=8)
    report(w, given=given, payload=moved.payload, **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
