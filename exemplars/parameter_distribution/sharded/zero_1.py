"""ZeRO-1: each rank keeps 1/p of Adam's state, and updates 1/p of the weights.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.sharded.zero_1

Source: Rajbhandari et al. 2020, section 5.1; Xu et al. 2020.

In data parallelism every rank makes the same update from the same gradient,
with the same two moments in memory: p times the same work and the same bytes.
An all-reduce is a reduce-scatter and an all-gather; put the update between:

    reduce-scatter   the gradient: each rank gets the sum of its shard
    Adam             on the shard, with moments of the shard alone
    all-gather       the new weights

No byte more travels, and the moments shrink p-fold. With k micro-batches the
gradients add up at home and travel once, so the volume does not depend on k.

Clipping needs the norm of the whole gradient. Every element is in exactly one
shard, so the squares of the shards are summed over the ranks, as one number.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, parameters_to_vector
from torch.optim import Adam

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import equal_layers

LAYERS, WIDTH, ROWS, STEPS, MICROS = 3, 17, 50, 2, 3
SIZE = LAYERS * (WIDTH * WIDTH + WIDTH)  # 918
CLIP = 0.01
MOMENTS = "exp_avg", "exp_avg_sq"


class Replica:
    """A whole model and gradient, and one shard of the optimizer."""

    def __init__(self, model: nn.Module, w: World) -> None:
        #: Padded at the end, so that all shards are equal.
        size = SIZE + -SIZE % w.size
        zeros = torch.zeros(size, dtype=torch.double, device=w.device)
        self.weights, self.slope, start = zeros, zeros.clone(), 0
        for p in model.parameters():
            place = slice(start, start := start + p.numel())
            self.weights[place] = p.data.view(-1)
            p.data = self.weights[place].view_as(p)
            p.grad = self.slope[place].view_as(p)  # backward adds to it
        #: A view: what Adam does to the shard is done to the weights.
        self.shard = nn.Parameter(zeros.view(w.size, -1)[w.rank])
        self.adam = Adam([self.shard])

    def step(self) -> None:
        """Scatter, clip, update, gather."""
        mine = torch.empty_like(self.shard)
        with span("scatter"):
            dist.reduce_scatter_single(mine, self.slope)
        square = mine.detach().square().sum()
        dist.all_reduce(square)
        self.norm = square.sqrt()
        with span("update", cost=1):
            self.shard.grad = mine * (CLIP / (self.norm + 1e-6)).clamp(max=1)
            self.adam.step()
        with span("gather"):
            dist.all_gather_single(self.weights, self.shard.detach().clone())
        self.slope.zero_()
        self.shard.grad = None


def train(
    w: World, model: nn.Module, replica: Replica, rows: Tensor
) -> Iterator[int]:
    """Each rank on its micro-batches; what travels, travels once a step."""
    parts = rows.tensor_split(w.size * MICROS)
    for step in range(STEPS):
        for k in range(MICROS):
            with span("compute", label=k, cost=3):
                y = model(parts[w.rank * MICROS + k])
                (y.square().sum() / ROWS).backward()
        replica.step()
        yield step


def reference(w: World, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Clipped Adam on one process, on the whole batch; weights and norm."""
    model = equal_layers(LAYERS, WIDTH).to(w.device)
    adam = Adam(model.parameters())
    for _ in range(STEPS):
        adam.zero_grad()
        (model(rows).square().sum() / ROWS).backward()
        norm = clip_grad_norm_(model.parameters(), CLIP)
        adam.step()
    return parameters_to_vector(model.parameters()), norm


def main(w: World) -> None:
    rows = w.randn(ROWS, WIDTH, of_rank=0)
    model = equal_layers(LAYERS, WIDTH).to(w.device)
    replica = Replica(model, w)
    state = replica.adam.state
    memory = w.memory(
        parameters=lambda: [replica.weights],
        gradients=lambda: [replica.slope, replica.shard.grad],
        optimizer=lambda: [s[m] for s in state.values() for m in MOMENTS],
    )
    with memory, meter() as moved:
        for _ in train(w, model, replica, rows):
            memory.mark("step")
    # Another order of additions in the gradient, through Adam's division.
    weights = replica.weights[:SIZE]
    w.check("parameters", weights, lambda: reference(w, rows)[0], slack=256)
    w.check("norm", replica.norm, lambda: reference(w, rows)[1], slack=256)
    w.check_same("same", weights)
    live = memory.live("step")
    kept = live["parameters"] + live["gradients"] + live["optimizer"]
    big = moved.calls["reduce_scatter"].wire + moved.calls["all_gather"].wire
    given = {"n": SIZE, "b": 8, "t": STEPS}
    report(w, given=given, state=kept, volume=int(big), calls=moved.count)


if __name__ == "__main__":
    with world() as w:
        main(w)
