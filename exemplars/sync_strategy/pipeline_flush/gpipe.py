"""GPipe: all forwards, all backwards, one update; the bubble is (p-1)/(m+p-1).

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.pipeline_flush.gpipe

Source: Huang et al. 2019, section 2.3.

The network is cut into p stages, the batch into m micro-batches. A stage
sends on what it has computed and takes the next micro-batch at once; when the
last forward is through, the backwards come home in reverse. For p = 3, m = 4,
a backward twice as long as a forward, second by second:

    stage 0  F0 F1 F2 F3 .  .  .  .  .  .  B3 B3 B2 B2 B1 B1 B0 B0
    stage 1  .  F0 F1 F2 F3 .  .  .  B3 B3 B2 B2 B1 B1 B0 B0 .  .
    stage 2  .  .  F0 F1 F2 F3 B3 B3 B2 B2 B1 B1 B0 B0 .  .  .  .

Two ramps of p-1 slots stay empty, whatever m is: a stage idles (p-1)(f + b)
of (m+p-1)(f + b) seconds. More micro-batches thin the bubble out, and pay in
memory: every stage holds all m of them when the backwards begin.

First all messages go right, then all go left. They never cross, so plain
sends and receives in the order of the schedule cannot wait for one another.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from exemplars.runtime import Action, World, meter, report, span, world

MICROS = 6
ROWS, WIDTH = 5, 16  # of one micro-batch
FORWARD, BACKWARD = 1, 2  # virtual seconds
RATE = 0.5


def gpipe(micros: int) -> Iterator[Action]:
    """What one stage does, in order; all stages do the same."""
    yield from (Action("F", i) for i in range(micros))
    yield from (Action("B", i) for i in reversed(range(micros)))


class Stage:
    """One stage's layer, and what it keeps for backward."""

    def __init__(self, w: World) -> None:
        self.w = w
        self.layer = layer(w.rank, w.device)
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}
        self.most_kept = 0
        self.loss = torch.zeros((), dtype=torch.double, device=w.device)

    def forward(self, micro: int, x: Tensor) -> Tensor:
        x.requires_grad_(self.w.rank > 0)
        y = self.layer(x)
        self.kept[micro] = x, y
        self.most_kept = max(self.most_kept, len(self.kept))
        return y.detach()

    def backward(self, micro: int, dy: Tensor | None) -> Tensor | None:
        x, y = self.kept.pop(micro)
        if dy is None:  # the last stage: mean over micro-batches
            y = loss_of(y) / MICROS
            self.loss += y.detach()
        #: Adds to the gradient: after the last micro-batch it is the batch's.
        y.backward(dy)
        return x.grad

    def run(self, batch: Tensor) -> None:
        """One batch through the pipeline and back, and one update."""
        r, p = self.w.rank, self.w.size
        for kind, i in gpipe(MICROS):
            source, target = (r - 1, r + 1) if kind == "F" else (r + 1, r - 1)
            #: Nobody is beyond the ends of the pipeline.
            incoming = torch.empty_like(batch[i]) if 0 <= source < p else None
            if incoming is not None:
                dist.recv(incoming, source)
            cost = FORWARD if kind == "F" else BACKWARD
            with span(kind, label=i, cost=cost):
                if kind == "B":
                    outgoing = self.backward(i, incoming)
                else:
                    x = batch[i] if incoming is None else incoming
                    outgoing = self.forward(i, x)
            if outgoing is not None and 0 <= target < p:
                dist.send(outgoing.contiguous(), target)
        update(self.layer)


def update(model: nn.Module) -> None:
    """Plain SGD, once the pipeline is empty."""
    for weight, gradient in zip(model.parameters(), gradients(model)):
        weight.data.sub_(gradient, alpha=RATE)


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def layer(stage: int, device: torch.device) -> nn.Module:
    """A function of the stage: every rank can make every layer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stage)
        made = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        return made.double().to(device)


def loss_of(y: Tensor) -> Tensor:
    return y.square().mean()


def reference(w: World, batch: Tensor) -> tuple[Tensor, list[Tensor]]:
    """One step of the whole network on the whole batch, on one process."""
    layers = nn.Sequential(*(layer(s, w.device) for s in range(w.size)))
    loss = loss_of(layers(batch))
    loss.backward()
    update(layers)
    return loss.detach(), [*layers[w.rank].parameters()]


def main(w: World) -> None:
    batch = w.randn(MICROS, ROWS, WIDTH, of_rank=0)
    stage = Stage(w)
    with meter() as moved:
        stage.run(batch)
    # A sum over micro-batches against one over the batch: rounding only.
    mine = [*stage.layer.parameters()]
    w.check("parameters", mine, lambda: reference(w, batch)[1], slack=16)
    if w.rank == w.size - 1:
        w.check("loss", stage.loss, lambda: reference(w, batch)[0], slack=4)
    given = {"m": MICROS, "a": ROWS * WIDTH * 8, "f": FORWARD, "b": BACKWARD}
    kept = stage.most_kept
    report(w, given=given, bytes_sent=moved.bytes_sent, in_flight=kept)


if __name__ == "__main__":
    with world() as w:
        main(w)
