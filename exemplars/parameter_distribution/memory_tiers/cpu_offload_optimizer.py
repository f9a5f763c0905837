"""Offloaded optimizer: Adam's state and step live in a slower, larger memory.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.memory_tiers.cpu_offload_optimizer

Forward and backward need weights and gradients: much arithmetic on few bytes.
The update needs master weights and two moments as well: little arithmetic on
many bytes. So the update runs where memory is cheap, and each rank does it for
its own shard:

    fast   forward, backward; reduce-scatter the gradient
    down   the shard's gradient, from fast to slow memory
    slow   Adam, with the shard's master weights and moments
    up     the shard's new weights, from slow to fast memory
    fast   all-gather the weights

The moments never move. For each element of a shard one gradient goes down and
one weight comes up, and each of p ranks moves 1/p of the model over a link of
its own. On a CPU both tiers are host memory; the bytes counted are the same.

Source: Ren et al. 2021 (ZeRO-Offload), sections 3 and 4.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from exemplars.parameter_distribution.sharded.zero_1 import (
    Make,
    Zero1,
    gradient,
    reference,
    stranger,
)
from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Optimizers, Step, Task, random_rows

SLOW = torch.device("cpu")


class Link:
    """The way between fast and slow memory; it knows what it has carried."""

    def __init__(self) -> None:
        self.bytes_down = self.bytes_up = 0

    def down(self, x: Tensor) -> Tensor:
        """A copy in slow memory."""
        self.bytes_down += x.nbytes
        return x.to(SLOW, copy=True)

    def up(self, x: Tensor, into: Tensor) -> None:
        """Overwrite a tensor in fast memory."""
        self.bytes_up += x.nbytes
        into.copy_(x)


class Offloaded:
    """An optimizer whose state, and whose work, are in slow memory.

    `make` is any element-wise optimizer, such as torch.optim.AdamW.
    """

    def __init__(
        self,
        weights: Iterable[nn.Parameter],
        make: Make,
        link: Link,
        **options: Any,
    ) -> None:
        self.weights, self.link = [*weights], link
        #: The optimizer knows these copies only, so its moments are slow too.
        copies = [p.detach().to(SLOW, copy=True) for p in self.weights]
        self.masters = [nn.Parameter(copy) for copy in copies]
        self.local = make(self.masters, **options)

    def zero_grad(self) -> None:
        """Forget the gradients in fast memory; slow memory keeps none."""
        for p in self.weights:
            p.grad = None

    def step(self) -> None:
        """Down, update, up."""
        for p, master in zip(self.weights, self.masters):
            with span("down"):
                #: A gradient goes down; master weights are there already.
                master.grad = self.link.down(gradient(p))
        with span("slow", cost=4):
            self.local.step()
            #: Slow memory keeps master weights and moments, and no gradient.
            self.local.zero_grad()
        for p, master in zip(self.weights, self.masters):
            with span("up"):
                #: Into the very weights that the model uses.
                self.link.up(master.detach(), into=p.detach())


def train(
    w: World, task: Task, *, batch: int, steps: int, link: Link | None = None
) -> Iterator[Step]:
    """Train on this rank's share of every batch, with AdamW."""
    model = task.model().to(w.device)
    slow = partial(Offloaded, make=AdamW, link=link or Link())
    #: ZeRO-1 gives it this rank's shard of gradients and weights, and gathers
    #: the new weights: so a rank's link carries a p-th, and the network all.
    optimizer = Zero1(model.parameters(), slow)
    for step in range(steps):
        whole = (t.to(w.device) for t in task.batch(step, batch))
        x, y = (t.tensor_split(w.size)[w.rank] for t in whole)
        optimizer.zero_grad()
        with span("fast", label=step, cost=3):
            #: Times p, for the shards are means over the ranks.
            loss = task.loss(model, x, y) * w.size / batch
            loss.backward()
        optimizer.step()
        yield Step(loss.item(), [*model.parameters()])


def compare(w: World, task: Task, weights: Any, **sizes: Any) -> None:
    """Hold the weights, and a stranger's, against those of one process."""
    *_, odd = train(w, stranger(task), **sizes)
    # Another order of additions in the gradient, through Adam's division.
    for model, found in (task, weights), (stranger(task), odd.weights):
        truth = partial(reference, w, model, **sizes)
        w.check("parameters", found, truth, slack=256)


def main(
    w: World,
    *,
    layers: int = 3,
    width: int = 17,
    batch: int = 50,
    steps: int = 2,
) -> None:
    task = random_rows(w, layers, width)
    weights, link, optimizers = list[Tensor](), Link(), Optimizers()
    memory = w.memory(
        fast_weights=lambda: weights,
        fast_gradients=lambda: [p.grad for p in weights],
        slow_master=lambda: [*optimizers.weights(), *optimizers.gradients()],
        slow_moments=optimizers.moments,
    )
    with optimizers, memory, meter() as moved:
        for step in train(w, task, batch=batch, steps=steps, link=link):
            weights[:] = step.weights
            memory.mark("step")
    compare(w, task, weights, batch=batch, steps=steps)
    w.check_same("same", weights)
    live = memory.live("step")
    fast = live["fast_weights"] + live["fast_gradients"]
    slow = live["slow_master"] + live["slow_moments"]
    given = {"elements": sum(p.numel() for p in weights), "itemsize": 8}
    found = {"down": link.bytes_down, "up": link.bytes_up, "fast": fast}
    report(w, given=given, volume=moved.wire, slow=slow, **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
