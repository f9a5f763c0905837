"""GPipe: all forwards, all backwards, one update; the bubble is (p-1)/(m+p-1).

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.pipeline_flush.gpipe

Cut the network into p stages and the batch into m micro-batches. A stage
sends its output on and takes the next micro-batch at once. After the last
forward the backwards return in reverse order. For p = 3, m = 4, and a
backward twice as long as a forward, second by second:

    stage 0  F0 F1 F2 F3 .  .  .  .  .  .  B3 B3 B2 B2 B1 B1 B0 B0
    stage 1  .  F0 F1 F2 F3 .  .  .  B3 B3 B2 B2 B1 B1 B0 B0 .  .
    stage 2  .  .  F0 F1 F2 F3 B3 B3 B2 B2 B1 B1 B0 B0 .  .  .  .

Two ramps of p-1 slots stay empty for every m: a stage idles for (p-1)(f + b)
of (m+p-1)(f + b) seconds. More micro-batches shrink the bubble and cost
memory, because every stage holds all m of them when the backwards begin.

f and b are the seconds of a forward and a backward of one micro-batch.

Source: Huang et al. 2019, section 2.3.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from exemplars.parameter_distribution.inter_layer.layer_partition import (
    Part,
    reference,
)
from exemplars.runtime import Action, Held, World, meter, report, span, world
from exemplars.workload import Step, Task, digits, equal_layers

Pair = tuple[Tensor, Tensor]  # samples and labels; a stage's input and output


def gpipe(microbatches: int) -> Iterator[Action]:
    """What a stage does, in order; all stages do the same."""
    yield from (Action("F", i) for i in range(microbatches))
    #: Last in, first out: the last micro-batch is already at the last stage.
    yield from (Action("B", i) for i in reversed(range(microbatches)))


def run_batch(
    w: World, stage: Part, micros: Sequence[Pair], cost: dict[str, float]
) -> float:
    """All micro-batches forward, then all backward; the last stage's loss."""
    kept: dict[int, Pair] = {}
    #: Of the whole batch: the losses of micro-batches are shares of it.
    count, loss = sum(labels.numel() for _, labels in micros), 0.0
    #: First all messages go right, then all go left. They never cross, so
    #: blocking sends and receives cannot wait for one another.
    for kind, i in gpipe(len(micros)):
        if kind == "F":
            x = stage.entering(micros[i][0])
            if not stage.first:
                dist.recv(x, w.rank - 1)
            with span("F", label=i, cost=cost["F"]):
                y = stage.forward(x, micros[i][1], count)
            kept[i] = x, y
            if not stage.last:
                dist.send(y.detach(), w.rank + 1)
        else:
            x, y = kept.pop(i)
            dy = None if stage.last else torch.empty_like(y)
            if dy is not None:
                dist.recv(dy, w.rank + 1)
            with span("B", label=i, cost=cost["B"]):
                #: Adds to the gradients of the weights: after the last
                #: micro-batch they are those of the whole batch.
                y.backward(dy)
            if x.grad is not None:
                dist.send(x.grad.contiguous(), w.rank - 1)
            loss += y.item() if stage.last else float("nan")
    return loss


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    batch: int,
    microbatches: int,
    rate: float,
    forward: float = 1,
    backward: float = 2,
) -> Iterator[Step]:
    """Plain SGD; forward and backward are virtual seconds of a micro-batch."""
    stage = Part(w, task)
    weights = [*stage.layers.parameters()]
    optimizer = torch.optim.SGD(weights, lr=rate)
    for step in range(steps):
        x, y = (t.to(w.device) for t in task.batch(step, batch))
        parts = zip(x.tensor_split(microbatches), y.tensor_split(microbatches))
        cost = {"F": forward, "B": backward}
        loss = run_batch(w, stage, [*parts], cost)
        #: The flush: the pipeline is empty, so every micro-batch has gone
        #: forward and backward through the same weights.
        optimizer.step()
        optimizer.zero_grad()
        yield Step(loss, weights)


def layers(w: World, held: Held | None = None) -> nn.Sequential:
    """One layer of 64 units per stage, this rank's watched from outside."""
    #: Ten of the last layer's 64 outputs stand for digits.
    model = equal_layers(w.size, 64)
    if held is not None:
        model[w.rank].register_forward_hook(held)
    return model


def main(
    w: World,
    *,
    steps: int = 2,
    batch: int = 30,
    microbatches: int = 6,
    rate: float = 0.5,
    forward: float = 1,
    backward: float = 2,
) -> None:
    uneven = f"{batch} samples cannot make {microbatches} equal micro-batches"
    w.require(batch % microbatches == 0, uneven)
    task, held = replace(digits, model=partial(layers, w)), Held()
    watched = replace(task, model=partial(layers, w, held))
    sizes: dict[str, Any] = {"steps": steps, "batch": batch, "rate": rate}
    cost: dict[str, Any] = {"forward": forward, "backward": backward}
    training = train(w, watched, microbatches=microbatches, **sizes, **cost)
    with meter() as moved:
        seen = [next(training)]  # one flush is counted, the others only train
    seen.extend(training)
    weights = parameters_to_vector(seen[-1].weights).detach()
    # A sum over micro-batches against one over the batch: rounding only.
    w.check("parameters", weights, lambda: reference(w, task, **sizes)[1], 16)
    if w.rank == w.size - 1:
        losses = weights.new_tensor([step.loss for step in seen])
        w.check("loss", losses, lambda: reference(w, task, **sizes)[0], 4)
    given = {"activation_bytes": batch // microbatches * 64 * 8}
    report(w, given=given, bytes_sent=moved.bytes_sent, in_flight=held.most)


if __name__ == "__main__":
    with world() as w:
        main(w)
