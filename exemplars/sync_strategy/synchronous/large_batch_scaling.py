"""Large-batch scaling: p times the batch at p times the rate, layer by layer.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.synchronous.large_batch_scaling

With p workers a step sees p times the samples. Instead of p small steps there
is one, so it should be p times as long: the rate grows with the batch. That
is fair as long as p small steps see about the same gradient. At first they do
not, so the rate climbs to its value on a straight line, over W steps:

    rate of step t  =  base * (1 + (p - 1) * min(t, W) / W)

For large p one rate is too long for some layers and too short for others.
LARS and LAMB let each layer move by a share of its own length, whatever the
length of its gradient. With u the direction of a layer, w <- w - rate * r * u:

    LARS    u = g + decay * w               r = trust |w| / (|g| + decay |w|)
    LAMB    u = Adam's step + decay * w     r = |w| / |u|

That needs the lengths of whole layers, and so a rank that updates a shard of
the weights cannot go by itself as with Adam. But squares add up: one
all-reduce of two numbers per layer, for all layers together, and the sharded
step is the whole one, wherever the cuts are.

Source: Goyal et al. 2017, section 2; You et al. 2017; You et al. 2020.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from exemplars.parameter_distribution.sharded.zero_1 import Flat, packed
from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Step, Task, characters, digits

TRUST, DECAY = 0.1, 0.1
BETA, BETA2, EPSILON = 0.9, 0.999, 1e-6  # of LAMB


class Lars:
    """Moves a shard of the weights, of whatever layers, by layer."""

    def __init__(self, parameters: list[nn.Parameter], decay: float) -> None:
        #: Shards of one size, as in ZeRO-1: where they are cut has nothing
        #: to do with layers. So each element has to know its layer.
        self.flat, self.layers = Flat(parameters), len(parameters)
        self.decay, self.steps = decay, 0
        self.shard = self.flat.shard.detach()
        layers = [torch.full_like(p, i) for i, p in enumerate(parameters)]
        shards = packed(layers).view(dist.get_world_size(), -1)
        self.layer = shards[dist.get_rank()].long()
        self.m, self.v = (torch.zeros_like(self.shard) for _ in range(2))

    def lengths(self, *vectors: Tensor) -> Tensor:
        """Of every layer, in each of these; this rank has parts of a few."""
        squares = self.shard.new_zeros(len(vectors), self.layers)
        squares.index_add_(1, self.layer, torch.stack(vectors).square())
        #: All layers in one message: one for each would cost its latency.
        dist.all_reduce(squares)
        return squares.sqrt()

    def direction(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """LARS: where to go, and how far in each layer."""
        w, slope = self.lengths(self.shard, g)
        u = g + self.decay * self.shard
        return u, TRUST * w / (slope + self.decay * w)

    def step(self, rate: float) -> None:
        """Reduce-scatter the gradient, move the shard, all-gather."""
        self.steps += 1
        u, far = self.direction(self.flat.scatter())
        with span("update", label=self.steps, cost=1):
            #: A layer of length 0, as biases may be at first, or without a
            #: gradient takes a plain step.
            far = torch.where((far > 0) & far.isfinite(), far, 1.0)
            self.shard -= rate * far[self.layer] * u
        #: Again as in ZeRO-1: all ranks have all weights, and the same bits.
        self.flat.gather()


class Lamb(Lars):
    """The same with Adam's step, whose moments are sharded as the weights."""

    def direction(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """LAMB: where to go, and how far in each layer."""
        self.m.lerp_(g, 1 - BETA)
        self.v.lerp_(g.square(), 1 - BETA2)
        root = (self.v / (1 - BETA2**self.steps)).sqrt() + EPSILON
        u = self.m / (1 - BETA**self.steps) / root + self.decay * self.shard
        #: The length of the whole step, decay included.
        w, length = self.lengths(self.shard, u)
        return u, w / length


def warm(step: int, rate: float, times: int, warmup: int) -> float:
    """From the rate to so many times the rate, and no further."""
    return rate * (1 + (times - 1) * min(step, warmup) / warmup)


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    warmup: int,
    local_batch: int,
    rate: float,
    decay: float = DECAY,
    kind: type[Lars] = Lamb,
) -> Iterator[Step]:
    """Every rank adds a batch, and the rate grows with their number."""
    model = task.model().to(w.device)
    #: A rank keeps moments for its shard alone, 1/p of them.
    optimizer = kind(list(model.parameters()), decay)
    for step in range(steps):
        x, y = task.batch(step * w.size + w.rank, local_batch)
        model.zero_grad()
        with span("gradient", label=step, cost=3):
            loss = task.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
            loss.backward()
        #: p ranks, p times the samples, p times the rate: in the end.
        optimizer.step(warm(step, rate, w.size, warmup))
        yield Step(loss.item(), list(model.parameters()))


def reference(w: World, task: Task, lars: bool, size: Any) -> list[Tensor]:
    """One process, whole layers, and torch's own Adam for its steps."""
    model = task.model().to(w.device)
    weights: list[Tensor] = list(model.parameters())
    moves = [torch.zeros_like(p) for p in weights]
    adam = torch.optim.Adam(moves, lr=1, eps=EPSILON)
    for step in range(size["steps"]):
        each = range(step * w.size, (step + 1) * w.size)
        batches = [task.batch(i, size["local_batch"]) for i in each]
        x, y = (torch.cat(parts).to(w.device) for parts in zip(*batches))
        loss = task.loss(model, x, y) / y.numel()
        slopes = torch.autograd.grad(loss, weights)
        for move, g in zip(moves, slopes):
            move.data.zero_()
            move.grad = g
        adam.step()
        rate = 1 + (w.size - 1) * min(step / size["warmup"], 1)
        for p, g, move in zip(weights, slopes, moves):
            decayed = DECAY * p.detach()
            u = decayed + (g if lars else -move)
            length = (g.norm() + decayed.norm()) / TRUST if lars else u.norm()
            far = p.norm() / length if p.norm() * length > 0 else 1
            p.data -= size["rate"] * rate * far * u
    return weights


def first_step(w: World, kind: type[Lars], decay: float) -> Tensor:
    """How far each layer moves at rate 1, as a share of its own length."""
    old = [p.detach().to(w.device) for p in digits.model().parameters()]
    size: Any = dict(steps=1, warmup=1, local_batch=6, decay=decay)
    *_, done = train(w, digits, kind=kind, rate=1.0, **size)
    pairs = zip(old, done.weights)
    return torch.stack([(b - a).norm() / a.norm() for a, b in pairs]).detach()


def main(w: World, *, steps: int = 5, warmup: int = 3) -> None:
    w.require(0 < warmup < steps, f"warm-up of {warmup}: 1 to {steps - 1}")
    size: Any = dict(steps=steps, warmup=warmup, local_batch=6, rate=0.02)
    for task in (digits, characters):
        for kind in (Lamb, Lars):
            with meter() as moved:
                *_, done = train(w, task, kind=kind, **size)
            whole = partial(reference, w, task, kind is Lars, size)
            # Adam divides by roots that may be tiny: roundings grow there.
            w.check("sharded", list(done.weights), whole, slack=2**14)
            w.check_same("same", list(done.weights))
    lamb, lars = first_step(w, Lamb, DECAY), first_step(w, Lars, 0.0)
    w.check("lamb_step", lamb, lambda: torch.ones_like(lamb), slack=64)
    w.check("lars_step", lars, lambda: torch.full_like(lars, TRUST), slack=64)
    rates = [warm(i, 0.5, w.size, warmup) for i in range(warmup + 3)]
    climb = torch.linspace(0.5, 0.5 * w.size, warmup + 1, dtype=torch.double)
    line = torch.cat([climb, climb[-1:].expand(2)])
    w.check("ramp", line.new_tensor(rates), lambda: line, slack=8)
    given = {"layers": len(done.weights), "itemsize": line.element_size()}
    counts = dict(calls=moved.count, lengths=moved.calls["all_reduce"].payload)
    report(w, given=given, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
