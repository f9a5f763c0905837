"""Bidirectional pipeline: half of the micro-batches enter from the far end.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.pipeline_flush.bidirectional_pipeline

While a pipeline fills, its last ranks have nothing to do, and while it drains,
its first ones. So lay a second pipeline over the same ranks in the opposite
direction: rank r has stage r for the micro-batches that go down and stage
p-1-r for those that go up. For p = 4 and m = 4, of which 0 and 1 go down:

    rank 0  F0 F1 .  F2 B2 F3 B3 B0 .  B1
    rank 1  .  F0 F2 F1 F3 B2 B0 B3 B1 .
    rank 2  .  F2 F0 F3 F1 B0 B2 B1 B3 .
    rank 3  F2 F3 .  F0 B0 F1 B1 B2 .  B3

In slots of equal length and with an even p, two passes never fall into one
slot: those that go down are due on rank r in slots of one parity, and those
that go up in slots of the other. A rank idles for p-2 slots instead of 2(p-1).

The price is weights. Each stage is on two ranks, r and p-1-r, and each copy
has seen half of the micro-batches. The two swap gradients before the update.

Source: Li and Hoefler 2021 (Chimera), sections 3.1, 3.2 and 3.5.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import Held, Schedule, World, meter, report, world
from exemplars.sync_strategy.pipeline_flush.schedule_as_data import (
    Stage,
    Work,
    reference,
    run_batch,
)
from exemplars.workload import Step, Task, digits, equal_layers


def two_ways(r: int, p: int, m: int) -> list[Work]:
    """What rank r of p does, in order."""
    due: list[tuple[int, Work]] = []
    for i in range(m):
        up, nth = divmod(i, m // 2)
        s = p - 1 - r if up else r
        #: Half of p micro-batches in each direction make a block of 2p slots.
        #: The next block is the same again, and fits to the end of this one.
        block, j = divmod(nth, (p + 1) // 2)
        start = 2 * p * block + 2 * j
        #: One stage per slot: forward to the last stage, and at once back.
        due.append((start + s, ("F", i, s)))
        due.append((start + 2 * p - 1 - s, ("B", i, s)))
    #: If p is odd, two may be due in one slot: the one going down is first.
    return [work for _, work in sorted(due, key=lambda item: item[0])]


def plan(p: int, m: int) -> Schedule:
    """The schedule of all ranks."""
    return Schedule.of(two_ways(r, p, m) for r in range(p))


class Slots(Stage):
    """A stage whose passes all take one slot."""

    times: ClassVar = {"F": 1, "B": 1}


def add_twin(w: World, gradients: Sequence[Tensor]) -> None:
    """Add the gradients of the rank with the same two stages."""
    twin = w.size - 1 - w.rank
    #: In the middle of an odd number both directions meet in one stage, and
    #: its gradients have been added up already.
    if twin == w.rank:
        return
    mine = parameters_to_vector(gradients)
    theirs = torch.empty_like(mine)
    pair = [
        dist.P2POp(dist.isend, mine, twin),
        dist.P2POp(dist.irecv, theirs, twin),
    ]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    #: A sum of two has the same bits in either order, so the copies stay
    #: equal without ever exchanging weights.
    vector_to_parameters(mine + theirs, gradients)


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    batch: int,
    microbatches: int,
    rate: float,
) -> Iterator[Step]:
    """Plain SGD; the losses of the first and the last rank add up."""
    by = plan(w.size, microbatches)
    #: In order of the stages, which is the twin's order too.
    own = {s: Slots(w, task, s, by) for s in by.held(w.rank)}
    weights = [t for stage in own.values() for t in stage.layers.parameters()]
    optimizer = torch.optim.SGD(weights, lr=rate)
    for step in range(steps):
        x, y = (t.to(w.device) for t in task.batch(step, batch))
        parts = (t.tensor_split(microbatches) for t in (x, y))
        loss = run_batch(w, own, by, [*zip(*parts)])
        #: Both divided by the whole batch, so the sum is its gradient.
        add_twin(w, [t.grad for t in weights if t.grad is not None])
        optimizer.step()
        optimizer.zero_grad()
        yield Step(loss, weights)


def layers(w: World, held: Held | None = None) -> nn.Sequential:
    """One layer of 64 units per stage, this rank's watched from outside."""
    model = equal_layers(w.size, 64)
    if held is not None:
        for s in {w.rank, w.size - 1 - w.rank}:
            model[s].register_forward_hook(held)
    return model


def main(
    w: World,
    *,
    steps: int = 2,
    batch: int = 20,
    microbatches: int = 10,
    rate: float = 0.5,
) -> None:
    m, held = microbatches, Held()
    why = f"{batch} samples cannot make {m} equal micro-batches, half each way"
    w.require(m % 2 == 0 and batch % m == 0, why)
    task = replace(digits, model=partial(layers, w))
    watched = replace(task, model=partial(layers, w, held))
    sizes: dict[str, Any] = {"steps": steps, "batch": batch, "rate": rate}
    training = train(w, watched, microbatches=m, **sizes)
    seen: list[Step] = []
    memory = w.memory(parameters=lambda: [*seen[-1].weights] if seen else [])
    with memory, meter() as moved:
        seen.append(next(training))  # one flush is counted
    seen.extend(training)
    own = parameters_to_vector(seen[-1].weights).detach()
    truth = partial(reference, w, task, plan(w.size, m), **sizes)
    # A sum over micro-batches against one over the batch: rounding only.
    w.check("parameters", own, lambda: truth()[1], 16)
    losses = own.new_tensor([step.loss for step in seen])
    dist.all_reduce(losses)  # of both directions
    w.check("loss", losses, lambda: truth()[0], 4)
    given = {"activation_bytes": batch // m * 64 * 8}
    given |= {"width": 64, "itemsize": 8}
    sent, state = moved.bytes_sent, memory.live()["parameters"]
    report(w, given=given, bytes_sent=sent, in_flight=held.most, weights=state)


if __name__ == "__main__":
    with world() as w:
        main(w)
