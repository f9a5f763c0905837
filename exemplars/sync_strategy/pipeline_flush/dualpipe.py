"""DualPipe: both ends at once, and a forward beside each backward.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.pipeline_flush.dualpipe

Bend a network of S = 2p stages over p ranks: rank r has stage r on the way
down (0) and stage 2p-1-r on the way up (1). A micro-batch that goes down
meets others that come up, so a rank can do a forward of one micro-batch
beside a backward of another, and each hides the messages of the other. For
rank r and m micro-batches, with b for a backward whose W is put off:

    times       does               times      does
    2(p-1-r)    F0                 p-1-r      B1  F1 B0
    r+1         F0 F1              r+1        B1 B0, the latter half b1 b0
    p-1-r       b1 W F1            p-1-r      W b0
    m-2p+r+1    F0 B1  F1 B0       r+1        W

That is DualPipeV. DualPipe is the older form: the V is laid flat over twice
as many ranks, with a second one in the opposite direction, so that each stage
is on two ranks, which add up their gradients. Both hold S+1 activations and
the weights of two stages on each rank. Both idle for S/2-1 slots, if F, B and
W take one each; the V needs half of the ranks for it.

S stages on p ranks: S = p with two copies of each stage, else S = 2p

Source: DeepSeek-AI 2024 (DeepSeek-V3), section 3.2.1; the steps are those of
dualpipe.py and dualpipev.py in deepseek-ai/DualPipe.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import Held, Schedule, World, meter, report, world
from exemplars.sync_strategy.pipeline_flush.schedule_as_data import (
    Work,
    reference,
    run_batch,
)
from exemplars.sync_strategy.pipeline_flush.zero_bubble import Halves
from exemplars.workload import Step, Task, digits, equal_layers


def in_a_v(r: int, p: int, m: int) -> Iterator[Work]:
    """Passes, micro-batches and ways (0 down, 1 up) of rank r, in order."""
    behind, near = p - 1 - r, r + 1
    steps = [("F0", 2 * behind), ("F0 F1", near), ("b1 W F1", behind)]
    steps += [("F0 B1 F1 B0", m - 2 * p + near), ("B1 F1 B0", behind)]
    #: Near the end no forward is left to go beside a backward: the others
    #: wait for this one, so its W is put off.
    steps += [("B1 B0", near // 2), ("B1 b0", near % 2), ("b1 b0", near // 2)]
    steps += [("W b0", behind), ("W", near)]
    seen, late = Counter[str](), deque[Work]()
    for words, times in steps:
        for word in words.split() * times:
            if word == "W":
                yield late.popleft()
                continue
            kind, way = word[0].upper(), word[1]
            i = seen[kind + way]
            seen[kind + way] += 1
            yield kind, i, int(way)
            if word[0] == "b":
                late.append(("W", i, int(way)))


def works(r: int, p: int, m: int, copies: int) -> Iterator[Work]:
    """What rank r of p does, by stages."""
    #: Two copies: both halves of the ranks do as in a V of half the ranks,
    #: each with half of the micro-batches in either direction.
    half, near = m // copies, min(r, p - 1 - r) if copies == 2 else r
    for kind, i, way in in_a_v(near, p // copies, half):
        if copies == 1:
            yield kind, i, 2 * p - 1 - r if way else r
        elif (way == 0) == (r == near):
            yield kind, i, r
        else:
            yield kind, half + i, p - 1 - r


def plan(p: int, m: int, copies: int) -> Schedule:
    """The schedule of all ranks."""
    return Schedule.of(works(r, p, m, copies) for r in range(p))


class Mixed(Halves):
    """A stage some of whose backwards come in two."""

    def __init__(self, w: World, task: Task, s: int, of: Schedule) -> None:
        super().__init__(w, task, s, of)
        self.split = of.split

    def do(self, work: Work, came: Tensor, labels: Tensor, count: int) -> Any:
        """One pass; a backward that is not split has its W at once."""
        kind, i, s = work
        out = super().do(work, came, labels, count)
        if kind == "B" and (i, s) not in self.split:
            self.weights(i)
        return out


def add_twin(w: World, gradients: Sequence[Tensor]) -> None:
    """Add the gradients of the rank with the same two stages."""
    mine = parameters_to_vector(gradients)
    theirs, twin = torch.empty_like(mine), w.size - 1 - w.rank
    #: One batch: NCCL would run two separate calls one after the other.
    pair = [
        dist.P2POp(dist.isend, mine, twin),
        dist.P2POp(dist.irecv, theirs, twin),
    ]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    vector_to_parameters(mine + theirs, gradients)


def train(
    w: World, task: Task, *, by: Schedule, steps: int, batch: int, rate: float
) -> Iterator[Step]:
    """Plain SGD; the losses of all ranks add up."""
    #: In order of the stages, which is the twin's order too.
    own = {s: Mixed(w, task, s, by) for s in by.held(w.rank)}
    weights = [t for stage in own.values() for t in stage.layers.parameters()]
    optimizer = torch.optim.SGD(weights, lr=rate)
    for step in range(steps):
        x, y = (t.to(w.device) for t in task.batch(step, batch))
        parts = (t.tensor_split(by.microbatches) for t in (x, y))
        #: A pair of F and B runs one after the other here; GPUs overlap them.
        loss = run_batch(w, own, by, [*zip(*parts)])
        if by.stages == w.size:
            add_twin(w, [t.grad for t in weights if t.grad is not None])
        optimizer.step()
        optimizer.zero_grad()
        yield Step(loss, weights)


def layers(stages: int, held: Held | None = None) -> nn.Sequential:
    """One layer of 64 units per stage, watched from outside."""
    model = equal_layers(stages, 64)
    if held is not None:
        for layer in model:
            #: The matrix: what it made lives until W.
            next(iter(layer.children())).register_forward_hook(held)
    return model


def main(
    w: World,
    *,
    copies: int = 2,
    steps: int = 2,
    batch: int = 24,
    microbatches: int = 24,
) -> None:
    m, held = microbatches, Held()
    w.require(copies in {1, 2}, f"{copies} copies of each stage: use 1 or 2")
    #: An odd number of ranks has no two halves: it is always a V.
    copies = 1 if w.size % 2 else copies
    few = f"{batch} samples, {m} micro-batches: an even part, {2 * w.size} up"
    w.require(m >= 2 * w.size and m % copies == batch % m == 0, few)
    by = plan(w.size, m, copies)
    task = replace(digits, model=partial(layers, by.stages))
    watched = replace(digits, model=partial(layers, by.stages, held))
    sizes: dict[str, Any] = {"steps": steps, "batch": batch, "rate": 0.5}
    training = train(w, watched, by=by, **sizes)
    with meter() as moved:
        seen = [next(training)]  # one flush is counted, the others only train
    seen.extend(training)
    own = parameters_to_vector(seen[-1].weights).detach()
    # A sum over micro-batches against one over the batch: rounding only.
    w.check("parameters", own, lambda: reference(w, task, by, **sizes)[1], 16)
    losses = own.new_tensor([step.loss for step in seen])
    dist.all_reduce(losses)  # of both directions
    w.check("loss", losses, lambda: reference(w, task, by, **sizes)[0], 4)
    given = {"activation_bytes": batch // m * 64 * 8, "copies": copies}
    given |= {"width": 64, "itemsize": 8}
    sent, state = moved.bytes_sent, sum(t.nbytes for t in seen[-1].weights)
    report(w, given=given, bytes_sent=sent, in_flight=held.most, weights=state)


if __name__ == "__main__":
    with world() as w:
        main(w)
