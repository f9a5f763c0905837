"""Prefetched gather: the next layer's weights arrive while this one computes.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.scheduling.prefetched_gather

Where weights are sharded, a layer is all-gathered before it is used. If the
all-gather starts only then, every layer waits for its weights. But the order
of the layers is known: forward, then backward. So start the next all-gather
before this layer computes, and give it a second room to arrive in. The two
rooms take turns, so at most two layers are whole at any time.

    compute        | fwd 0 | fwd 1 | fwd 2 | back 2     | back 1     |
    network   | w0 | w1 .. | w2 .. | w1 .. |            | g2 | w0    |

The last layer stays for its backward. Gradients are reduce-scattered, g2 in
the drawing, and nobody waits for them before the end of the step. They share
the network with the gathers: a backward of two seconds hides both, if each
takes one.

    one room       3L - 1 seconds of waiting per step with L layers
    two rooms      2: the first gather and the last scatter

Bytes and bits are the same.

Source: Zhao et al. 2023 (FSDP), on forward and backward prefetching.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from exemplars.runtime import World, alike, meter, report, span, world

RATE = 0.5


class Sharded:
    """Layers tanh(x W); of each weight, this rank keeps one shard."""

    def __init__(self, start: Tensor, rooms: int, *costs: int) -> None:
        p, r = dist.get_world_size(), dist.get_rank()
        self.like, self.costs = start[0], costs
        whole = [packed(m) for m in start]
        self.shards = [m.chunk(p)[r].clone() for m in whole]
        self.rooms = [torch.empty_like(whole[0]) for _ in range(rooms)]
        last = len(start) - 1
        #: The last layer is visited once: backward begins where forward ends.
        self.visits = [*range(last), *range(last, -1, -1)]

    def step(self, x: Tensor, rows: int) -> None:
        """One step of SGD on this rank's share of a batch of rows."""
        self.gathers: list[dist.Work] = []
        self.scatters: list[tuple[dist.Work, Tensor]] = []
        layers, values = len(self.shards), [x]
        for layer in range(layers):
            weight = self.whole(layer)
            with span("forward", label=layer, cost=self.costs[0]):
                values.append(torch.tanh(values[-1] @ weight))
        #: Divided by all rows: the ranks' gradients add up to the mean's.
        dy = 2 * values[-1] / rows
        for visit in range(layers - 1, len(self.visits)):
            layer = self.visits[visit]
            weight = self.whole(visit)
            with span("backward", label=layer, cost=self.costs[1]):
                dz = dy * (1 - values[layer + 1].square())
                gradient, dy = values[layer].T @ dz, dz @ weight.T
            self.scatter(gradient)
        self.update()

    def whole(self, visit: int) -> Tensor:
        """The weight of this visit; those that follow are on their way."""
        end = min(visit + len(self.rooms), len(self.visits))
        #: The room of the previous visit is free again: the next layer's
        #: weights go there, before this layer computes.
        for later in range(len(self.gathers), end):
            shard = self.shards[self.visits[later]]
            room = self.rooms[later % len(self.rooms)]
            work = dist.all_gather_single(room, shard, async_op=True)
            self.gathers.append(work)
        self.gathers[visit].wait()
        room = self.rooms[visit % len(self.rooms)]
        return room[: self.like.numel()].view_as(self.like)

    def scatter(self, gradient: Tensor) -> None:
        """Begin to sum a gradient; of the sum, this rank gets its shard."""
        mine = torch.empty_like(self.shards[0])
        #: Behind the gather that is under way: weights are needed sooner.
        work = dist.reduce_scatter_single(
            mine, packed(gradient), async_op=True
        )
        self.scatters.append((work, mine))

    def update(self) -> None:
        """When all gradients are there, each rank updates its shards."""
        #: In the order of their start: the last layer's is the first.
        for shard, (work, mine) in zip(reversed(self.shards), self.scatters):
            work.wait()
            shard -= RATE * mine


def learn(w: World, model: Sharded, data: list[Tensor]) -> None:
    """SGD, each rank on its share of each batch; loss: the mean square."""
    for rows in data:
        model.step(rows.tensor_split(w.size)[w.rank], len(rows))


def packed(matrix: Tensor) -> Tensor:
    """As a vector, padded so that all shards have the same length."""
    end = -matrix.numel() % dist.get_world_size()
    return nn.functional.pad(matrix.flatten(), (0, end))


def reference(w: World, start: Tensor, data: list[Tensor]) -> list[Tensor]:
    """One process, whole batches, autograd; of each weight, the shard."""
    weights = [m.clone().requires_grad_() for m in start]
    sgd = torch.optim.SGD(weights, lr=RATE)
    for x in data:
        rows = len(x)
        for m in weights:
            x = torch.tanh(x @ m)
        sgd.zero_grad()
        (x.square().sum() / rows).backward()
        sgd.step()
    flat = [m.detach().flatten() for m in weights]
    padded = [nn.functional.pad(m, (0, -len(m) % w.size)) for m in flat]
    return [m.chunk(w.size)[w.rank] for m in padded]


def main(
    w: World,
    *,
    layers: int = 4,
    width: int = 31,
    batch: int = 50,
    steps: int = 2,
    forward: int = 1,
    backward: int = 2,
) -> None:
    data = [w.randn(batch, width, seed=step) for step in range(steps)]
    start = w.randn(layers, width, width, seed=0) / width**0.5
    #: All that differs between the two is the number of rooms.
    ours, theirs = (Sharded(start, n, forward, backward) for n in (2, 1))
    memory = w.memory(gathered=lambda: ours.rooms)
    with memory, meter() as moved:
        learn(w, ours, data)
    with meter(shown=False) as late:
        learn(w, theirs, data)
    # Another order of additions, through layers and steps.
    truth = partial(reference, w, start, data)
    w.check("weights", ours.shards, truth, slack=32)
    w.check("one_room", ours.shards, lambda: theirs.shards, slack=0)
    pauses = {
        "exposed": alike(moved.events).exposed[0],
        "exposed_one_room": alike(late.events).exposed[0],
    }
    counts = {"gathered": memory.peak["gathered"], "volume": moved.wire}
    given = {"itemsize": start.element_size()}
    report(w, given=given, **pauses, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
