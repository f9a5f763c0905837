"""Wait-free backpropagation: a layer's gradient leaves while others are made.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.scheduling.wait_free_backprop

Source: Zhang et al. 2017 (Poseidon).

Backward makes the last layer's gradient first, and nothing that follows
changes it: it may travel while earlier layers are still being computed.

    compute    | layer 3 | layer 2 | layer 1 | layer 0 |
    network              | 3 . . . | 2 . . . | 1 . . . | 0 . . . |  step

A hook on each weight, called when its gradient is complete, starts an
all-reduce and does not wait for it. Waiting comes once, before the step.
Only the last transfer has nothing left to hide behind: of u all-reduces,
u - 1 begin before backward ends. Bytes and bits are the same as without.

All ranks must start them in the same order, or one rank's layer 2 would be
added to another's layer 3. Backward's own order is the same everywhere.
"""

from contextlib import ExitStack

import torch
import torch.distributed as dist
from torch import Tensor, nn

from exemplars.runtime import World, meter, report, span, world

LAYERS, WIDTH, ROWS = 6, 64, 50  # 50 rows: uneven shares


def network(w: World) -> list[nn.Parameter]:
    """One matrix a layer, the same on every rank."""
    stack = w.randn(LAYERS, WIDTH, WIDTH, of_rank=0) / WIDTH**0.5
    return [nn.Parameter(matrix.clone()) for matrix in stack]


def loss(layers: list[nn.Parameter], x: Tensor) -> Tensor:
    """The sum over rows, divided by all rows: shares add up to the mean."""
    for matrix in layers:
        x = torch.tanh(x @ matrix)
    return x.square().sum() / ROWS


class WaitFree:
    """Hooks that send each gradient off as soon as it is there."""

    def __init__(self, layers: list[nn.Parameter]) -> None:
        self.works = list[dist.Work]()
        self.layers = layers
        for matrix in layers:
            matrix.register_post_accumulate_grad_hook(self.start)

    def start(self, matrix: Tensor) -> None:
        """A gradient is complete: let it go, and go on."""
        self.computing.close()
        work = dist.all_reduce(matrix.grad, async_op=True)
        self.works.append(work)
        self.compute()

    def compute(self) -> None:
        """A span for the layer that backward is now at, if any is left."""
        left = len(self.layers) - len(self.works)
        self.computing = ExitStack()
        if left:
            layer = span("backward", label=f"layer {left - 1}", cost=2)
            self.computing.enter_context(layer)

    def backward(self, x: Tensor) -> None:
        """Gradients of the whole batch, summed while they are computed."""
        mean = loss(self.layers, x)
        self.compute()
        mean.backward()
        with span("wait"):
            for work in self.works:
                work.wait()


def afterwards(layers: list[nn.Parameter], x: Tensor) -> None:
    """The same with all communication after the last gradient."""
    loss(layers, x).backward()
    for matrix in reversed(layers):
        dist.all_reduce(matrix.grad)


def gradients(layers: list[nn.Parameter]) -> list[Tensor]:
    return [matrix.grad for matrix in layers if matrix.grad is not None]


def reference(w: World, rows: Tensor) -> list[Tensor]:
    """One process, the whole batch."""
    layers = network(w)
    loss(layers, rows).backward()
    return gradients(layers)


def main(w: World) -> None:
    rows = w.randn(ROWS, WIDTH, of_rank=0)
    share = rows.tensor_split(w.size)[w.rank]
    layers, plain = network(w), network(w)
    with meter() as moved:
        WaitFree(layers).backward(share)
    afterwards(plain, share)
    # Another order of additions, through LAYERS layers.
    w.check("sum", gradients(layers), lambda: reference(w, rows), slack=32)
    w.check("afterwards", gradients(layers), lambda: gradients(plain), slack=0)
    w.check_same("same", gradients(layers))
    #: From the trace: all-reduces begun before the last gradient is done.
    ends = [i for i, e in enumerate(moved.events) if e.kind == "end"]
    before = moved.events[: ends[LAYERS - 1]]
    early = sum(e.kind == "collective" for e in before)
    given = {"u": LAYERS, "n": WIDTH * WIDTH, "b": 8}
    counts = {"calls": moved.count, "payload": moved.payload}
    report(w, given=given, early=early, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
