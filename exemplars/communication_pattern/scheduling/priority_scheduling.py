"""Priority scheduling: what the next forward needs first is sent first.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.scheduling.priority_scheduling

Backward completes the last layer's gradient first, but the next forward needs
the first layer's first. Sent in the order in which they become ready, the
gradients arrive in the worst order: forward cannot begin before all of them
are there. So cut each gradient into slices, and whenever the network is free,
send a slice of the lowest layer that is ready. A large gradient of a late
layer is overtaken between two of its slices.

Three layers of three slices; a layer's backward takes as long as two slices:

    compute      | back 2 | back 1 | back 0 |
    first come            | 2   2  | 2   1  | 1  1  0  0  0 | forward 0
    by priority           | 2   2  | 1   1  | 0  0  0 | forward 0
                                                      | 1   2

With s slices per layer, and c seconds of backward and f of forward per layer
(a slice takes one second), the pauses of a step with L layers are

    first come    s + (L - 1) max(0, s - c)
    by priority   s + (L - 1) max(0, s - c - f)

Forward hides what backward could not. Bytes and bits are the same.

Source: Jayarajan et al. 2019 (P3).
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, alike, meter, report, span, world

RATE = 0.5
Order = Callable[[int], int]  # a layer's number to its place in the queue


class Scheduler:
    """Sums gradients over all ranks, slice by slice, in a given order."""

    def __init__(self, order: Order, pieces: int, room: int) -> None:
        self.order, self.pieces, self.room = order, pieces, room
        self.queue: list[tuple[int, Tensor]] = []
        self.sent = defaultdict[int, list[dist.Work]](list)

    def ready(self, layer: int, gradient: Tensor) -> None:
        """A gradient is complete: its slices join the queue."""
        slices = gradient.view(-1).tensor_split(self.pieces)
        self.queue += [(layer, piece) for piece in slices]
        #: Slices of a more urgent layer overtake those that still wait. The
        #: sort is stable, so the slices of one layer stay in order.
        self.queue.sort(key=lambda item: self.order(item[0]))
        #: As many as can travel during the next layer's backward. A clock on
        #: each rank would let ranks differ in their order, and NCCL hang.
        self.send(self.room)

    def send(self, count: int) -> None:
        """Start the all-reduces of the first slices of the queue."""
        leaving, self.queue = self.queue[:count], self.queue[count:]
        for layer, piece in leaving:
            #: Not waited for. What has left cannot be overtaken any more, so
            #: slices are small.
            with span("send", label=layer):
                work = dist.all_reduce(piece, async_op=True)
            self.sent[layer].append(work)

    def flush(self) -> None:
        """Backward is over: the rest leaves, and only its order counts."""
        self.send(len(self.queue))

    def wait(self, layer: int) -> None:
        """This layer's gradient is that of the whole batch."""
        for work in self.sent.pop(layer, []):
            work.wait()


class Network:
    """Layers tanh(x W) that learn by SGD when they are next used."""

    def __init__(self, start: Tensor, scheduler: Scheduler, cost: int) -> None:
        self.weights = [m.clone() for m in start]
        self.gradients = [torch.zeros_like(m) for m in start]
        self.scheduler, self.cost = scheduler, cost  # of a layer's forward

    def update(self, layer: int) -> None:
        """Wait for this layer alone; the others may still be travelling."""
        self.scheduler.wait(layer)
        self.weights[layer] -= RATE * self.gradients[layer]

    def forward(self, x: Tensor) -> list[Tensor]:
        """The input of every layer, and the output of the last."""
        values = [x]
        for layer, weight in enumerate(self.weights):
            #: As late as possible: layer 1 is updated after layer 0 ran.
            self.update(layer)
            with span("forward", label=layer, cost=self.cost):
                values.append(torch.tanh(values[-1] @ weight))
        return values

    def backward(self, values: list[Tensor], dy: Tensor) -> None:
        """Gradients, the last layer's first; each is handed over at once."""
        for layer in reversed(range(len(self.weights))):
            x, y = values[layer : layer + 2]
            with span("backward", label=layer, cost=self.scheduler.room):
                dz = dy * (1 - y.square())
                #: A new tensor: the old one belongs to the previous step.
                self.gradients[layer] = x.T @ dz
                dy = dz @ self.weights[layer].T
            self.scheduler.ready(layer, self.gradients[layer])
        self.scheduler.flush()

    def finish(self) -> list[Tensor]:
        """The weights, when every gradient has arrived."""
        for layer in range(len(self.weights)):
            self.update(layer)
        return self.weights


def learn(w: World, network: Network, data: list[Tensor]) -> None:
    """SGD, each rank on its share of each batch; loss: the mean square."""
    for rows in data:
        share = rows.tensor_split(w.size)[w.rank]
        values = network.forward(share)
        #: Divided by all rows: the ranks' gradients add up to the mean's.
        network.backward(values, 2 * values[-1] / len(rows))


def reference(start: Tensor, data: list[Tensor]) -> list[Tensor]:
    """One process, whole batches, autograd's own derivatives."""
    weights = [m.clone().requires_grad_() for m in start]
    sgd = torch.optim.SGD(weights, lr=RATE)
    for x in data:
        rows = len(x)
        for m in weights:
            x = torch.tanh(x @ m)
        sgd.zero_grad()
        (x.square().sum() / rows).backward()
        sgd.step()
    return weights


def observed(events: list[Any], slices: int) -> dict[str, float]:
    """Slices before layer 0 is complete, the next forward, the pauses."""
    sent = [e.label for e in events if e.kind == "collective"][:slices]
    timed = alike(events)
    first = [s for s in timed.spans if (s.name, s.label) == ("forward", "0")]
    return {
        "arrived": max(i for i, layer in enumerate(sent, 1) if layer == "0"),
        "start": first[1].start,
        "exposed": timed.exposed[0],
    }


def main(
    w: World,
    *,
    layers: int = 5,
    width: int = 32,
    batch: int = 50,
    steps: int = 2,
    pieces: int = 3,
    forward: int = 1,
    backward: int = 2,
) -> None:
    w.require(steps > 1, f"{steps} steps: a second forward must follow")
    w.require(pieces <= width**2, f"{pieces} pieces of {width**2} elements")
    data = [w.randn(batch, width, seed=step) for step in range(steps)]
    start = w.randn(layers, width, width, seed=0) / width**0.5
    #: All that differs: which layer's slices are taken from the queue first.
    urgent = Scheduler(lambda layer: layer, pieces, room=backward)
    queued = Scheduler(lambda layer: -layer, pieces, room=backward)
    ours, theirs = (Network(start, s, forward) for s in (urgent, queued))
    with meter() as moved:
        learn(w, ours, data)
    with meter(shown=False) as late:
        learn(w, theirs, data)
    # Not metered: no forward follows behind which this could hide.
    weights, others = ours.finish(), theirs.finish()
    # Another order of additions, through layers and steps.
    w.check("weights", weights, lambda: reference(start, data), slack=32)
    w.check("first_come", weights, lambda: others, slack=0)
    w.check_same("same", weights)
    seen = observed(moved.events, layers * pieces)
    seen["start_first_come"] = observed(late.events, layers * pieces)["start"]
    given = {"itemsize": start.element_size()}
    report(w, given=given, payload=moved.payload, **seen)


if __name__ == "__main__":
    with world() as w:
        main(w)
