"""Interlocking backpropagation: a loss at every layer, and a bounded way back.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.layer_local.interlocking_backprop

Each of p layers is on a rank and has a loss of its own, by a classifier of
its own. The gradient of a loss goes back through a window of layers and no
further, so layer s learns from losses s to s+window-1. For p = 4:

    window 1   loss 3: [3]          loss 2: [2]        loss 1: [1]     greedy
    window 2   loss 3: [3 2]        loss 2: [2 1]      loss 1: [1 0]
    window 4   loss 3: [3 2 1 0]    loss 2: [2 1 0]    loss 1: [1 0]   all

Every gradient but the one whose window ends here is passed on, each on its
own: added up, nobody could take the oldest out again. So layer s sends
window-1 gradients back for each batch, and runs as many backwards as losses
reach it. A window of one is greedy training. A window of all layers is
backpropagation of the sum of all losses; it is that of the last loss only if
the others are given no weight.

Source: Gomez et al. 2022.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from exemplars.parameter_distribution.inter_layer.layer_partition import Part
from exemplars.parameter_distribution.inter_layer.layer_partition import (
    reference as backprop,
)
from exemplars.runtime import World, meter, report, span, world
from exemplars.sync_strategy.layer_local.local_parallelism import (
    reference as chunked,
)
from exemplars.workload import Step, Task, digits, equal_layers


class Layer:
    """A rank's layer, and the classifier that gives it a loss of its own."""

    def __init__(self, w: World, task: Task, rate: float) -> None:
        self.w, self.task, self.part = w, task, Part(w, task)
        self.body = self.part.layers[0]
        #: What follows the p layers of the model is its classifier. Every
        #: layer trains a copy, and only the last one's is kept.
        rest = [*task.model().children()][w.size :]
        self.head = nn.Sequential(*rest).to(w.device)
        learned = [*self.body.parameters(), *self.head.parameters()]
        self.kept = learned if self.part.last else [*self.body.parameters()]
        self.optimizer = torch.optim.SGD(learned, lr=rate)

    def learn(
        self, x: Tensor, h: Tensor, labels: Tensor, window: int, share: float
    ) -> float:
        """From the loss here, then from those of the layers above."""
        r, p = self.w.rank, self.w.size
        loss = self.task.loss(self.head, h, labels) / labels.numel()
        #: The others are a means to an end; a smaller share says so.
        goal, dh = loss if self.part.last else share * loss, None
        for distance in range(min(window, p - r)):
            if distance > 0:
                goal, dh = h, torch.empty_like(h)
                dist.recv(dh, r + 1)
            with span("B", label=r + distance, cost=1):
                #: The gradients of the weights add up, loss by loss.
                goal.backward(dh, retain_graph=True)
            #: Of the loss at this distance alone; at the window's end it
            #: stops.
            dx, x.grad = x.grad, None
            if dx is not None and distance + 1 < window:
                dist.send(dx.contiguous(), r - 1)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def train(
    w: World,
    task: Task,
    *,
    window: int,
    steps: int,
    batch: int,
    rate: float,
    share: float = 1.0,
) -> Iterator[Step]:
    """Plain SGD; share is the weight of every loss but the last."""
    layer = Layer(w, task, rate)
    for step in range(steps):
        samples, labels = (t.to(w.device) for t in task.batch(step, batch))
        x = layer.part.entering(samples)
        if w.rank > 0:
            dist.recv(x, w.rank - 1)
            x.requires_grad_()
        with span("F", label=step, cost=1):
            h = layer.body(x)
        #: Sent before this layer learns, so that the next can begin.
        if w.rank < w.size - 1:
            dist.send(h.detach(), w.rank + 1)
        loss = layer.learn(x, h, labels, window, share)
        yield Step(loss, layer.kept)


def reference(
    w: World, task: Task, *, window: int, steps: int, batch: int, rate: float
) -> Tensor:
    """One process; each loss sees its window and nothing below it."""
    parts = [*task.model().to(w.device).children()]
    heads = [[*task.model().to(w.device).children()][w.size :] for _ in parts]
    bodies, tails = parts[: w.size], [nn.Sequential(*h) for h in heads]
    every = nn.ModuleList([*bodies, *tails]).parameters()
    optimizer = torch.optim.SGD(every, lr=rate)
    for step in range(steps):
        x, labels = (t.to(w.device) for t in task.batch(step, batch))
        inputs = [x]
        for i in range(w.size):
            begin = max(0, i - window + 1)
            h = nn.Sequential(*bodies[begin : i + 1])(inputs[begin])
            (task.loss(tails[i], h, labels) / batch).backward()
            inputs.append(h.detach())
        optimizer.step()
        optimizer.zero_grad()
    own = nn.ModuleList([bodies[w.rank]])
    own.extend(tails[w.rank :][: w.rank == w.size - 1])
    return parameters_to_vector(own.parameters()).detach()


def main(
    w: World,
    *,
    window: int = 2,
    steps: int = 3,
    batch: int = 16,
    rate: float = 0.5,
) -> None:
    w.require(w.size > 1, f"{w.size} rank: nothing to interlock; use 2")
    #: One layer of 64 units per rank, and one more as the classifier.
    task = replace(digits, model=lambda: equal_layers(w.size + 1, 64))
    sizes: Any = dict(steps=steps, batch=batch, rate=rate)

    def run(**more: Any) -> Tensor:
        *_, last = train(w, task, **sizes, **more)
        return parameters_to_vector(last.weights).detach()

    greedy, summed = run(window=1), run(window=w.size)
    whole = run(window=w.size, share=0.0)
    w.meters.clear()
    with meter() as moved:
        weights = run(window=window)
    truth = partial(reference, w, task, **sizes)
    # A sum of gradients, or the gradient of a sum: rounding only.
    w.check("weights", weights, lambda: truth(window=window), 64)
    w.check("weights", summed, lambda: truth(window=w.size), 64)
    chunks = partial(chunked, w, task, chunks=w.size, **sizes)
    w.check("greedy", greedy, lambda: [*chunks()][-1], 64)
    w.check("whole", whole, lambda: backprop(w, task, **sizes)[1], 64)
    back = moved.sent_to[w.rank - 1] if w.rank > 0 else 0
    given = {"microbatches": steps, "activation_bytes": batch * 64 * 8}
    report(w, given=given, bytes_sent=moved.bytes_sent, sent_back=back)


if __name__ == "__main__":
    with world() as w:
        main(w)
