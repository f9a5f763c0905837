"""Weight prediction: compute with the weights one will have at the update.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.pipeline_stale.weight_prediction

A pipeline without flush: between a batch's forward and its backward, stage s
makes p-1-s updates. Instead of stashing the old weights, the stage guesses
the new ones. It follows the velocity v, a running mean of gradients, for as
many updates as will have been made when batch i makes its own:

    v = gamma v + (1 - gamma) gradient       w = w - rate v

    forward    w - d rate v     d = i - version of w: p-1-s ahead
    backward   w as it is       by now the version that was predicted

One buffer of weights is enough for any number of batches on their way. If v
were constant the prediction would be exact, and the gradient as fresh as that
of one process. It is not, so forward and backward see weights that differ by
the error of the prediction, and the backward is only nearly that of a loss.

Source: Chen et al. 2018 (SpecTrain); Guan et al. 2019 (XPipe).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from exemplars.parameter_distribution.inter_layer.layer_partition import Part
from exemplars.runtime import World, meter, report, span, world
from exemplars.sync_strategy.pipeline_flush.one_f_one_b import (
    exchange,
    one_f_one_b,
)
from exemplars.workload import Step, Task, digits, equal_layers

GAMMA = 0.9


class Stage:
    """A part of the model, its velocity, and the batches on their way."""

    def __init__(self, w: World, task: Task, rate: float) -> None:
        self.part, self.rate, self.version = Part(w, task), rate, 0
        self.weights = [*self.part.layers.parameters()]
        self.velocity: list[Tensor] = []
        self.waiting: dict[int, tuple[int, Tensor, Tensor]] = {}

    def forward(self, i: int, x: Tensor, labels: Tensor) -> Tensor:
        """Batch i through the weights that update i is expected to find."""
        #: Batch i will make update i, whatever else is on its way.
        ahead = i - self.version
        now = [t.detach().clone() for t in self.weights]
        for weight, v in zip(self.weights, self.velocity):
            weight.data.sub_(v, alpha=ahead * self.rate)
        y = self.part.forward(x, labels, labels.numel())
        #: Back to the true weights, in the same memory: autograd has kept
        #: this buffer, and the backward will find there what is then true.
        for weight, true in zip(self.weights, now):
            weight.data.copy_(true)
        self.waiting[i] = ahead, x, y
        return y.detach()

    def backward(self, i: int, dy: Tensor) -> tuple[Tensor | None, int]:
        """Through the newest weights; what goes on, and how far ahead."""
        ahead, x, y = self.waiting.pop(i)
        inputs = self.weights if self.part.first else [*self.weights, x]
        grads = torch.autograd.grad(y, inputs, None if self.part.last else dy)
        #: The first gradient is the first velocity: with zeros it would take
        #: 1 / (1 - gamma) updates until the mean is one.
        self.velocity = self.velocity or [g.clone() for g in grads]
        for weight, v, grad in zip(self.weights, self.velocity, grads):
            v.lerp_(grad, 1 - GAMMA)
            weight.data.sub_(v, alpha=self.rate)
        self.version += 1
        return None if self.part.first else grads[-1], ahead


def train(
    w: World, task: Task, *, steps: int, batch: int, rate: float
) -> Iterator[Step]:
    """A step is a batch; its age is the distance of the prediction."""
    stage = Stage(w, task, rate)
    outgoing, target = None, w.rank
    #: The order of 1F1B, as if all of training were one batch: no flush.
    for kind, i in one_f_one_b(w.rank, w.size, steps):
        if kind == "F":
            samples, labels = (t.to(w.device) for t in task.batch(i, batch))
            x = stage.part.entering(samples)
            exchange(outgoing, target, x, w.rank - 1)
            with span("F", label=i, cost=1):
                outgoing, target = stage.forward(i, x, labels), w.rank + 1
        else:
            y = stage.waiting[i][-1].detach()
            dy = torch.empty_like(y)
            exchange(outgoing, target, dy, w.rank + 1)
            with span("B", label=i, cost=2):
                outgoing, ahead = stage.backward(i, dy)
            target = w.rank - 1
            loss = y.item() if stage.part.last else float("nan")
            yield Step(loss, stage.weights, ahead)
    exchange(outgoing, target, None, w.rank)


def reference(
    w: World, task: Task, *, steps: int, batch: int, rate: float
) -> Tensor:
    """One process; values of the guessed weights, slopes of the true ones."""
    weights = [*task.model().to(w.device).parameters()]
    sgd = torch.optim.SGD(weights, rate, momentum=GAMMA, dampening=GAMMA)
    past, linear = [], nn.functional.linear
    for i in range(steps):
        v = [sgd.state[a].get("momentum_buffer", 0.0) for a in weights]
        past.append([(a.detach().clone(), 1 * b) for a, b in zip(weights, v)])
        h, labels = (t.to(w.device) for t in task.batch(i, batch))
        for s in range(w.size):
            own, n = slice(2 * s, 2 * s + 2), max(0, i - (w.size - 1 - s))
            guess = [a - (i - n) * rate * v for a, v in past[n][own]]
            z = linear(h, *weights[own])
            h = (z + (linear(h, *guess) - z).detach()).tanh()
        sgd.zero_grad()
        nn.functional.cross_entropy(h, labels).backward()
        sgd.step()
    return parameters_to_vector(weights[2 * w.rank : 2 * w.rank + 2])


def observe(
    w: World, task: Task, sizes: Any, *, constant: bool
) -> tuple[Tensor, Tensor, int]:
    """Train; weights of each forward, after each update, how far ahead."""
    guessed, true = list[Tensor](), list[Tensor]()

    def see(layer: nn.Module, _: object) -> None:
        guessed.append(parameters_to_vector(layer.parameters()).detach())

    def model() -> nn.Module:
        layers = task.model().to(w.device)
        own = [*layers.children()][w.rank]
        own.register_forward_pre_hook(see)
        #: A gradient that is the same for every batch: so is the velocity.
        for weight in own.parameters() if constant else []:
            weight.register_hook(torch.ones_like)
        return layers

    for step in train(w, replace(task, model=model), **sizes):
        true.append(parameters_to_vector(step.weights).detach())
    return torch.stack(guessed), torch.stack(true), step.age


def main(
    w: World, *, per_stage: int = 3, batch: int = 5, rate: float = 0.5
) -> None:
    w.require(w.size > 1, f"{w.size} rank: nothing is ahead; use 2")
    w.require(per_stage > 1, f"{per_stage} batch per stage; use 2")
    task = Task("digits", lambda: equal_layers(w.size, 64), digits.batch)
    sizes: Any = dict(steps=per_stage * w.size, batch=batch, rate=rate)
    guessed, true, ahead = observe(w, task, sizes, constant=True)
    #: Batch i finds the weights that batch i-1 has left. The first that come
    #: in after an update, and so have a velocity, is the one after `ahead`.
    w.check("constant", guessed[1 + ahead :], lambda: true[ahead:-1], 8)
    w.meters.clear()
    with meter() as moved:
        guessed, true, ahead = observe(w, task, sizes, constant=False)
    w.check("weights", true[-1], lambda: reference(w, task, **sizes), 64)
    found = {"distance": float(ahead)}
    if w.rank == 0 and not w.dry:
        error = guessed[1 + ahead :] - true[ahead:-1]
        stale = true[: -1 - ahead] - true[ahead:-1]
        found["nearer"] = (error.norm() / stale.norm()).item()
    given = {"microbatches": sizes["steps"], "activation_bytes": batch * 512}
    report(w, given=given, bytes_sent=moved.bytes_sent, **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
