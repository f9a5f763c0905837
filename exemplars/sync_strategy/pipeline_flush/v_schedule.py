"""V schedule: down the ranks and up again, for a half or third of the memory.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.pipeline_flush.v_schedule

Cut the network into 2p stages and bend it: rank r has stage r on the way down
and stage 2p-1-r on the way up, so that rank 0 has both ends of the network.
Whatever stays long on the way down is then back early on the way up, and all
ranks hold about as much. Micro-batch 0, slot by slot, for p = 3 in the
shortest such path (V-Min), with small letters on the way up:

    rank 0  F0 .  .  .  .  f0 .  .  b0 .  .  .  .  B0
    rank 1  .  F0 .  .  f0 .  .  .  .  b0 .  .  B0 .
    rank 2  .  .  F0 f0 .  .  .  .  .  .  b0 B0 .  .

Micro-batch i does the same 6i slots later: a rank has F, B and W of two
stages to do for each, which is six slots of work, and no two fall together.
W takes what is free. How long a micro-batch stays on a rank says how many of
them the rank holds: (p+4) // 3 in V-Min, where a forward goes down by one
rank per slot, and (p+2) // 2 in V-Half, where it takes two slots per rank.
1F1B holds p on its first rank. ZB-V spends that much on every rank, and none
of them pauses between its first pass and its last: it only begins up to p-1
slots late, and ends as early.

Source: Qi et al. 2024 (Pipeline parallelism with controllable memory),
section 3; the slots are those of the authors' code, zbv_greedy.py. ZB-V is
from the first version of Qi et al. 2024 (Zero bubble), section 6.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from exemplars.runtime import Held, Schedule, World, meter, report, world
from exemplars.sync_strategy.pipeline_flush.schedule_as_data import (
    Work,
    reference,
    run_batch,
)
from exemplars.sync_strategy.pipeline_flush.zero_bubble import Halves
from exemplars.workload import Step, Task, digits, equal_layers


def block(r: int, p: int, slope: int) -> tuple[int, int, int, int]:
    """Slots of micro-batch 0 on rank r: F down and up, B down and up."""
    #: Down at one rank per slot: V-Min. A pause, or else every third number
    #: of ranks would have two passes due in one slot.
    if slope == 1:
        gap = 0 if p % 3 else 2
        return r, 2 * p - 1 - r, 2 * p + gap + r, 4 * p + gap - 1 - r
    #: Down at two slots per rank, up at one: V-Half.
    gap = 0 if p % 2 else 3
    back = 3 * p + gap - 1
    return 2 * r, 3 * p - 2 - r, back + 2 * r, 6 * p + gap - 2 - r


def v_shape(r: int, p: int, m: int, slope: int) -> Iterator[Work]:
    """What rank r of p does, in order."""
    #: The last stage is on rank 0, so B also goes down first, and then up.
    ends = r, 2 * p - 1 - r
    passes = zip("FFBB", (*ends, *reversed(ends)), block(r, p, slope))
    slots: dict[int, Work] = {}
    for kind, s, slot in passes:
        slots.update({slot + 6 * i: (kind, i, s) for i in range(m)})
    due: deque[Work] = deque()
    for t in range(max(slots) + 1):
        if t in slots:
            yield slots[t]
            kind, i, s = slots[t]
            due.extend([("W", i, s)] if kind == "B" else [])
        #: Two of six slots are free: as many as there are W.
        elif due:
            yield due.popleft()
    yield from due


def zb_v(r: int, p: int, m: int) -> Iterator[Work]:
    """What rank r of p does in ZB-V, in order: F0 goes down, F1 up."""
    behind = p - 1 - r
    steps = [("F0", 2 * behind + 1), ("F1 F0", r), ("F1 B1 W1", behind + 1)]
    #: In the middle every rank is busy with one pass after the other.
    steps += [("F0 B0 W0 F1 B1 W1", m - 2 * p + 1 + r)]
    steps += [("B0 W0 F1 B1 W1", behind), ("B0 B1", r)]
    steps += [("B0 W0", behind + 1), ("W1", r), ("W0", r)]
    seen = Counter[str]()
    for words, times in steps:
        for word in words.split() * times:
            yield word[0], seen[word], 2 * p - 1 - r if word[1] == "1" else r
            seen[word] += 1


def plan(p: int, m: int, slope: int) -> Schedule:
    """The schedule of all ranks: V-Min, V-Half or ZB-V, at slopes 1, 2, 4."""
    if slope == 4:
        return Schedule.of(zb_v(r, p, m) for r in range(p))
    return Schedule.of(v_shape(r, p, m, slope) for r in range(p))


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    batch: int,
    microbatches: int,
    slope: int,
    rate: float,
) -> Iterator[Step]:
    """Plain SGD over two stages per rank."""
    by = plan(w.size, microbatches, slope)
    own = {s: Halves(w, task, s, by) for s in by.held(w.rank)}
    weights = [t for stage in own.values() for t in stage.layers.parameters()]
    optimizer = torch.optim.SGD(weights, lr=rate)
    for step in range(steps):
        x, y = (t.to(w.device) for t in task.batch(step, batch))
        parts = (t.tensor_split(microbatches) for t in (x, y))
        #: At the turn a stage and the next one share a rank: no message.
        loss = run_batch(w, own, by, [*zip(*parts)])
        optimizer.step()
        optimizer.zero_grad()
        yield Step(loss, weights)


def layers(w: World, held: Held | None = None) -> nn.Sequential:
    """One layer of 64 units per stage, this rank's watched from outside."""
    model = equal_layers(2 * w.size, 64)
    if held is not None:
        for s in (w.rank, 2 * w.size - 1 - w.rank):
            #: The matrix: what it made lives until W.
            next(iter(model[s].children())).register_forward_hook(held)
    return model


def check_others(
    w: World, task: Task, truth: Callable[[], Any], slope: int, **sizes: Any
) -> None:
    """The same update by the two other schedules."""
    for other in {1, 2, 4} - {slope}:
        if sizes["microbatches"] >= w.size * (2 if other == 4 else 1):
            *_, last = train(w, task, slope=other, **sizes)
            weights = parameters_to_vector(last.weights).detach()
            w.check("parameters", weights, lambda: truth()[1], 16)


def main(
    w: World,
    *,
    steps: int = 2,
    batch: int = 32,
    microbatches: int = 16,
    slope: int = 2,
    rate: float = 0.5,
) -> None:
    m, held = microbatches, Held()
    w.require(slope in {1, 2, 4}, f"slope {slope}: 1 V-Min, 2 V-Half, 4 ZB-V")
    fits = m >= w.size * (2 if slope == 4 else 1) and batch % m == 0
    w.require(fits, f"{batch} samples, {m} micro-batches on {w.size} ranks")
    task = replace(digits, model=partial(layers, w))
    watched = replace(task, model=partial(layers, w, held))
    sizes: dict[str, Any] = {"steps": steps, "batch": batch, "rate": rate}
    training = train(w, watched, microbatches=m, slope=slope, **sizes)
    with meter() as moved:
        seen = [next(training)]  # one flush is counted, the others only train
    seen.extend(training)
    weights = parameters_to_vector(seen[-1].weights).detach()
    truth = partial(reference, w, task, plan(w.size, m, slope), **sizes)
    # A sum over micro-batches against one over the batch: rounding only.
    w.check("parameters", weights, lambda: truth()[1], 16)
    check_others(w, task, truth, slope, microbatches=m, **sizes)
    if w.rank == 0:
        losses = weights.new_tensor([step.loss for step in seen])
        w.check("loss", losses, lambda: truth()[0], 4)
    given = {"activation_bytes": batch // m * 64 * 8}
    report(w, given=given, bytes_sent=moved.bytes_sent, in_flight=held.most)


if __name__ == "__main__":
    with world() as w:
        main(w)
