"""Synthetic gradients: a layer predicts its gradient and does not wait for it.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.layer_local.synthetic_gradients

Each of p layers is on a rank. In backpropagation a layer that has sent its
output on waits until all layers above have gone forward and back. Here a
small model M, a matrix per layer, says at once what will come back:

    h = f(x)           sent on
    g = h M            predicted: f is updated with it, now
    x' = df/dx g       sent back, for the predictor of the layer below

One batch later the gradient of h arrives from the layer above, and M learns
from the difference. It need not be the true one: the layer above has used a
prediction itself, so what the last layer knows moves down by one layer with
each batch. With a perfect predictor this is backpropagation, to the last
digit; with M = 0, where it begins, no layer but the last one learns.

No update waits for a layer above, so m batches take m(f+b) + (p-1)f seconds,
as in greedy training. But as many bytes go back as in backpropagation.

f and b are the seconds of a forward and a backward of one layer.

Source: Jaderberg et al. 2017, section 2.1.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from exemplars.parameter_distribution.inter_layer import layer_partition
from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Step, Task, digits, equal_layers


class Predictor:
    """The gradient of a loss as a linear function of an activation."""

    def __init__(self, like: Tensor, rate: float) -> None:
        #: From zero: a prediction out of nothing would be worse than none.
        self.matrix, self.rate = torch.zeros_like(like), rate

    def predict(self, h: Tensor, labels: Tensor) -> Tensor:
        """What should come back, for a mean over these labels."""
        return h @ self.matrix / labels.numel()

    def learn(self, h: Tensor, came: Tensor, labels: Tensor) -> None:
        """Least squares, for each label, from what did come back."""
        error = h @ self.matrix / labels.numel() - came
        self.matrix -= self.rate * torch.einsum("...i,...j->ij", h, error)


class Oracle(Predictor):
    """Has a copy of all layers above, and trains it as they are trained."""

    def __init__(self, w: World, task: Task, rate: float) -> None:
        layers = [*task.model().to(w.device).children()]
        self.task, self.above = task, nn.Sequential(*layers[w.rank + 1 :])
        self.sgd = torch.optim.SGD(self.above.parameters(), lr=rate)

    def predict(self, h: Tensor, labels: Tensor) -> Tensor:
        """The true gradient."""
        loss = self.task.loss(self.above, h.requires_grad_(), labels)
        self.sgd.zero_grad()
        (loss / labels.numel()).backward()
        self.sgd.step()
        return cast(Tensor, h.grad)

    def learn(self, h: Tensor, came: Tensor, labels: Tensor) -> None:
        """It knows already."""


def swap(peer: int, out: Tensor | None, into: Tensor | None) -> None:
    """Send and receive at the same time, or one of the two."""
    ops = [] if out is None else [dist.P2POp(dist.isend, out, peer)]
    ops += [] if into is None else [dist.P2POp(dist.irecv, into, peer)]
    #: One batch: an output goes up while a gradient comes down, and NCCL
    #: would wait for the first before it began the second.
    for work in dist.batch_isend_irecv(ops):
        work.wait()


def pass_up(w: World, h: Tensor, old: Any, y: Tensor, by: Predictor) -> Tensor:
    """Send an output of these labels up, and guess what will come back."""
    came = None if old is None else torch.empty_like(h)
    swap(w.rank + 1, h, came)
    #: The gradient of the old output: late, so nobody has waited for it.
    if came is not None:
        by.learn(old, came, y)
    return by.predict(h.clone(), y)


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    batch: int,
    rate: float,
    predictor: Predictor,
) -> Iterator[Step]:
    """Plain SGD on what is predicted; the last layer knows its gradient."""
    part, dx, old = layer_partition.Part(w, task), None, None
    sgd = torch.optim.SGD(part.layers.parameters(), lr=rate)
    for step in range(steps):
        samples, labels = (t.to(w.device) for t in task.batch(step, batch))
        x = part.entering(samples)
        if not part.first:
            #: The gradient of the last input goes down, the next input up.
            swap(w.rank - 1, dx, x)
        with span("F", label=step, cost=1):
            y = part.forward(x, labels, labels.numel())
        h, guess = y.detach(), None
        if not part.last:
            guess = pass_up(w, h, old, labels, predictor)
        with span("B", label=step, cost=2):
            sgd.zero_grad()
            #: The update is complete before anything has come back.
            y.backward(guess)
            sgd.step()
        dx, old = x.grad, h
        yield Step(y.item() if part.last else 0.0, [*part.layers.parameters()])


def reference(
    w: World, task: Task, steps: int, batch: int, rate: float, pace: float
) -> list[Tensor]:
    """One process: every layer of its own, and predictors by autograd."""
    layers = [*task.model().to(w.device).children()]
    nets = [*layers[: w.size - 1], nn.Sequential(*layers[w.size - 1 :])]
    guesses = [w.randn(64, 64).zero_().requires_grad_() for _ in nets]
    own: Any = {"params": nn.ModuleList(nets).parameters()}
    sgd = torch.optim.SGD([own, {"params": guesses, "lr": pace}], lr=rate)
    for step in range(steps):
        x, labels = (t.to(w.device) for t in task.batch(step, batch))
        ends, starts = list[Tensor](), list[Tensor]()
        for net in nets:
            starts.append(x.detach().requires_grad_())
            ends.append(net(starts[-1]))
            x = ends[-1]
        sgd.zero_grad()
        nn.functional.cross_entropy(ends.pop(), labels).backward()
        for y, guess in zip(ends, guesses):
            y.backward(y.detach() @ guess.detach() / batch)
        for y, guess, start in zip(ends, guesses, starts[1:]):
            error = y.detach() @ guess - cast(Tensor, start.grad) * batch
            (error.square().sum() / 2 / batch).backward()
        sgd.step()
    return [*nets[w.rank].parameters()]


def main(
    w: World,
    *,
    steps: int = 6,
    batch: int = 16,
    rate: float = 0.5,
    pace: float = 0.01,
) -> None:
    w.require(w.size > 1, f"{w.size} rank: nothing is above; use 2 or more")
    #: One layer of 64 units per rank, and one more as the classifier.
    task = replace(digits, model=lambda: equal_layers(w.size + 1, 64))
    sizes: dict[str, Any] = {"steps": steps, "batch": batch, "rate": rate}
    *_, last = train(w, task, predictor=Oracle(w, task, rate), **sizes)
    perfect = parameters_to_vector(last.weights).detach()
    square = w.randn(64, 64, seed=0)
    with meter() as moved:
        *_, last = train(w, task, predictor=Predictor(square, pace), **sizes)
    backprop = partial(layer_partition.reference, w, task, **sizes)
    # A linear predictor's gradient by hand or by autograd: rounding only.
    w.check("perfect", perfect, lambda: backprop()[1], slack=16)
    alone = partial(reference, w, task, pace=pace, **sizes)
    w.check("weights", last.weights, alone, slack=64)
    back = moved.sent_to[w.rank - 1] if w.rank > 0 else 0
    given = {"microbatches": steps, "activation_bytes": batch * 64 * 8}
    given |= {"forward": 1, "backward": 2}
    report(w, given=given, bytes_sent=moved.bytes_sent, sent_back=back)


if __name__ == "__main__":
    with world() as w:
        main(w)
