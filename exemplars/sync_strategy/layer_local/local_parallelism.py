"""Local parallelism: blocks learn from losses of their own; none goes back.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.layer_local.local_parallelism

Source: Laskin et al. 2020.

Each of p layers lives on a rank. They are cut into J chunks. The last layer
of a chunk has a loss of its own (a small classifier), and gradients go back
to the chunk's first layer and no further. For p = 4:

    J = 1   [0 1 2 3]       backprop: one loss, at the end
    J = 2   [0 1] [2 3]     chunked
    J = 4   [0] [1] [2] [3] greedy: every layer for itself

Across a cut only activations travel, and only forward. A layer that has sent
them on can learn at once, while the layers above compute: p greedy layers on
m batches need m(f + b) + (p-1) f seconds, where a pipeline that must wait for
gradients needs (m+p-1)(f + b). The price: below the last chunk a gradient is
that of another loss. The last chunk has the true one, exactly.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Step, digits

BATCHES, ROWS, WIDTH, RATE = 4, 16, 64, 0.5
CHUNKS = 2
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
        self.gradients, self.sent_back = list[Tensor](), 0

    def loss(self, h: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(h), labels)

    def update(self) -> None:
        """Plain SGD; the gradients of the body are kept, to be checked."""
        for p in self.parameters():
            if p.grad is not None:  # without a loss the classifier has none
                p.data.sub_(p.grad, alpha=RATE)
        slopes = [p.grad for p in self.body.parameters() if p.grad is not None]
        self.gradients.append(torch.cat([g.view(-1) for g in slopes]))
        self.zero_grad()


def cut_below(layer: int, layers: int, chunks: int) -> bool:
    """Whether a chunk begins with this layer (or would, after the last)."""
    return layer * chunks // layers > (layer - 1) * chunks // layers


def train(w: World, layer: Layer, chunks: int) -> Iterator[Step]:
    """Each batch goes through once; each chunk learns when it has seen it."""
    r, p = w.rank, w.size
    first, last = cut_below(r, p, chunks), cut_below(r + 1, p, chunks)
    for i in range(BATCHES):
        x, labels = batch(w, i)
        if r > 0:
            dist.recv(x, r - 1)
        x.requires_grad_(not first)
        with span("F", label=i, cost=FORWARD):
            h = layer.body(x)
        #: On before it goes back: nobody above waits for our learning.
        if r < p - 1:
            dist.send(h.detach(), r + 1)
        dh = torch.empty_like(h)
        if not last:
            dist.recv(dh, r + 1)
        with span("B", label=i, cost=BACKWARD):
            loss = layer.loss(h, labels)
            goal = loss if last else (h * dh).sum()
            goal.backward()
            layer.update()
        if x.grad is not None:
            dist.send(x.grad, r - 1)
            layer.sent_back += x.grad.nbytes
        yield Step(samples=ROWS, loss=loss.item())


def batch(w: World, i: int) -> tuple[Tensor, Tensor]:
    x, labels = digits.batch(i, ROWS)
    return x.to(w.device), labels.to(w.device)


def reference(w: World, chunks: int) -> list[Tensor]:
    """The whole network on one process; this rank's gradients, by batch."""
    layers = [Layer(s).to(w.device) for s in range(w.size)]
    for i in range(BATCHES):
        h, labels = batch(w, i)
        for s, layer in enumerate(layers):
            if cut_below(s, w.size, chunks):
                h = h.detach()
            h = layer.body(h)
            if cut_below(s + 1, w.size, chunks):
                layer.loss(h, labels).backward()
        for layer in layers:
            layer.update()
    return layers[w.rank].gradients


def run(w: World, chunks: int) -> Layer:
    """This rank's layer, after all batches."""
    layer = Layer(w.rank).to(w.device)
    for _ in train(w, layer, chunks):
        pass
    return layer


def main(w: World) -> None:
    w.require(w.size > 1, "1 rank: one layer has no cut; use 2 or more")
    backprop, chunked = run(w, chunks=1), run(w, CHUNKS)
    with meter() as moved:
        greedy = run(w, chunks=w.size)
    # The same operations on the same numbers: bit for bit.
    w.check("backprop", backprop.gradients, lambda: reference(w, 1), slack=0)
    w.check("chunked", chunked.gradients, lambda: reference(w, CHUNKS), 0)
    w.check("greedy", greedy.gradients, lambda: reference(w, w.size), 0)
    true, local, found = backprop.gradients[0], greedy.gradients[0], {}
    if w.rank == w.size - 1:
        w.check("last", local, lambda: true, slack=0)
    if w.rank == 0 and not w.dry:
        found["cosine"] = F.cosine_similarity(local, true, dim=0).item()
    given = dict(m=BATCHES, a=ROWS * WIDTH * 8, f=FORWARD, b=BACKWARD)
    sent = dict(bytes_sent=moved.bytes_sent, sent_back=chunked.sent_back)
    report(w, given={**given, "c": CHUNKS}, **sent, **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
