"""One weird trick: cut convolutions by samples, and dense layers by neurons.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.hybrid.one_weird_trick

A convolution has few weights and many activations, a fully connected layer
the reverse. So each is cut such that what is small travels:

                   held              travels
    convolutions   all weights       their few gradients, all-reduced
    dense layers   1/p of neurons    their few inputs, gathered

Where the two meet, every rank has the activations of its own samples, and a
neuron needs those of all. They are gathered, and again between dense layers,
where each rank has some neurons of all samples:

    forward    all-gather x         from every rank its part
    backward   reduce-scatter dx    to every rank its part, summed

Backward is a sum because each rank's neurons have read all of x. One rule
serves both cuts, as it only asks for parts that lie one behind the other.
The weights of dense layers never travel, nor do their gradients.

    b samples of this rank   B all samples   n neurons of this rank   N all

Source: Krizhevsky 2014, the first of its three schemes.
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import seeded

Batches = list[tuple[Tensor, Tensor]]
RATE, CHANNELS, SIDE = 0.5, 4, 4
FEATURES = CHANNELS * SIDE * SIDE  # of an image, after the convolutions


class Gather(torch.autograd.Function):
    """All ranks' parts of the first dimension; backward, their sum."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        p = dist.get_world_size()
        whole = part.new_empty(p * len(part), *part.shape[1:])
        dist.all_gather_single(whole, part.contiguous())
        return whole

    @staticmethod
    def backward(ctx: Any, dwhole: Tensor) -> Tensor:
        p = dist.get_world_size()
        part = dwhole.new_empty(len(dwhole) // p, *dwhole.shape[1:])
        #: Half of an all-reduce: the other half would bring gradients of
        #: samples that are convolved on other ranks.
        dist.reduce_scatter_single(part, dwhole.contiguous())
        return part


class Dense(nn.Module):
    """A fully connected layer of which this rank has some neurons."""

    def __init__(self, whole: nn.Linear) -> None:
        super().__init__()
        r, p = dist.get_rank(), dist.get_world_size()
        #: Copies: a view would keep the whole weight in memory.
        self.weight = nn.Parameter(whole.weight.data.chunk(p)[r].clone())
        self.bias = nn.Parameter(whole.bias.data.chunk(p)[r].clone())

    def forward(self, x_BI: Tensor) -> Tensor:
        """My neurons for all samples; then all neurons."""
        with span("dense", cost=1):
            y_nB = F.linear(x_BI, self.weight, self.bias).T
        #: Neurons first, so that the ranks' parts lie one by one.
        return Gather.apply(y_nB).T


class Hybrid(nn.Module):
    """Convolutions as they are, for own samples; dense layers in parts."""

    def __init__(self, whole: nn.Sequential) -> None:
        super().__init__()
        layers = [Dense(m) if isinstance(m, nn.Linear) else m for m in whole]
        border = next(i for i, m in enumerate(layers) if isinstance(m, Dense))
        self.convolutions = nn.Sequential(*layers[:border])
        self.dense = nn.Sequential(*layers[border:])

    def forward(self, x_b: Tensor) -> Tensor:
        """Scores of all samples, from the images of mine."""
        with span("convolve", cost=2):
            features_b = self.convolutions(x_b)
        #: The border: from samples of my own to neurons of my own.
        return self.dense(Gather.apply(features_b))


def network(hidden: int, classes: int) -> nn.Sequential:
    """Convolutions, then dense layers, with the same weights on every call."""

    def made() -> nn.Sequential:
        conv = nn.Conv2d(1, CHANNELS, 3, padding=1)
        head = nn.Linear(FEATURES, hidden), nn.Tanh()
        last = nn.Linear(hidden, classes)
        return nn.Sequential(conv, nn.Tanh(), nn.Flatten(), *head, last)

    return seeded(made)()


def samples(w: World, batch: int, classes: int) -> Batches:
    """Two batches of random images, the same on every rank."""
    labels = torch.arange(batch, device=w.device) % classes
    images = (w.randn(batch, 1, SIDE, SIDE, seed=i) for i in range(2))
    return [(x, labels) for x in images]


def learn(model: Hybrid, batches: Batches) -> None:
    """SGD, on this rank's samples of every batch."""
    r, p = dist.get_rank(), dist.get_world_size()
    sgd = SGD(model.parameters(), lr=RATE)
    for whole in batches:
        x_b, y_b = (t.chunk(p)[r] for t in whole)
        sgd.zero_grad()
        #: My own samples' loss: the losses of all ranks add up to that of
        #: the batch, as backward's sums expect.
        scores_b = model(x_b).chunk(p)[r]
        (F.cross_entropy(scores_b, y_b) / p).backward()
        for weight in model.convolutions.parameters():
            #: Of own samples only, so far. Dense gradients are complete.
            dist.all_reduce(weight.grad)
        sgd.step()


def reference(
    whole: nn.Sequential, batches: Batches, part: int, parts: int
) -> list[Tensor]:
    """One process, whole batches; of dense layers, one part."""
    sgd = SGD(whole.parameters(), lr=RATE)
    for x, y in batches:
        sgd.zero_grad()
        F.cross_entropy(whole(x), y).backward()
        sgd.step()
    own = [t.chunk(parts)[part] for t in whole[3:].parameters()]
    return [*whole[0].parameters(), *own]


def main(
    w: World, *, batch: int = 48, hidden: int = 48, classes: int = 24
) -> None:
    for count in (batch, hidden, classes):
        even = count % w.size == 0
        w.require(even, f"{w.size} ranks do not divide {count}")
    model = Hybrid(network(hidden, classes).to(w.device))
    batches = samples(w, batch, classes)
    weights = [*model.parameters()]
    memory = w.memory(
        parameters=lambda: weights, gradients=lambda: [p.grad for p in weights]
    )
    with memory, meter() as moved:
        learn(model, batches)
    whole = network(hidden, classes).to(w.device)
    # Sums of p parts, through a few steps.
    truth = partial(reference, whole, batches, w.rank, w.size)
    w.check("parameters", weights, truth, slack=64)
    w.check_same("same", [*model.convolutions.parameters()])
    cut = (FEATURES + 1) * hidden + (hidden + 1) * classes
    sizes = {"inputs": FEATURES + hidden + classes, "cut_weights": cut}
    conv = sum(t.numel() for t in whole[0].parameters())
    report(
        w,
        given={**sizes, "steps": 2, "whole_weights": conv, "itemsize": 8},
        gathered=moved.calls["all_gather"].payload,
        scattered=moved.calls["reduce_scatter"].payload,
        gradients=moved.calls["all_reduce"].payload,
        weights=sum(t.nbytes for t in model.dense.parameters()),
    )


if __name__ == "__main__":
    with world() as w:
        main(w)
