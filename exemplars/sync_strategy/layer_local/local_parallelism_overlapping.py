"""Overlapping blocks: a layer learns from its own loss and the next one's.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.layer_local.local_parallelism_overlapping

Source: Xiong et al. 2020 (LoCo); Laskin et al. 2020.

Blocks of two layers, shifted by one, so that neighbours share a layer. For
p = 4 layers, one on a rank, there are three blocks, with a loss each:

    layers    0   1   2   3
    block 0  [0   1]            loss at layer 1
    block 1      [1   2]        loss at layer 2
    block 2          [2   3]    loss at layer 3, the true one

A loss goes back through the two layers of its block and no further. So one
gradient crosses each cut, the shared layer's, and stops in the layer below:
it is used there for the weights and not passed on. A layer hears from one
layer above how useful its output was, which a greedy layer never does. With
two layers there is one block, and this is backprop.

The price beside greedy: bytes go back, a layer waits for its neighbour's
backward, and an inner layer goes backward twice.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Step, digits

BATCHES, ROWS, WIDTH, RATE = 4, 16, 64, 0.5
FORWARD, BACKWARD = 1, 2  # virtual seconds


class Layer(nn.Module):
    """A layer, and the classifier that gives it a loss of its own."""

    def __init__(self, index: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(index)
            self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
            self.head = nn.Linear(WIDTH, 10)
        self.double()

    def loss(self, h: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(h), labels)

    def update(self) -> None:
        """Plain SGD; layer 0 has no loss of its own, so no classifier."""
        for p in self.parameters():
            if p.grad is not None:
                p.data.sub_(p.grad, alpha=RATE)
        self.zero_grad()


def train(w: World, layer: Layer) -> Iterator[Step]:
    """Two backwards a batch: of our loss, and of the next layer's."""
    r, p = w.rank, w.size
    for i in range(BATCHES):
        x, labels = batch(w, i)
        if r > 0:
            dist.recv(x, r - 1)
        x.requires_grad_(r > 0)
        with span("F", label=i, cost=FORWARD):
            h = layer.body(x)
            loss = layer.loss(h, labels)
        if r < p - 1:
            dist.send(h.detach(), r + 1)
        if r > 0:
            with span("own", label=i, cost=BACKWARD):
                loss.backward(retain_graph=r < p - 1)
            assert x.grad is not None
            #: Sent before the next layer's gradient comes in and adds to it:
            #: what goes below is of our loss alone.
            dist.send(x.grad, r - 1)
        if r < p - 1:
            dh = torch.empty_like(h)
            dist.recv(dh, r + 1)
            with span("next", label=i, cost=BACKWARD):
                h.backward(dh)
        layer.update()
        yield Step(samples=ROWS, loss=loss.item())


def batch(w: World, i: int) -> tuple[Tensor, Tensor]:
    x, labels = digits.batch(i, ROWS)
    return x.to(w.device), labels.to(w.device)


def reference(w: World) -> list[Tensor]:
    """One process; each layer learns from two losses, by their definition."""
    layers = [Layer(s).to(w.device) for s in range(w.size)]
    for i in range(BATCHES):
        x, labels = batch(w, i)
        slopes = []
        for s, layer in enumerate(layers):
            h = layer.body(x)
            losses = [layer.loss(h, labels)] if s > 0 else []
            for above in layers[s + 1 : s + 2]:
                losses.append(above.loss(above.body(h), labels))
            weights = [*(layer if s > 0 else layer.body).parameters()]
            total = torch.stack(losses).sum()
            slopes.append((weights, torch.autograd.grad(total, weights)))
            x = h.detach()
        with torch.no_grad():
            for weights, grads in slopes:
                for weight, g in zip(weights, grads):
                    weight.sub_(g, alpha=RATE)
    return [*layers[w.rank].parameters()]


def backprop(w: World) -> list[Tensor]:
    """The last loss, through all layers; this rank's weights afterwards."""
    layers = [Layer(s).to(w.device) for s in range(w.size)]
    for i in range(BATCHES):
        h, labels = batch(w, i)
        for layer in layers:
            h = layer.body(h)
        layers[-1].loss(h, labels).backward()
        for layer in layers:
            layer.update()
    return [*layers[w.rank].parameters()]


def main(w: World) -> None:
    w.require(w.size > 1, "1 rank: a block has two layers; use 2 or more")
    layer = Layer(w.rank).to(w.device)
    with meter() as moved:
        for _ in train(w, layer):
            pass
    # A sum of two gradients, or the gradient of a sum: rounding only.
    trained = [*layer.parameters()]
    w.check("weights", trained, lambda: reference(w), slack=64)
    if w.size == 2:
        w.check("weights", trained, lambda: backprop(w), slack=64)
    given = dict(m=BATCHES, a=ROWS * WIDTH * 8, f=FORWARD, b=BACKWARD)
    back = moved.sent_to[w.rank - 1] if w.rank > 0 else 0
    report(w, given=given, bytes_sent=moved.bytes_sent, sent_back=back)


if __name__ == "__main__":
    with world() as w:
        main(w)
