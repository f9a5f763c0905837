"""Interleaved 1F1B: v small stages per rank fill the pipeline v times faster.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.pipeline_flush.interleaved_one_f_one_b

Cut the network into v p stages and deal them out in turn: rank r has stages
r, r + p, r + 2p, ... A micro-batch goes round the ranks v times, and a pass
through one small stage takes 1/v of the time, so the last rank begins v times
sooner. For p = 2, v = 2, m = 4 and passes of equal time, with small letters
for the second stage of a rank:

    rank 0  F0 F1 f0 f1 F2 b0 F3 b1 f2 B0 f3 B1 .  b2 .  b3 B2 B3
    rank 1  .  F0 F1 f0 b0 f1 b1 F2 B0 F3 B1 f2 b2 f3 b3 B2 B3 .

A rank idles for p-1 passes of a *small* stage, (p-1)(f + b) seconds, beside
v m (f + b) seconds of work. The price is traffic: each micro-batch crosses
v p - 1 cuts instead of p - 1, each as wide as before.

A schedule of several stages per rank is run as any other list of work: by
the program this one stands on.

f and b are the seconds of a forward and a backward through a small stage.

Source: Narayanan et al. 2021, section 2.2 (interleaved schedule).
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn
from torch.nn.utils import parameters_to_vector

from exemplars.runtime import Held, Schedule, World, meter, report, world
from exemplars.sync_strategy.pipeline_flush import schedule_as_data
from exemplars.sync_strategy.pipeline_flush.schedule_as_data import (
    Work,
    reference,
)
from exemplars.workload import Step, Task, digits, equal_layers


def interleaved(r: int, p: int, m: int, v: int) -> Iterator[Work]:
    """What rank r of p does with m micro-batches and v stages, in order."""
    #: A stage takes p micro-batches, then the rank's next stage has its turn:
    #: the first of them is back by then from its trip round the ranks.
    size, total = m // (m // p), v * m

    def nth(kind: str, n: int) -> Work:
        turn, i = divmod(n, size)
        round_, own = divmod(turn, v)
        #: Backwards come to the last stage first.
        own = own if kind == "F" else v - 1 - own
        #: Every p-th stage, so that the next stage is on the next rank.
        return kind, round_ * size + i, own * p + r

    #: A gradient takes two hops per rank behind this one: there and back.
    ahead = min(total, (v - 1) * size + 2 * (p - 1 - r))
    yield from (nth("F", n) for n in range(ahead))
    #: From here on as 1F1B: as many stages' activations come as go.
    for n in range(total):
        if ahead + n < total:
            yield nth("F", ahead + n)
        yield nth("B", n)


def plan(p: int, m: int, v: int) -> Schedule:
    """The schedule of all ranks."""
    return Schedule.of(interleaved(r, p, m, v) for r in range(p))


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    batch: int,
    microbatches: int,
    stages_per_rank: int,
    rate: float,
) -> Iterator[Step]:
    """Plain SGD over several stages per rank."""
    sizes: dict[str, Any] = {"steps": steps, "batch": batch, "rate": rate}
    #: Only the list is new: the program that runs it is that of any other.
    by = plan(w.size, microbatches, stages_per_rank)
    yield from schedule_as_data.train(w, task, by=by, **sizes)


def layers(w: World, stages: int, held: Held | None = None) -> nn.Sequential:
    """One layer of 64 units per stage, this rank's watched from outside."""
    #: Ten of the last layer's 64 outputs stand for digits.
    model = equal_layers(stages, 64)
    if held is not None:
        for s in range(w.rank, stages, w.size):
            model[s].register_forward_hook(held)
    return model


def main(
    w: World,
    *,
    steps: int = 2,
    batch: int = 24,
    microbatches: int = 12,
    stages_per_rank: int = 2,
    rate: float = 0.5,
) -> None:
    m, v, held = microbatches, stages_per_rank, Held()
    fits = m >= w.size and m % (m // w.size) == 0 and batch % m == 0
    w.require(fits, f"{batch} samples, {m} micro-batches: no equal rounds")
    task = replace(digits, model=partial(layers, w, v * w.size))
    watched = replace(task, model=partial(layers, w, v * w.size, held))
    sizes: dict[str, Any] = {"steps": steps, "batch": batch, "rate": rate}
    training = train(w, watched, microbatches=m, stages_per_rank=v, **sizes)
    with meter() as moved:
        seen = [next(training)]  # one flush is counted, the others only train
    seen.extend(training)
    weights = parameters_to_vector(seen[-1].weights).detach()
    truth = partial(reference, w, task, plan(w.size, m, v), **sizes)
    # A sum over micro-batches against one over the batch: rounding only.
    w.check("parameters", weights, lambda: truth()[1], 16)
    if w.rank == w.size - 1:
        losses = weights.new_tensor([step.loss for step in seen])
        w.check("loss", losses, lambda: truth()[0], 4)
    given = {"activation_bytes": batch // m * 64 * 8}
    given |= {"forward": 1, "backward": 2}
    report(w, given=given, bytes_sent=moved.bytes_sent, in_flight=held.most)


if __name__ == "__main__":
    with world() as w:
        main(w)
