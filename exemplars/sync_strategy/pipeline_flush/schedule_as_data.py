"""A schedule is data: any legal list of work runs, without a deadlock.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.pipeline_flush.schedule_as_data

A pipeline's schedule is a list for each rank: which pass (F forward, B back),
of which micro-batch, at which stage. Nothing else tells GPipe from 1F1B, and
the gradient is the same for all of them: a sum over micro-batches. To show
it, this program draws a schedule at random and runs it.

The messages follow from the lists, and there lies the difficulty. NCCL has no
tags: it pairs the messages of two ranks in the order in which both post them,
and a send ends only when its receive has been posted. If each rank posts what
it needs where it needs it, two ranks soon wait for each other, or one takes
a message for another. So all ranks walk through *one* list of all work:

    the list     F0 at stage 0   F0 at stage 1   F1 at stage 0   B0 at 1 ...
    rank 0       works, sends    -               works, sends    receives
    rank 1       receives        works           receives        works, sends

Whoever does a piece of work posts its send, and whoever needs the result
posts the receive, at the same place in the list. Both are only posted; a rank
waits for a message when its own work needs it.

Source: torch.distributed.pipelining, schedules.py (_add_send_recv).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from random import Random
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from exemplars.parameter_distribution.inter_layer import layer_partition
from exemplars.runtime import Schedule, World, meter, report, span, world
from exemplars.workload import Step, Task, digits, equal_layers

Work = tuple[str, int, int]  # F or B, micro-batch, stage
Pair = tuple[Tensor, Tensor]  # samples and labels; a stage's input and output


def at_random(ranks: int, stages: int, m: int, seed: int) -> list[list[Work]]:
    """Any work that can be done, until none is left; stage s on s mod p."""
    #: A micro-batch goes forward through all stages, and back through them.
    path = [*product("F", range(stages)), *product("B", range(stages)[::-1])]
    picks = [i for i in range(m) for _ in path]
    Random(seed).shuffle(picks)
    done, works = [0] * m, [list[Work]() for _ in range(ranks)]
    for i in picks:
        kind, s = path[done[i]]
        works[s % ranks].append((kind, i, s))
        done[i] += 1
    return works


class Stage(layer_partition.Part):
    """One stage of the schedule, and what it keeps for its backwards."""

    times: ClassVar = {"F": 1, "B": 2}  # virtual seconds of a pass

    def __init__(self, w: World, task: Task, s: int, of: Schedule) -> None:
        #: The part that rank s would have, were there as many as stages.
        super().__init__(replace(w, rank=s, size=of.stages), task)
        self.kept: dict[int, Pair] = {}

    def room(self, kind: str, i: int, x: Tensor) -> Tensor:
        """A tensor of the shape that this stage needs for its pass."""
        if kind == "F":
            return self.entering(x)
        return torch.empty_like(self.kept[i][1])

    def do(self, work: Work, came: Tensor, labels: Tensor, count: int) -> Any:
        """One pass: what another stage needs of it, or the loss."""
        kind, i, _ = work
        if kind == "F":
            self.kept[i] = came, self.forward(came, labels, count)
            return self.kept[i][1].detach()
        x, y = self.kept.pop(i)
        #: Adds to the gradients of the weights, in any order.
        y.backward(None if self.last else came)
        return x.grad


def run_batch(
    w: World, own: Mapping[int, Stage], plan: Schedule, micros: Sequence[Pair]
) -> float:
    """One batch by any schedule; the rank of the last stage has its loss."""
    count, loss = sum(labels.numel() for _, labels in micros), 0.0
    mail, posted = dict[Work, Tensor](), dict[Work, dist.Work]()
    for r, work in plan.in_order():
        (x, labels), (kind, i, s) = micros[work.micro], work
        after, taker = plan.taker(work) or (work, None)
        if r == w.rank:
            #: Posted long ago, and waited for only now.
            if work in posted:
                posted.pop(work).wait()
            cost = plan.seconds(work, own[s].times)
            with span(kind, label=work, cost=cost):
                out = own[s].do(work, mail.pop(work, x), labels, count)
            if own[s].last and kind == "F":
                loss += out.item()
            elif taker == r:
                mail[after] = out
            elif taker is not None:
                posted[after] = post(dist.isend, out, taker, w.group)
        elif taker == w.rank:
            #: Another rank's work, and the result is for this one.
            mail[after] = own[after.stage].room(kind, i, x)
            posted[after] = post(dist.irecv, mail[after], r, w.group)
    for sent in posted.values():
        sent.wait()
    return loss


def post(way: Any, x: Tensor, peer: int, group: Any) -> dist.Work:
    """One message on its way, by its turn and not by a tag."""
    op = dist.P2POp(way, x.contiguous(), group=group, group_peer=peer)
    return dist.batch_isend_irecv([op])[0]


def train(
    w: World, task: Task, *, by: Schedule, steps: int, batch: int, rate: float
) -> Iterator[Step]:
    """Plain SGD by any schedule."""
    own = {s: Stage(w, task, s, by) for s in by.held(w.rank)}
    weights = [t for stage in own.values() for t in stage.layers.parameters()]
    optimizer = torch.optim.SGD(weights, lr=rate)
    for step in range(steps):
        x, y = (t.to(w.device) for t in task.batch(step, batch))
        parts = (t.tensor_split(by.microbatches) for t in (x, y))
        loss = run_batch(w, own, by, [*zip(*parts)])
        #: The flush: nothing is on its way, and one version meets all.
        optimizer.step()
        optimizer.zero_grad()
        yield Step(loss, weights)


def reference(w: World, task: Task, plan: Schedule, **sizes: Any) -> Pair:
    """One process: its losses, and the weights of this rank's stages."""
    parts = [replace(w, rank=s, size=plan.stages) for s in plan.held(w.rank)]
    found = [layer_partition.reference(v, task, **sizes) for v in parts]
    return found[0][0], torch.cat([weights for _, weights in found])


def main(
    w: World,
    *,
    steps: int = 2,
    batch: int = 30,
    microbatches: int = 6,
    stages_per_rank: int = 2,
    rate: float = 0.5,
    seed: int = 0,
) -> None:
    uneven = f"{batch} samples cannot make {microbatches} equal micro-batches"
    w.require(batch % microbatches == 0, uneven)
    stages = stages_per_rank * w.size
    plan = Schedule.of(at_random(w.size, stages, microbatches, seed))
    task = replace(digits, model=lambda: equal_layers(stages, 64))
    sizes: dict[str, Any] = {"steps": steps, "batch": batch, "rate": rate}
    training = train(w, task, by=plan, **sizes)
    with meter() as moved:
        seen = [next(training)]  # one flush is counted, the others only train
    seen.extend(training)
    weights = parameters_to_vector(seen[-1].weights).detach()
    truth = partial(reference, w, task, plan, **sizes)
    # A sum over micro-batches against one over the batch: rounding only.
    w.check("parameters", weights, lambda: truth()[1], 16)
    if stages - 1 in plan.held(w.rank):
        losses = weights.new_tensor([step.loss for step in seen])
        w.check("loss", losses, lambda: truth()[0], 4)
    given = {"activation_bytes": batch // microbatches * 64 * 8}
    report(w, given=given, bytes_sent=moved.bytes_sent)


if __name__ == "__main__":
    with world() as w:
        main(w)
