"""Model spilling: fast memory holds one layer's weights, slow memory all.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.memory_tiers.model_spilling

Layers are needed one after the other, so they can take turns in fast memory:

    forward    up 0, x0 -> x1    up 1, x1 -> x2    up 2, x2 -> y
    backward   (2 is there)      sum dw2, down     dx2
               up 1              sum dw1, down     dx1
               up 0              sum dw0, down

The largest layer must fit, not the model: once for its weights, once for their
gradient. Forward keeps only the input of each layer, and backward computes the
layer again; otherwise autograd would hold on to all the weights.

A layer that leaves is dropped, not copied back: slow memory has the same bits.
So weights only come up, each of them twice except for the last layer's, and
gradients only go down. On a CPU both tiers are host memory; the bytes counted
are the same.

Source: Pudipeddi et al. 2020 (L2L).
"""

import time
from functools import partial
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from exemplars.parameter_distribution.memory_tiers import (
    cpu_offload_optimizer as tiers,
)
from exemplars.runtime import World, meter, report, span, world

PATIENCE = 1.0  # seconds, for a thread that is about to let go


class Spilled:
    """Matrices in slow memory, of which one at a time is in fast memory."""

    def __init__(
        self, slow: list[Tensor], device: torch.device, link: tiers.Link
    ) -> None:
        self.slow, self.device, self.link = slow, device, link
        self.fast: dict[int, Tensor] = {}  # one layer's weights, or none

    def up(self, layer: int) -> Tensor:
        """This layer's weights, in the place of another layer's."""
        #: The last layer forward is the first one backward: it is still here.
        if layer not in self.fast:
            #: First make room, or two layers would be here for a moment.
            self.fast.clear()
            below = self.slow[layer]
            self.fast[layer] = torch.empty_like(below, device=self.device)
            with span("up", label=layer):
                self.link.up(below, into=self.fast[layer])
        return self.fast[layer]

    def down(self, layer: int, gradient: Tensor) -> Tensor:
        """A gradient in slow memory, summed over the ranks on its way."""
        #: In fast memory, where the network is near.
        dist.all_reduce(gradient)
        with span("down", label=layer):
            return self.link.down(gradient)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Every layer's input, and the output."""
        kept = [x]
        for i in range(len(self.slow)):
            #: Without a graph: it would hold on to the weights of all layers.
            with torch.no_grad(), span("F", label=i, cost=1):
                kept.append(self.apply(i, kept[-1], self.up(i)))
        return kept

    def backward(self, kept: list[Tensor], dy: Tensor) -> list[Tensor]:
        """All layers' gradients in slow memory, for that of the output."""
        gradients: list[Tensor] = []
        for i in reversed(range(len(self.slow))):
            #: The gradient of a layer's input is that of the output before.
            dy, gradient = self.step_back(i, kept[i], dy)
            gradients.insert(0, gradient)
        return gradients

    def step_back(
        self, i: int, x: Tensor, dy: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Through one layer: the gradients of its input and of its weights."""
        inputs = x.detach().requires_grad_(), self.up(i).requires_grad_()
        #: Once more forward, now with a graph, and back at once.
        with span("B", label=i, cost=3):
            y = self.apply(i, *inputs)
            dx, gradient = torch.autograd.grad(y, inputs, dy)
        return dx, self.down(i, gradient.contiguous())

    def apply(self, i: int, x: Tensor, weights: Tensor) -> Tensor:
        """A matrix, and a relu after each but the last."""
        y = x @ weights
        return y.relu() if i < len(self.slow) - 1 else y


class Watched(tiers.Link):
    """A link that remembers what it moves, while it is in fast memory."""

    def __init__(self, w: World) -> None:
        super().__init__()
        self.weights, self.gradients = list[Tensor](), list[Tensor]()
        self.held, self.fast = list[StorageWeakRef](), list[int]()
        self.memory = w.memory(
            fast_weights=lambda: self.weights,
            fast_gradients=lambda: self.gradients,
        )

    def up(self, x: Tensor, into: Tensor) -> None:
        self.weights = [into]
        self.memory.mark("up")
        super().up(x, into)
        self.weights = []

    def down(self, x: Tensor) -> Tensor:
        #: A thread of gloo's may hold the gradient before for a moment longer
        #: than its sum takes; a gradient that is kept outlives the deadline.
        deadline = time.monotonic() + PATIENCE
        while any(not held.expired() for held in self.held):
            if time.monotonic() > deadline:
                break
            time.sleep(0)
        self.held = [StorageWeakRef(x.untyped_storage())]
        self.gradients = [x]
        self.memory.mark("down")
        now = self.memory.live()
        self.fast.append(now["fast_weights"] + now["fast_gradients"])
        self.gradients = []
        return super().down(x)


def network(w: World, layers: int, width: int) -> list[Tensor]:
    """Uneven matrices of small whole numbers, so that sums are exact."""
    widths = [3 + (5 + 7 * i) % width for i in range(layers + 1)]
    matrices = (w.randn(*shape, seed=0) for shape in pairwise(widths))
    return [matrix.round().to(tiers.SLOW) for matrix in matrices]


def reference(w: World, y: Tensor, *sizes: int) -> list[Tensor]:
    """The gradients of half the sum of squares: one process, one tier."""
    weights = [t.to(w.device).requires_grad_() for t in network(w, *sizes)]
    for matrix in weights[:-1]:
        y = (y @ matrix).relu()
    loss = (y @ weights[-1]).square().sum() / 2
    return [g.to(tiers.SLOW) for g in torch.autograd.grad(loss, weights)]


def main(
    w: World, *, layers: int = 5, width: int = 29, batch: int = 13
) -> None:
    slow = network(w, layers, width)
    rows = w.randn(batch, len(slow[0]), seed=0).round()
    link = Watched(w)
    model = Spilled(slow, w.device, link)
    with link.memory, meter() as moved:
        kept = model.forward(rows.tensor_split(w.size)[w.rank])
        gradients = model.backward(kept, dy=kept[-1])
    # Whole numbers below 2^53: the same bits, in whatever order.
    truth = partial(reference, w, rows, layers, width)
    w.check("gradients", gradients, truth, slack=0)
    sizes = [t.numel() for t in slow]
    report(
        w,
        given={
            "elements": sum(sizes),
            "largest_layer": max(sizes),
            "last_layer": sizes[-1],
            "itemsize": 8,
        },
        weights=link.memory.peak["fast_weights"],
        fast=max(link.fast),
        up=link.bytes_up,
        down=link.bytes_down,
        payload=moved.payload,
    )


if __name__ == "__main__":
    with world() as w:
        main(w)
