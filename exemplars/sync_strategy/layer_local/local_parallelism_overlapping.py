"""Overlapping blocks: a layer learns from its own loss and the next one's.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.layer_local.local_parallelism_overlapping

Blocks of two layers, shifted by one, so that neighbors share a layer. For
p = 4 layers, one per rank, there are three blocks with a loss each:

    layers    0   1   2   3
    block 0  [0   1]            loss at layer 1
    block 1      [1   2]        loss at layer 2
    block 2          [2   3]    loss at layer 3, the true one

A loss goes back through the two layers of its block and no further. So one
gradient crosses each cut, that of the shared layer, and stops in the layer
below: it is used there for the weights and not passed on. A layer learns from
the layer above how useful its output was, which a greedy layer never does.
With two layers there is one block, and this is backprop.

The price, compared with greedy training: bytes go back, a layer waits for its
neighbor's backward, and an inner layer goes backward twice.

Source: Xiong et al. 2020 (LoCo); Laskin et al. 2020.
"""

import copy
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
from exemplars.workload import Step, Task, digits, equal_layers


class Layer:
    """A rank's layer, and the classifier that gives it a loss of its own."""

    def __init__(self, w: World, task: Task, rate: float) -> None:
        self.w, self.task, self.part = w, task, Part(w, task)
        self.body = self.part.layers[0]
        #: What follows the p layers of the model is its classifier. Every
        #: layer but the first trains a copy; only the last one's is kept.
        rest = [*task.model().children()][w.size :]
        self.head = nn.Sequential(*rest).to(w.device)
        learned = [*self.body.parameters(), *self.head.parameters()]
        self.kept = learned if self.part.last else [*self.body.parameters()]
        self.optimizer = torch.optim.SGD(learned, lr=rate)

    def learn(
        self, x: Tensor, h: Tensor, labels: Tensor, step: int, cost: float
    ) -> float:
        """Two backwards: of our loss, and of the next layer's."""
        rank, loss = self.w.rank, torch.tensor(float("nan"))
        if not self.part.first:
            with span("own", label=step, cost=cost):
                loss = self.task.loss(self.head, h, labels) / labels.numel()
                #: The next layer's gradient goes through the same graph.
                loss.backward(retain_graph=not self.part.last)
            assert x.grad is not None
            #: Sent before the next layer's gradient comes in and adds to it:
            #: what goes below is of our loss alone.
            dist.send(x.grad.contiguous(), rank - 1)
        if not self.part.last:
            dh = torch.empty_like(h)
            dist.recv(dh, rank + 1)
            with span("next", label=step, cost=cost):
                #: The weights' gradients add up: those of a sum of losses.
                h.backward(dh)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    batch: int,
    rate: float,
    forward: float = 1,
    backward: float = 2,
) -> Iterator[Step]:
    """Plain SGD; forward and backward are virtual seconds of one layer."""
    layer = Layer(w, task, rate)
    for step in range(steps):
        samples, labels = (t.to(w.device) for t in task.batch(step, batch))
        x = layer.part.entering(samples)
        if w.rank > 0:
            dist.recv(x, w.rank - 1)
            x.requires_grad_()
        with span("F", label=step, cost=forward):
            h = layer.body(x)
        #: Sent before this layer learns, so that the next can begin.
        if w.rank < w.size - 1:
            dist.send(h.detach(), w.rank + 1)
        loss = layer.learn(x, h, labels, step, backward)
        yield Step(loss, layer.kept)


def reference(
    w: World, task: Task, *, steps: int, batch: int, rate: float
) -> Tensor:
    """One process; each layer learns from two losses, by their definition."""
    parts = [*task.model().to(w.device).children()]
    bodies, head = parts[: w.size], nn.Sequential(*parts[w.size :])
    heads = [copy.deepcopy(head) for _ in bodies]
    every = nn.ModuleList([*bodies, *heads]).parameters()
    optimizer = torch.optim.SGD(every, lr=rate)
    for step in range(steps):
        x, labels = (t.to(w.device) for t in task.batch(step, batch))
        for s, body in enumerate(bodies):
            h = body(x)
            own = [*body.parameters(), *heads[s].parameters()]
            losses = [task.loss(heads[s], h, labels)]
            if s == 0:
                own, losses = [*body.parameters()], []
            if s + 1 < w.size:
                above = bodies[s + 1](h)
                losses.append(task.loss(heads[s + 1], above, labels))
            grads = torch.autograd.grad(torch.stack(losses).sum() / batch, own)
            for weight, grad in zip(own, grads):
                weight.grad = grad
            x = h.detach()
        optimizer.step()
    kept = nn.ModuleList([bodies[w.rank]])
    kept.extend(heads[w.rank :] if w.rank == w.size - 1 else [])
    return parameters_to_vector(kept.parameters()).detach()


def main(
    w: World,
    *,
    steps: int = 4,
    batch: int = 16,
    rate: float = 0.5,
    forward: float = 1,
    backward: float = 2,
) -> None:
    w.require(w.size > 1, f"{w.size} rank: a block has two layers; use 2")
    #: One layer of 64 units per rank, and one more as the classifier.
    task = replace(digits, model=lambda: equal_layers(w.size + 1, 64))
    sizes: dict[str, Any] = {"steps": steps, "batch": batch, "rate": rate}
    cost: dict[str, Any] = {"forward": forward, "backward": backward}
    with meter() as moved:
        *_, last = train(w, task, **sizes, **cost)
    weights = parameters_to_vector(last.weights).detach()
    # A sum of two gradients, or the gradient of a sum: rounding only.
    w.check("weights", weights, lambda: reference(w, task, **sizes), slack=64)
    if w.size == 2:
        truth = partial(backprop, w, task, **sizes)
        w.check("weights", weights, lambda: truth()[1], slack=64)
    back = moved.sent_to[w.rank - 1] if w.rank > 0 else 0
    given = {"microbatches": steps, "activation_bytes": batch * 64 * 8}
    report(w, given=given, bytes_sent=moved.bytes_sent, sent_back=back)


if __name__ == "__main__":
    with world() as w:
        main(w)
