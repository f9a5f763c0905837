"""1F1B with a flush: GPipe's bubble, but only p - s activations in flight.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.pipeline_flush.one_f_one_b

Source: Narayanan et al. 2021, section 2.2 (PipeDream-Flush).

The network is cut into p stages, the batch into m micro-batches. A stage
starts with as many forwards as there are stages after it, then alternates
one forward, one backward, and ends with the backwards that are left. For
p = 3, m = 4, a backward twice as long as a forward, second by second:

    stage 0  F0 F1 F2 .  .  .  .  B0 B0 F3 B1 B1 .  B2 B2 .  B3 B3
    stage 1  .  F0 F1 .  .  B0 B0 F2 B1 B1 F3 B2 B2 .  B3 B3 .  .
    stage 2  .  .  F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 .  .  .  .

The first micro-batch needs p-1 forwards to reach the last stage, and the
last one p-1 backwards to come back: every stage idles (p-1)(f + b), whatever
m is. All updates wait for the last backward (the flush), so the gradient is
that of the whole batch, on one version of the weights. Stage s holds at most
min(m, p - s) micro-batches between forward and backward, where doing all
forwards first would hold m.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from exemplars.runtime import Action, World, meter, report, span, world

MICROS = 6
ROWS, WIDTH = 5, 16  # of one micro-batch
FORWARD, BACKWARD = 1, 2  # virtual seconds


def one_f_one_b(stage: int, stages: int, micros: int) -> Iterator[Action]:
    """What one stage does, in order."""
    warm_up = min(micros, stages - 1 - stage)
    yield from (Action("F", i) for i in range(warm_up))
    for i in range(micros - warm_up):
        yield Action("F", warm_up + i)
        yield Action("B", i)
    yield from (Action("B", i) for i in range(micros - warm_up, micros))


class Stage:
    """One stage's layer, what it keeps for backward, and its neighbours."""

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
        y.backward(dy)
        return x.grad

    def run(self, batch: Tensor) -> None:
        """Between actions: send what one made, receive what the next needs."""
        outgoing: Tensor | None = None
        target = self.w.rank
        for kind, i in one_f_one_b(self.w.rank, self.w.size, MICROS):
            step = 1 if kind == "F" else -1
            incoming = self.exchange(outgoing, target, self.w.rank - step)
            cost = FORWARD if kind == "F" else BACKWARD
            with span(kind, label=i, cost=cost):
                if kind == "B":
                    outgoing = self.backward(i, incoming)
                else:
                    x = batch[i] if incoming is None else incoming
                    outgoing = self.forward(i, x)
            target = self.w.rank + step
        self.exchange(outgoing, target, -1)

    def exchange(
        self, out: Tensor | None, to: int, source: int
    ) -> Tensor | None:
        """One batch of messages; nobody is beyond the pipeline's ends."""
        inside = range(self.w.size)
        incoming = self.loss.new_empty(ROWS, WIDTH)
        ops = []
        if out is not None and to in inside and to != self.w.rank:
            ops.append(dist.P2POp(dist.isend, out.contiguous(), to))
        if source in inside:
            ops.append(dist.P2POp(dist.irecv, incoming, source))
        #: Sent and received in one batch: a stage that sends forward to one
        #: that sends backward would, on NCCL, wait for it for ever.
        for work in dist.batch_isend_irecv(ops) if ops else []:
            work.wait()
        return incoming if source in inside else None


def layer(stage: int, device: torch.device) -> nn.Module:
    """A function of the stage: every rank can make every layer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stage)
        made = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        return made.double().to(device)


def loss_of(y: Tensor) -> Tensor:
    return y.square().mean()


def reference(w: World, batch: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The whole network and the whole batch on one process."""
    layers = nn.Sequential(*(layer(s, w.device) for s in range(w.size)))
    loss = loss_of(layers(batch))
    loss.backward()
    return loss.detach(), gradients(layers[w.rank])


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def main(w: World) -> None:
    batch = w.randn(MICROS, ROWS, WIDTH, of_rank=0)
    stage = Stage(w)
    with meter() as moved:
        stage.run(batch)
    # A sum over micro-batches against one over the batch: rounding only.
    mine = gradients(stage.layer)
    w.check("gradients", mine, lambda: reference(w, batch)[1], slack=16)
    if w.rank == w.size - 1:
        w.check("loss", stage.loss, lambda: reference(w, batch)[0], slack=4)
    given = {"m": MICROS, "a": ROWS * WIDTH * 8, "f": FORWARD, "b": BACKWARD}
    kept = stage.most_kept
    report(w, given=given, bytes_sent=moved.bytes_sent, in_flight=kept)


if __name__ == "__main__":
    with world() as w:
        main(w)
