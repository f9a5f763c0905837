"""Message-driven scheduling: a stage works on whatever has arrived first.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.pipeline_flush.message_driven_scheduling

No order of work is fixed. A stage has an inbox; when it is free it takes the
oldest message, be it an activation from the left (F) or a gradient from the
right (B). The first stage lets a new micro-batch in when one has come back,
so that at most `limit` are on their way.

Which message comes first would be a race, and NCCL cannot receive from
anyone. Here computing takes virtual time, a pure function of stage and
micro-batch. So every rank works out the one list of all that happens, by
time, and takes part in what concerns it:

    0.0  stage 0 begins F0          1.0  stage 0 ends F0: send to stage 1
    1.0  stage 0 begins F1          1.0  stage 1 begins F0  ...

That also rules out a deadlock: both ends of the first message that is not
delivered yet have done all that comes before it.

The gradient is a sum over micro-batches, the same in any order but for
rounding. Here even the bits are the same: nothing overtakes on a link, so
whatever the clock says, the backwards of a stage are those of micro-batches
0, 1, 2, .. in this order. Only the forwards between them shift.

Source: Singh and Bhatele 2022 (AxoNN).
"""

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from exemplars.parameter_distribution.inter_layer.layer_partition import (
    Part,
    reference,
)
from exemplars.runtime import (
    Clock,
    Held,
    World,
    jitter,
    meter,
    report,
    span,
    world,
)
from exemplars.sync_strategy.pipeline_flush.one_f_one_b import Pair, layers
from exemplars.workload import Step, Task, digits


def stage_of(place: int, stages: int) -> int:
    """Of 2p places: forward at 0, 1, .. p-1 and backward at p-1, .. 1, 0."""
    return min(place, 2 * stages - 1 - place)


def arrivals(
    stages: int, count: int, limit: int, clock: Clock
) -> Iterator[tuple[str, int, int]]:
    """What happens, in order: begin or end, place, micro-batch."""
    inbox = [deque[tuple[int, int]]() for _ in range(stages)]
    inbox[0].extend((0, micro) for micro in range(min(limit, count)))
    running, busy = list[tuple[float, int, int]](), set[int]()
    now, stage, target = 0.0, 0, 0
    while running or inbox[stage] or inbox[target]:
        for free in {stage, target} - busy:
            if inbox[free]:
                #: First come, first served.
                place, micro = inbox[free].popleft()
                busy.add(free)
                #: A backward takes twice as long as a forward.
                until = now + clock(free, micro) * (1 + (place >= stages))
                heapq.heappush(running, (until, place, micro))
                yield "begin", place, micro
        now, place, micro = heapq.heappop(running)
        yield "end", place, micro
        stage = target = stage_of(place, stages)
        busy.remove(stage)
        if place == stages - 1:
            #: At the end of the pipeline a micro-batch turns round at once.
            inbox[stage].appendleft((stages, micro))
        elif place < 2 * stages - 1:
            target = stage_of(place + 1, stages)
            inbox[target].append((place + 1, micro))
        elif micro + limit < count:
            #: One has come back, so one more may set out.
            inbox[0].append((0, micro + limit))


def run_batch(
    w: World, part: Part, micros: Sequence[Pair], clock: Clock, limit: int
) -> float:
    """What concerns this rank of all that happens; the last stage's loss."""
    inbox, kept, loss = dict[int, Tensor](), dict[int, Pair](), 0.0
    count = sum(labels.numel() for _, labels in micros)
    #: Every rank goes through the same list, and so knows of any message who
    #: sends it, to whom and when: no decision travels.
    for kind, place, i in arrivals(w.size, len(micros), limit, clock):
        stage, target = (stage_of(at, w.size) for at in (place, place + 1))
        forward, (x, labels) = place < w.size, micros[i]
        if kind == "begin" and stage == w.rank and forward:
            x = inbox.pop(i, x)
            with span("F", label=i, cost=clock(stage, i)):
                kept[i] = x, part.forward(x, labels, count)
        elif kind == "begin" and stage == w.rank:
            with span("B", label=i, cost=2 * clock(stage, i)):
                kept[i][1].backward(inbox.pop(i, None))
            loss += kept[i][1].item() if part.last else float("nan")
        elif kind == "end" and stage == w.rank:
            result = kept[i][1].detach() if forward else kept.pop(i)[0].grad
            if result is not None and 0 <= target != stage:
                dist.send(result.contiguous(), target)
        elif kind == "end" and target == w.rank:
            room = part.entering(x)
            inbox[i] = room if forward else torch.empty_like(kept[i][1])
            #: Both ends know that this message is the next between them.
            dist.recv(inbox[i], stage)
    return loss


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    batch: int,
    microbatches: int,
    limit: int,
    rate: float,
    clock: Clock,
) -> Iterator[Step]:
    """Plain SGD; at most `limit` micro-batches are on their way."""
    part = Part(w, task)
    weights = [*part.layers.parameters()]
    optimizer = torch.optim.SGD(weights, lr=rate)
    for step in range(steps):
        x, y = (t.to(w.device) for t in task.batch(step, batch))
        parts = zip(x.tensor_split(microbatches), y.tensor_split(microbatches))
        loss = run_batch(w, part, [*parts], clock, limit)
        optimizer.step()
        optimizer.zero_grad()
        yield Step(loss, weights)


def main(w: World, *, per_stage: int = 4, ahead: int = 2) -> None:
    task, held = replace(digits, model=partial(layers, w)), Held()
    watched = replace(task, model=partial(layers, w, held))
    m, limit = per_stage * w.size, ahead * w.size
    sizes: Any = dict(steps=2, batch=3 * m, rate=0.5)
    own: Any = dict(microbatches=m, limit=limit, **sizes)
    *_, even = train(w, task, clock=jitter(spread=0), **own)
    w.meters.clear()
    with meter() as moved:
        *_, uneven = train(w, watched, clock=jitter(spread=2), **own)
    weights = parameters_to_vector(uneven.weights).detach()
    # The backwards come in the same order, so they add up to the same bits.
    w.check("order", [*uneven.weights], lambda: [*even.weights], 0)
    w.check("parameters", weights, lambda: reference(w, task, **sizes)[1], 16)
    given = {"microbatches": 2 * m, "limit": limit}
    given["activation_bytes"] = 3 * 64 * 8
    report(w, given=given, bytes_sent=moved.bytes_sent, in_flight=held.most)


if __name__ == "__main__":
    with world() as w:
        main(w)
