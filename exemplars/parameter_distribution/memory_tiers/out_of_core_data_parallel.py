"""Out-of-core data parallelism: plain replicas, on devices too small for one.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.memory_tiers.out_of_core_data_parallel

Each replica has the whole model, in the memory of its host, and takes it
through its device block by block. What backward needs of a block is computed
again from the block's input; and that input waits on the host, too, unless
there is room for it:

    forward    block   0     1     2
               up      w0    w1    w2        weights, one layer at a time
               down    x0    x1    -         x2 fits, and is needed first
    backward   block   2     1     0
               up      w2    w1 x1 w0 x0     then forward again, and back
               down    dw2   dw1   dw0
    host               sum   sum   sum       over the replicas
                       w2    w1    w0        momentum, update

So swapping bounds what is kept between blocks, and recomputing what is kept
within one. The last blocks' inputs stay, as many as the budget allows. The
model is not cut, and each replica computes on its own samples: the result is
that of plain data parallelism.

On a CPU both tiers are host memory; the bytes counted are the same.

Source: Wahib et al. 2020 (KARMA: swapping combined with recomputing, pipelined
exchanges of gradients, updates by the host).
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.parameter_distribution.memory_tiers import (
    cpu_offload_optimizer as tiers,
)
from exemplars.runtime import World, meter, report, span, world

RATE, STEPS = 0.01, 2


class OutOfCore:
    """A stack of layers on the host, of which a block is on the device."""

    def __init__(
        self, w: World, slow: list[Tensor], block: int, budget: int
    ) -> None:
        self.w, self.slow, self.block, self.budget = w, slow, block, budget
        self.momentum = [torch.zeros_like(t) for t in slow]
        self.link = tiers.Link()
        #: The hosts talk to each other: NCCL would not take their tensors.
        self.hosts = dist.new_group(backend="gloo")

    def room(self, x: Tensor) -> int:
        """How many inputs of blocks may be on the device at once."""
        n, weight = self.block, self.slow[0].nbytes
        #: Most is there when backward is in the first layer of a block, with
        #: all gradients of weights; or in the last, with all activations.
        first = 2 * n * weight + 5 * x.nbytes
        work = max(first, (n + 1) * weight + (n + 4) * x.nbytes)
        need = f"budget {self.budget}: a block needs {work} bytes"
        self.w.require(work <= self.budget, need)
        return 1 + (self.budget - work) // x.nbytes

    def up(self, x: Tensor) -> Tensor:
        """A copy in fast memory, for as long as it is used."""
        into = torch.empty_like(x, device=self.w.device)
        self.link.up(x, into)
        return into

    def step(self, x: Tensor) -> None:
        """Forward, backward and update, for half the sum of squares."""
        blocks = [*range(0, len(self.slow), self.block)]
        kept, swapped = list[Tensor](), list[Tensor]()
        stay = self.room(x)
        for first in blocks:
            #: The last ones stay: they are the first that backward needs.
            if len(blocks) - len(swapped) > stay:
                swapped.append(self.link.down(x))
            else:
                kept.append(x)
            with torch.no_grad(), span("forward", cost=self.block):
                for slow in self.slow[first : first + self.block]:
                    #: One layer's weights at a time; they are only read.
                    x = layer(x, self.up(slow))
        dy = x
        for first in reversed(blocks):
            x = kept.pop() if kept else self.up(swapped.pop())
            dy = self.back(first, x, dy)

    def back(self, first: int, x: Tensor, dy: Tensor) -> Tensor:
        """Through a block, from its input; its update is the host's."""
        layers = range(len(self.slow))[first : first + self.block]
        inputs = [x, *(self.up(self.slow[i]) for i in layers)]
        inputs = [t.detach().requires_grad_() for t in inputs]
        with span("backward", cost=3 * len(layers)):
            #: Nothing within the block was kept: forward once more.
            y, *weights = inputs
            for weight in weights:
                y = layer(y, weight)
            dx, *gradients = torch.autograd.grad(y, inputs, dy)
        for i in layers:
            self.update(i, self.link.down(gradients.pop(0)))
        return dx

    def update(self, i: int, gradient: Tensor) -> None:
        """Sum over the replicas, and momentum; the device is not asked."""
        #: While the device goes back through the blocks before.
        dist.all_reduce(gradient, group=self.hosts)
        self.momentum[i].mul_(0.9).add_(gradient)
        self.slow[i].add_(self.momentum[i], alpha=-RATE)


def layer(x: Tensor, weight: Tensor) -> Tensor:
    """A matrix and a tanh."""
    return (x @ weight).tanh()


class Watched(tiers.Link):
    """A link that tells a ledger what it has put into slow memory."""

    memory: Any
    last: Tensor | None = None

    def down(self, x: Tensor) -> Tensor:
        self.last = super().down(x)
        self.memory.mark("down")
        below, self.last = self.last, None
        return below


def network(w: World, layers: int, width: int) -> list[Tensor]:
    """Square matrices, on the host."""
    scale = width**-0.5
    matrices = (w.randn(width, width, seed=i) * scale for i in range(layers))
    return [matrix.to(tiers.SLOW) for matrix in matrices]


def samples(w: World, step: int, rank: int, *shape: int) -> Tensor:
    """A replica's rows of a step."""
    return w.randn(*shape, seed=step * w.size + rank)


def reference(w: World, layers: int, width: int, rows: int) -> list[Tensor]:
    """One process, all rows, and everything in one memory."""
    weights = [t.requires_grad_() for t in network(w, layers, width)]
    sgd = torch.optim.SGD(weights, lr=RATE, momentum=0.9)
    for step in range(STEPS):
        every = [samples(w, step, r, rows, width) for r in range(w.size)]
        x = torch.cat(every).to(tiers.SLOW)
        for weight in weights:
            x = torch.tanh(x @ weight)
        sgd.zero_grad()
        (x.square().sum() / 2).backward()
        sgd.step()
    return [*weights]


def main(
    w: World,
    *,
    layers: int = 6,
    block_layers: int = 2,
    width: int = 16,
    local_batch: int = 12,
    budget: int = 17_000,
) -> None:
    fits = layers % block_layers == 0
    w.require(fits, f"{layers} layers are no multiple of {block_layers}")
    slow = network(w, layers, width)
    model = OutOfCore(w, slow, block_layers, budget)
    link = model.link = Watched()
    link.memory = w.memory(slow=lambda: [*slow, *model.momentum, link.last])
    with meter() as moved, link.memory:
        for step in range(STEPS):
            model.step(samples(w, step, w.rank, local_batch, width))
    truth = partial(reference, w, layers, width, local_batch)
    # Another order of additions over the replicas.
    w.check("parameters", slow, truth, slack=64)
    w.check_same("same", [t.to(w.device) for t in slow])
    fast = [sum(s.values()) - s["slow"] for s in link.memory.series]
    found = {"down": link.bytes_down, "up": link.bytes_up}
    found |= {"resident": max(fast), "payload": moved.payload}
    report(w, given={"itemsize": 8, "steps": STEPS}, **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
