"""Tied embedding over stages: one matrix, at both ends of the pipeline.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.inter_layer.tied_embedding_over_stages

A language model may use one matrix E twice: its rows turn tokens into vectors
at the start, and vectors into logits at the end. A pipeline cuts the model
between the two, so the first and the last stage each hold a copy:

    rank      0              1          2          3
    stage     E, layer 0     layer 1    layer 2    layer 3, E

Each copy sees half of the gradient: dE is the sum of what both ends computed.
So once per step, when all micro-batches are through, the ends exchange what
they have, V h numbers each way, and both add the same two terms. Copies that
start equal and get equal gradients stay equal, bit for bit.

Fold the pipeline, as in a V schedule, and both ends are on one rank:

    rank      0              1            2            3
    layers    E, 0 and 6     1 and 5      2 and 4      3

Now there is one E, to whose gradient autograd adds twice. Nothing is sent.

Source: Narayanan et al. 2021 (Megatron-LM on clusters); Qi et al. 2024.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from exemplars.runtime import World, meter, report, span, world

RATE = 0.1


class Part:
    """What a rank has of the model: the stages that `place` gives it."""

    #: place[s] is the rank of stage s; neighbors are on different ranks.

    def __init__(self, place: list[int], e: Tensor, layers: Tensor) -> None:
        self.place, self.rank = place, dist.get_rank()
        ends = {place[0], place[-1]}
        held, others = self.rank in ends, ends - {self.rank}
        #: One parameter, even if both ends are here: that is all of tying.
        #: A rank that has neither end has no rows of it.
        self.e = nn.Parameter(e[: len(e) if held else 0].clone())
        self.other = min(others) if held and others else None
        mine = [s for s, rank in enumerate(place) if rank == self.rank]
        self.layers = {s: nn.Parameter(layers[s].clone()) for s in mine}
        self.weights = [self.e, *self.layers.values()]

    def there_and_back(self, tokens: Tensor, labels: Tensor) -> None:
        """A micro-batch through the stages, and its gradient back."""
        kept, last = [], len(self.place) - 1
        for s, layer in self.layers.items():
            x = layer.new_empty(len(tokens), len(layer))
            if s > 0:
                dist.recv(x, self.place[s - 1])
            start = x.requires_grad_() if s else F.embedding(tokens, self.e)
            with span("F", label=s, cost=1):
                y = (start @ layer.T).tanh()
            if s < last:
                dist.send(y.detach(), self.place[s + 1])
            else:
                #: The same rows that were vectors of tokens score them now.
                y = F.cross_entropy(y @ self.e.T, labels, reduction="sum")
            kept.append((s, x, y))
        for s, x, y in reversed(kept):
            dy = torch.ones_like(y)
            if s < last:
                dist.recv(dy, self.place[s + 1])
            with span("B", label=s, cost=2):
                y.backward(dy)
            if x.grad is not None:
                dist.send(x.grad, self.place[s - 1])


def share(part: Part) -> None:
    """Before the first step: the last stage gets the first stage's E."""
    #: Two random matrices would never become one by equal gradients.
    if part.other is None:
        return
    if part.rank == part.place[0]:
        dist.send(part.e.data, part.other)
    else:
        dist.recv(part.e.data, part.other)


def add(part: Part) -> None:
    """Once per step: both ends add up what they have of E's gradient."""
    if part.other is None or part.e.grad is None:
        return
    theirs = torch.empty_like(part.e.grad)
    pair = [
        dist.P2POp(dist.isend, part.e.grad, part.other),
        dist.P2POp(dist.irecv, theirs, part.other),
    ]
    #: Not after each micro-batch: the second time, a sum would be summed.
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    #: a + b here, b + a there: the same bits, so the copies stay equal.
    part.e.grad += theirs


def reference(
    e: Tensor, layers: Tensor, batches: Tensor
) -> tuple[Tensor, Tensor]:
    """One process, one matrix used twice: E and the layers after SGD."""
    e, layers = (t.clone().requires_grad_() for t in (e, layers))
    sgd = SGD([e, layers], lr=RATE)
    for tokens, labels in batches:
        sgd.zero_grad()
        x = e[tokens.flatten()]
        for layer in layers:
            x = torch.tanh(nn.functional.linear(x, layer))
        loss = F.cross_entropy(x @ e.T, labels.flatten(), reduction="sum")
        loss.backward()
        sgd.step()
    return e.detach(), layers.detach()


def run(
    w: World, place: list[int], e: Tensor, layers: Tensor, batches: Tensor
) -> dict[str, float]:
    """Train with the stages on these ranks; what the tie sent and holds."""
    #: As if drawn here: of other ranks' numbers, none will survive.
    part, sent = Part(place, e + w.rank, layers), 0
    sgd = SGD(part.weights, lr=RATE)
    memory = w.memory(tables=lambda: [part.e], parameters=part.layers.values)
    with memory:
        with meter() as moved:
            share(part)
        for tokens, labels in batches:
            sent += moved.bytes_sent
            sgd.zero_grad()
            with meter():
                for pair in zip(tokens, labels):
                    part.there_and_back(*pair)
            with meter() as moved:
                add(part)
            sgd.step()
    true_e, true_layers = reference(e, layers, batches)
    theirs = [true_e[: len(part.e)], *(true_layers[s] for s in part.layers)]
    # One end's sum and then the other's, through a few steps.
    w.check("parameters", part.weights, lambda: theirs, slack=64)
    copy = part.e.detach().clone() if w.rank == place[-1] else e.clone()
    dist.broadcast(copy, place[-1])
    w.check("tied", part.e, lambda: copy[: len(part.e)], slack=0)
    return {"sent": sent + moved.bytes_sent, "held": memory.live()["tables"]}


def main(
    w: World,
    *,
    vocabulary: int = 40,
    width: int = 8,
    batch: int = 12,
    microbatches: int = 3,
    steps: int = 2,
) -> None:
    p = w.size
    even = batch % microbatches == 0
    w.require(even, f"{batch} samples in {microbatches} micro-batches: uneven")
    e = w.randn(vocabulary, width, seed=0)
    picks = torch.arange(2 * steps * batch, device=w.device) ** 2 % vocabulary
    batches = picks.view(steps, 2, microbatches, -1)
    line, folded = [*range(p)], [*range(p), *reversed(range(p - 1))]
    deep = w.randn(2 * p - 1, width, width, seed=1)
    apart = run(w, line, e, deep[:p], batches)
    together = run(w, folded, e, deep, batches)
    costs = {f"{name}_folded": cost for name, cost in together.items()}
    report(w, given={"itemsize": 8}, **apart, **costs)


if __name__ == "__main__":
    with world() as w:
        main(w)
