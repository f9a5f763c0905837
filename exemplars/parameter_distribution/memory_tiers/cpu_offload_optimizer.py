"""Offloaded optimizer: Adam's state and step live in a slower, larger memory.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.memory_tiers.cpu_offload_optimizer

Source: Ren et al. 2021 (ZeRO-Offload), sections 3 and 4.

Forward and backward need weights and gradients, much arithmetic on few bytes;
the update needs master weights and two moments as well, little arithmetic on
many bytes. So the update is done where memory is cheap, and each rank does it
for its own shard:

    fast   forward, backward; reduce-scatter the gradient
    down   the shard's gradient, fast to slow
    slow   Adam, with the shard's master weights and moments
    up     the shard's new weights, slow to fast
    fast   all-gather the weights

The moments never move. For each element of a shard one gradient goes down and
one weight comes up, and with p ranks each moves a p-th, over a link of its
own. On a CPU both tiers are host memory; the bytes counted are the same.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.optim import Adam

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import equal_layers

LAYERS, WIDTH, ROWS, STEPS = 3, 17, 50, 2
SIZE = LAYERS * (WIDTH * WIDTH + WIDTH)  # 918
MOMENTS = "exp_avg", "exp_avg_sq"
SLOW = torch.device("cpu")


class Replica:
    """Weights and gradient in the fast tier, a shard of Adam in the slow."""

    def __init__(self, model: nn.Module, w: World) -> None:
        size = SIZE + -SIZE % w.size  # padded: all shards are equal
        zeros = torch.zeros(size, dtype=torch.double, device=w.device)
        self.weights, self.slope, start = zeros, zeros.clone(), 0
        for p in model.parameters():
            place = slice(start, start := start + p.numel())
            self.weights[place] = p.data.view(-1)
            p.data = self.weights[place].view_as(p)
            p.grad = self.slope[place].view_as(p)  # backward adds to it
        self.shard = self.weights.view(w.size, -1)[w.rank].clone()
        self.bytes_down = self.bytes_up = 0
        self.master = nn.Parameter(self.shard.to(SLOW, copy=True))
        self.adam = Adam([self.master])

    def down(self, x: Tensor) -> Tensor:
        """From fast to slow."""
        self.bytes_down += x.nbytes
        return x.to(SLOW, copy=True)

    def up(self, x: Tensor, into: Tensor) -> None:
        """From slow to fast."""
        self.bytes_up += x.nbytes
        into.copy_(x)

    def step(self) -> None:
        """Scatter, down, update, up, gather."""
        dist.reduce_scatter_single(self.shard, self.slope)
        with span("down"):
            self.master.grad = self.down(self.shard)
        with span("slow", cost=4):
            self.adam.step()
        with span("up"):
            self.up(self.master.detach(), into=self.shard)
        dist.all_gather_single(self.weights, self.shard)
        self.slope.zero_()
        self.master.grad = None


def train(
    w: World, model: nn.Module, replica: Replica, rows: Tensor
) -> Iterator[int]:
    """Each rank on its share of the rows."""
    for step in range(STEPS):
        with span("fast", label=step, cost=3):
            y = model(rows.tensor_split(w.size)[w.rank])
            (y.square().sum() / ROWS).backward()
        replica.step()
        yield step


def reference(w: World, rows: Tensor) -> Tensor:
    """Adam on one process and one tier."""
    model = equal_layers(LAYERS, WIDTH).to(w.device)
    adam = Adam(model.parameters())
    for _ in range(STEPS):
        adam.zero_grad()
        (model(rows).square().sum() / ROWS).backward()
        adam.step()
    return parameters_to_vector(model.parameters())


def main(w: World) -> None:
    rows = w.randn(ROWS, WIDTH, of_rank=0)
    model = equal_layers(LAYERS, WIDTH).to(w.device)
    replica = Replica(model, w)
    state = replica.adam.state
    memory = w.memory(
        fast_weights=lambda: [replica.weights, replica.shard],
        fast_gradients=lambda: [replica.slope],
        slow_master=lambda: [replica.master, replica.master.grad],
        slow_moments=lambda: [s[m] for s in state.values() for m in MOMENTS],
    )
    with memory, meter() as moved:
        for _ in train(w, model, replica, rows):
            memory.mark("step")
    # Another order of additions in the gradient, through Adam's division.
    weights = replica.weights[:SIZE]
    w.check("parameters", weights, lambda: reference(w, rows), slack=256)
    w.check_same("same", weights)
    live = memory.live("step")
    found = {"down": replica.bytes_down, "up": replica.bytes_up}
    found["fast"] = live["fast_weights"] + live["fast_gradients"]
    found["slow"] = live["slow_master"] + live["slow_moments"]
    given = {"n": SIZE, "b": 8, "t": STEPS}
    report(w, given=given, volume=moved.wire, **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
