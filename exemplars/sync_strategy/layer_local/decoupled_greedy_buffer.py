"""Decoupled greedy learning: a block goes on when the block below has stopped.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.layer_local.decoupled_greedy_buffer

Each of p blocks is on a rank and learns from a loss of its own, so nothing
comes back. Still a block waits for its inputs. Give it a buffer of the last
few pairs of activations and labels that it has heard of: now it learns from
what is there, and never waits again. If block 0 stops for three seconds in
its step 4, and block 1 keeps two pairs:

    second       4   5   6   7   8   9
    block 0      4 ------------  5   6
    block 1      3   3'  2'  3"  4   5     a prime for each time it is reused
    block 2      2   3   4   5   6   7     new from block 1, in every step

The least used pair is drawn, the newest of equals. So nothing is drawn twice
while messages come, and when they come again they are first. What is reused
grows old: activations of weights that have been updated since, and of samples
that have been learned from before.

Who has stopped when is a function of rank and step (the virtual clock), so a
block knows without a message which ones have come.

Source: Belilovsky et al. 2020, abstract (asynchronous DGL).
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from exemplars.runtime import World, meter, one_pauses, report, span, world
from exemplars.sync_strategy.layer_local import local_parallelism
from exemplars.workload import Step, Task, digits, equal_layers

Clock = Callable[[int, int], float]  # seconds of a rank's step


class Replay:
    """The last few pairs that came, and how often each has been drawn."""

    def __init__(self, capacity: int) -> None:
        #: The oldest makes room: a buffer is memory, and old is stale.
        self.pairs = deque[list[Any]](maxlen=capacity)

    def add(self, step: int, x: Tensor, labels: Tensor) -> None:
        """Keep a pair that came before this step."""
        self.pairs.append([0, step, x, labels])

    def draw(self) -> list[Any]:
        """The least used pair, the newest of equals."""
        #: New pairs are first, and with one in every step nothing is reused.
        pair = min(reversed(self.pairs), key=lambda pair: pair[0])
        pair[0] += 1
        return pair[1:]


def times(clock: Clock, rank: int, steps: int) -> list[float]:
    """When a block's steps begin; the last entry, when the last one ends."""
    #: It waits once, until something has passed all blocks below.
    first = sum(clock(q, 0) for q in range(rank))
    return [*accumulate((clock(rank, k) for k in range(steps)), initial=first)]


def hear(w: World, like: list[Tensor]) -> list[Tensor]:
    """A pair of these shapes from the block below."""
    pair = [torch.zeros_like(part) for part in like]
    for part in pair:
        dist.recv(part, w.rank - 1)
    return pair


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    batch: int,
    rate: float,
    clock: Clock,
    buffer: Replay,
) -> Iterator[Step]:
    """Plain SGD; the age is that of the pair, in steps of this block."""
    layer = local_parallelism.Layer(w, task, w.size, rate)
    came = 0 if w.rank > 0 else steps
    own, sent = (times(clock, max(0, r), steps) for r in (w.rank, w.rank - 1))
    for step in range(steps):
        x, labels = (t.to(w.device) for t in task.batch(step, batch))
        while came < steps and sent[came + 1] <= own[step]:
            buffer.add(step, *hear(w, [layer.part.entering(x), labels]))
            came += 1
        since = step
        if w.rank > 0:
            since, x, labels = buffer.draw()
        with span("step", label=step, cost=clock(w.rank, step)):
            h = layer.body(x)
            loss = layer.learn(h, h, labels)
        #: Labels travel along: the next block cannot know which samples
        #: these are.
        for part in (h.detach(), labels) if w.rank < w.size - 1 else ():
            dist.send(part, w.rank + 1)
        yield Step(loss, layer.kept, step - since)
    #: What comes too late is taken and not used.
    for _ in range(came, steps):
        hear(w, [x, labels])


def reference(
    w: World, task: Task, clock: Clock, capacity: int, **sizes: Any
) -> list[Tensor]:
    """One process: all steps of one block, then all steps of the next."""
    steps = range(sizes["steps"])
    starts = accumulate((clock(0, k) for k in steps), initial=0.0)
    first = [task.batch(k, sizes["batch"]) for k in steps]
    mails: list[Any] = [[t, 0, pair] for t, pair in zip(starts, first)]
    for r in range(w.rank + 1):
        layers = [*task.model().to(w.device).children()]
        body, head = layers[r], nn.Sequential(*layers[w.size :])
        net = nn.Sequential(body, head)
        sgd = torch.optim.SGD(net.parameters(), lr=sizes["rate"])
        now, sent = mails[0][0], list[Any]()
        for k in steps:
            known = [mail for mail in mails if mail[0] <= now][-capacity:]
            mail = min(known[::-1], key=lambda mail: mail[1])
            mail[1] += 1
            x, labels = (t.to(w.device) for t in mail[2])
            h = body(x)
            sgd.zero_grad()
            (task.loss(head, h, labels) / len(labels)).backward()
            sgd.step()
            now += clock(r, k)
            sent.append([now, 0, (h.detach(), labels)])
        mails = sent
    kept = net if w.rank == w.size - 1 else body
    return [*kept.parameters()]


def main(
    w: World,
    *,
    steps: int = 10,
    batch: int = 16,
    capacity: int = 2,
    fall: int = 4,
    pause: int = 3,
) -> None:
    w.require(w.size > 1, f"{w.size} rank: no block below; use 2 or more")
    late = f"{capacity} pairs, a pause of {pause} at step {fall} of {steps}"
    w.require(0 < capacity <= fall < steps and pause > 0, late)
    #: One layer of 64 units per rank, and one more as the classifier.
    task = replace(digits, model=lambda: equal_layers(w.size + 1, 64))
    sizes: dict[str, Any] = dict(steps=steps, batch=batch, rate=0.5)
    even, stops = (one_pauses(rank=0, step=fall, pause=n) for n in (0, pause))
    *_, last = train(w, task, clock=even, buffer=Replay(1), **sizes)
    buffer = Replay(capacity)
    with meter() as moved:
        seen = [*train(w, task, clock=stops, buffer=buffer, **sizes)]
    # The same operations on the same numbers: bit for bit.
    truth = partial(local_parallelism.reference, w, task, chunks=w.size)
    together = parameters_to_vector(last.weights)
    w.check("in_step", together, lambda: [*truth(**sizes)][-1], slack=0)
    alone = partial(reference, w, task, stops, capacity, **sizes)
    w.check("weights", seen[-1].weights, alone, slack=0)
    ages = [step.age for step in seen]
    found = dict(goes_on=sum(age > 0 for age in ages), oldest=max(ages))
    found |= dict(sent_back=moved.sent_to[w.rank - 1] if w.rank else 0)
    held = sum(t.nbytes for pair in buffer.pairs for t in pair[2:])
    given = {"activation_bytes": batch * 64 * 8}
    report(w, given=given, buffer=held, bytes_sent=moved.bytes_sent, **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
