"""Streaming DiLoCo: a fragment of the model at a time, while training goes on.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.periodic.streaming_diloco

DiLoCo is silent for H steps and then sends the whole model at once, while all
ranks wait. Cut the model into F fragments and send each after another step of
the period:

    step of the period    1   2   3   4
    fragment sent         0   1       2       (F = 3, H = 4)

Every fragment still travels once in H steps, so the bytes are the same, but
the most that travels at once is 1/F of them. And nobody waits: what leaves
after step t is needed after step t + tau, and until then all go on training,
from the old weights. So a rank mixes what arrives with what it has become:

    d    =  mean over all ranks of (c - x_r),  with x_r after step t
    v    <-  0.9 v + d
    c    <-  c - 0.7 (d + 0.9 v)
    x_r  <-  keep * x_r + (1 - keep) * c,      with x_r after step t + tau

With one fragment, tau = 0 and keep = 0 this is DiLoCo.

Source: Douillard et al. 2025, sections 2.2 and 2.3, algorithm 2.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import SGD, AdamW

from exemplars.runtime import Clock, World, alike, meter, report, span, world
from exemplars.sync_strategy.periodic import diloco
from exemplars.sync_strategy.periodic.local_sgd import UNEVEN
from exemplars.workload import Step, Task, characters, digits

RATE, MOMENTUM = 0.7, 0.9  # of the outer optimizer, as in DiLoCo


class Fragment:
    """A part of the weights: this rank's, and what all ranks agree on."""

    def __init__(self, mine: Tensor) -> None:
        #: A view of the model's weights: AdamW moves it, and so do we.
        self.mine = mine
        self.start = mine.clone()
        self.velocity = torch.zeros_like(mine)
        self.arrives = 0

    def send(self, arrives: int) -> None:
        """Let the change travel; the weights themselves are left alone."""
        #: A vector of its own: training goes on, and may not touch what is
        #: under way.
        self.change = self.start - self.mine
        self.work = dist.all_reduce(self.change, async_op=True)
        self.arrives = arrives

    def receive(self, keep: float) -> None:
        """Take the outer step, and pull this rank's weights toward it."""
        self.work.wait()
        self.change /= dist.get_world_size()
        self.velocity.mul_(MOMENTUM).add_(self.change)
        self.start -= RATE * (self.change + MOMENTUM * self.velocity)
        #: Not replaced: the steps since the message left would be lost.
        self.mine.lerp_(self.start, 1 - keep)


def cut(model: nn.Module, fragments: int) -> list[Fragment]:
    """The model's weights in fragments of about one size."""
    x = parameters_to_vector(model.parameters()).detach()
    vector_to_parameters(x, model.parameters())
    return [Fragment(part) for part in x.tensor_split(fragments)]


def is_sent(fragment: int, now: int, fragments: int, period: int) -> bool:
    """Whether it is sent after this many steps; at most one of them is."""
    #: Spread over the period. The last one ends it, as the whole model does
    #: in DiLoCo.
    place = (fragment + 1) * period // fragments
    return (now - place) % period == 0


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    period: int,
    local_batch: int,
    fragments: int = 4,
    delay: int = 1,
    keep: float = 0.5,
    rate: float = 0.01,
    clock: Clock = UNEVEN,
) -> Iterator[Step]:
    """AdamW alone, fragments under way, and never a meeting of the whole."""
    model = task.model().to(w.device)
    inner = AdamW(model.parameters(), lr=rate)
    parts = cut(model, fragments)
    for step in range(steps):
        x, y = task.batch(step * w.size + w.rank, local_batch)
        with span("AdamW", label=step, cost=clock(w.rank, step)):
            loss = task.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
            inner.zero_grad()
            loss.backward()
            inner.step()
        now = step + 1
        for i, part in enumerate(parts):
            if is_sent(i, now, fragments, period):
                #: What is still under way after the last step is waited for.
                part.send(arrives=min(now + delay, steps))
            #: It arrives when all have taken tau more steps, however fast
            #: the network is: no rank may mix it in earlier than another.
            if part.arrives == now:
                part.receive(keep)
        yield Step(loss.item(), [part.start for part in parts])


def reference(w: World, task: Task, size: dict[str, Any]) -> list[Tensor]:
    """All ranks on one process, and torch's own Nesterov as the outer step."""
    models = [task.model().to(w.device) for _ in range(w.size)]
    inner = [AdamW(m.parameters(), lr=0.01) for m in models]
    every = torch.stack([parameters_to_vector(m.parameters()) for m in models])
    for model, replica in zip(models, every.detach()):
        vector_to_parameters(replica, model.parameters())
    period, count = size["period"], size["fragments"]
    starts = [part.clone() for part in every[0].detach().tensor_split(count)]
    outer = [SGD([start], RATE, MOMENTUM, nesterov=True) for start in starts]
    due: dict[tuple[int, int], Tensor] = {}
    for step in range(1, size["steps"] + 1):
        for r, (model, adam) in enumerate(zip(models, inner)):
            x, y = task.batch((step - 1) * w.size + r, size["local_batch"])
            x, y = x.to(w.device), y.to(w.device)
            adam.zero_grad()
            (task.loss(model, x, y) / y.numel()).backward()
            adam.step()
        for i, part in enumerate(every.detach().tensor_split(count, dim=1)):
            if step % period == (i + 1) * period // count % period:
                arrives = min(step + size["delay"], size["steps"])
                due[i, arrives] = starts[i] - part.mean(0)
            if (i, step) in due:
                starts[i].grad = due[i, step]
                outer[i].step()
                part.mul_(size["keep"]).add_(starts[i], alpha=1 - size["keep"])
    return starts


def main(
    w: World, *, period: int = 4, fragments: int = 3, delay: int = 2
) -> None:
    fit = 0 < fragments <= period > delay
    w.require(fit, f"H = {period} for {fragments} fragments, tau = {delay}")
    size: Any = dict(fragments=fragments, delay=delay, keep=0.4)
    size |= dict(steps=2 * period + 2, period=period, local_batch=8)
    for task in (digits, characters):
        with meter(shown=task is characters) as moved:
            for done in train(w, task, clock=lambda rank, step: 1, **size):
                kept = list(done.weights)
        #: One rank checks: that all have the same bits is checked below.
        if w.rank == 0:
            # AdamW divides by roots that may be tiny: roundings grow there.
            alone = partial(reference, w, task, size)
            w.check(task.name, kept, alone, slack=2**14)
        w.check_same("same", kept)
    whole: Any = dict(steps=2 * period, period=period, local_batch=8)
    *_, done = train(w, digits, fragments=1, delay=0, keep=0.0, **whole)
    whole |= dict(rate=0.01, outer_rate=RATE, momentum=MOMENTUM)
    truth = partial(diloco.reference, w, digits, whole)
    w.check("diloco", done.weights[0], truth, slack=2**14)
    sent = [e.bytes for e in moved.events if e.kind == "collective"]
    counts = dict(calls=moved.count, payload=moved.payload, peak=max(sent))
    exposed = alike(moved.events).exposed[0]
    given = dict(elements=sum(map(len, kept)), itemsize=8, steps=size["steps"])
    report(w, given=given, exposed=exposed, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
