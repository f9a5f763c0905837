"""Local parallelism: chunks of layers learn from losses of their own.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.layer_local.local_parallelism

Put each of p layers on a rank and cut them into J chunks. The last layer of a
chunk has a loss of its own, from a small classifier, and gradients go back to
the chunk's first layer and no further. For p = 4:

    J = 1   [0 1 2 3]        backprop: one loss, at the end
    J = 2   [0 1] [2 3]      chunked
    J = 4   [0] [1] [2] [3]  greedy: every layer for itself

Only activations cross a cut, and only forward. A layer that has sent them on
can learn at once, while the layers above compute: p greedy layers need
m(f + b) + (p-1) f seconds for m batches. A pipeline that waits for gradients
needs (m+p-1)(f + b). The price is that below the last chunk the gradient is
that of another loss. The last chunk has the true one, exactly.

f and b are the seconds of a forward and a backward of one layer.

Source: Laskin et al. 2020.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from exemplars.parameter_distribution.inter_layer.layer_partition import Part
from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Step, Task, digits, equal_layers


def ends_chunk(layer: int, layers: int, chunks: int) -> bool:
    """Whether a chunk ends with this layer, and the next begins after it."""
    #: Layer i is in chunk i * chunks // layers: sizes differ by one at most.
    return (layer + 1) * chunks // layers > layer * chunks // layers


class Layer:
    """A rank's layer, and the classifier that it needs if it ends a chunk."""

    def __init__(self, w: World, task: Task, chunks: int, rate: float) -> None:
        w.require(1 <= chunks <= w.size, f"{chunks} chunks, {w.size} ranks")
        self.task, self.part = task, Part(w, task)
        self.begins = ends_chunk(w.rank - 1, w.size, chunks)
        self.ends = ends_chunk(w.rank, w.size, chunks)
        #: What follows the p layers of the model is its classifier. Every
        #: chunk trains a copy, and only the last chunk's is kept.
        body, rest = self.part.layers[0], [*task.model().children()][w.size :]
        self.body, self.head = body, nn.Sequential(*rest).to(w.device)
        learned = [*body.parameters(), *self.head.parameters()]
        self.kept = learned if self.part.last else [*body.parameters()]
        self.optimizer = torch.optim.SGD(learned, lr=rate)

    def learn(self, h: Tensor, dh: Tensor, labels: Tensor) -> float:
        """From a loss of its own, or from the gradient dh from above."""
        goal, loss = h, torch.tensor(float("nan"))
        if self.ends:
            goal = loss = self.task.loss(self.head, h, labels) / labels.numel()
        goal.backward(None if self.ends else dh)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def train(
    w: World,
    task: Task,
    *,
    chunks: int,
    steps: int,
    batch: int,
    rate: float,
    forward: float = 1,
    backward: float = 2,
) -> Iterator[Step]:
    """Plain SGD; forward and backward are virtual seconds of one layer."""
    layer = Layer(w, task, chunks, rate)
    for step in range(steps):
        samples, labels = (t.to(w.device) for t in task.batch(step, batch))
        x = layer.part.entering(samples)
        if w.rank > 0:
            dist.recv(x, w.rank - 1)
        #: Where a chunk begins, backward ends: nobody asks for a gradient.
        x.requires_grad_(not layer.begins)
        with span("F", label=step, cost=forward):
            h = layer.body(x)
        #: Sent before this layer learns: no layer above has to wait for it.
        if w.rank < w.size - 1:
            dist.send(h.detach(), w.rank + 1)
        dh = torch.empty_like(h)
        if not layer.ends:
            dist.recv(dh, w.rank + 1)
        with span("B", label=step, cost=backward):
            loss = layer.learn(h, dh, labels)
        if x.grad is not None:
            dist.send(x.grad.contiguous(), w.rank - 1)
        yield Step(loss, layer.kept)


def reference(
    w: World, task: Task, *, chunks: int, steps: int, batch: int, rate: float
) -> Iterator[Tensor]:
    """A copy of the network per layer; this rank's weights, step by step."""
    models = [task.model().to(w.device) for _ in range(w.size)]
    layers = [[*model.children()] for model in models]
    heads = [nn.Sequential(*copy[w.size :]) for copy in layers]
    optimizer = torch.optim.SGD(nn.ModuleList(models).parameters(), lr=rate)
    ends = {-(-w.size * (j + 1) // chunks) - 1 for j in range(chunks)}
    end = None if w.rank == w.size - 1 else w.rank + 1
    own = nn.ModuleList(layers[w.rank][w.rank : end])
    for step in range(steps):
        h, labels = (t.to(w.device) for t in task.batch(step, batch))
        optimizer.zero_grad()
        for s in range(w.size):
            h = layers[s][s](h)
            if s in ends:
                (task.loss(heads[s], h, labels) / batch).backward()
                h = h.detach()
        optimizer.step()
        yield parameters_to_vector(own.parameters()).detach()


def history(training: Iterator[Step]) -> list[Tensor]:
    """The weights that are kept, after every step."""
    return [parameters_to_vector(step.weights).detach() for step in training]


def cosine(task: Task, one: Tensor, other: Tensor) -> float:
    """Between two steps of the first layer, from where both started."""
    first = next(task.model().children())
    start = parameters_to_vector(first.parameters()).to(one.device)
    return torch.cosine_similarity(one - start, other - start, dim=0).item()


def main(
    w: World,
    *,
    chunks: int = 2,
    steps: int = 4,
    batch: int = 16,
    rate: float = 0.5,
    forward: float = 1,
    backward: float = 2,
) -> None:
    #: One layer of 64 units per rank, and one more as the classifier.
    task = Task("digits", lambda: equal_layers(w.size + 1, 64), digits.batch)
    sizes: dict[str, Any] = {"steps": steps, "batch": batch, "rate": rate}
    run = partial(train, w, task, **sizes, forward=forward, backward=backward)
    truth = partial(reference, w, task, **sizes)
    backprop = history(run(chunks=1))
    with meter() as between:
        chunked = history(run(chunks=chunks))
    #: Only greedy training is shown and timed.
    w.meters.clear()
    with meter() as moved:
        greedy = history(run(chunks=w.size))
    # The same operations on the same numbers: bit for bit.
    w.check("backprop", backprop, lambda: [*truth(chunks=1)], slack=0)
    w.check("chunked", chunked, lambda: [*truth(chunks=chunks)], slack=0)
    w.check("greedy", greedy, lambda: [*truth(chunks=w.size)], slack=0)
    if w.rank == w.size - 1:
        w.check("last", greedy[0], lambda: next(truth(chunks=1)), slack=0)
    found = {"sent_back": float(between.sent_to[w.rank - 1])}
    if w.rank == 0 and not w.dry:
        found["cosine"] = cosine(task, greedy[0], backprop[0])
    given = {"microbatches": steps, "activation_bytes": batch * 64 * 8}
    report(w, given=given, bytes_sent=moved.bytes_sent, **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
