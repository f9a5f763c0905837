"""1F1B with a flush: GPipe's bubble, but at most p - s activations in flight.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.pipeline_flush.one_f_one_b

Cut the network into p stages and the batch into m micro-batches. A stage
starts with as many forwards as there are stages after it, then alternates one
forward and one backward, and ends with the backwards that remain. For p = 3,
m = 4, and a backward twice as long as a forward, second by second:

    stage 0  F0 F1 F2 .  .  .  .  B0 B0 F3 B1 B1 .  B2 B2 .  B3 B3
    stage 1  .  F0 F1 .  .  B0 B0 F2 B1 B1 F3 B2 B2 .  B3 B3 .  .
    stage 2  .  .  F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 .  .  .  .

The first micro-batch needs p-1 forwards to reach the last stage, and the last
one needs p-1 backwards to return: every stage idles for (p-1)(f + b) seconds,
for every m. The update waits for the last backward (the flush), so the
gradient is that of the whole batch at one version of the weights. Stage s
holds at most min(m, p - s) micro-batches between forward and backward; GPipe,
which runs all forwards first, holds m.

f and b are the seconds of a forward and a backward of one micro-batch.

Source: Narayanan et al. 2021, section 2.2 (PipeDream-Flush).
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


def one_f_one_b(
    stage: int, stages: int, microbatches: int
) -> Iterator[Action]:
    """What one stage does, in order."""
    #: So long does the first gradient take to come back: every later stage
    #: is at work on a micro-batch by then.
    warm_up = min(microbatches, stages - 1 - stage)
    yield from (Action("F", i) for i in range(warm_up))
    for i in range(microbatches - warm_up):
        yield Action("F", warm_up + i)
        yield Action("B", i)
    for i in range(microbatches - warm_up, microbatches):
        yield Action("B", i)


def run_batch(
    w: World, stage: Part, micros: Sequence[Pair], cost: dict[str, float]
) -> float:
    """One batch by the schedule; the last stage returns its loss."""
    kept: dict[int, Pair] = {}
    count, loss = sum(labels.numel() for _, labels in micros), 0.0
    outgoing, target = None, w.rank
    for kind, i in one_f_one_b(w.rank, w.size, len(micros)):
        #: Between two actions: what one made leaves, what the next needs
        #: comes in.
        if kind == "F":
            x = stage.entering(micros[i][0])
            exchange(outgoing, target, x, w.rank - 1)
            with span("F", label=i, cost=cost["F"]):
                y = stage.forward(x, micros[i][1], count)
            kept[i] = x, y
            outgoing, target = y.detach(), w.rank + 1
        else:
            x, y = kept.pop(i)
            dy = torch.empty_like(y)
            exchange(outgoing, target, dy, w.rank + 1)
            with span("B", label=i, cost=cost["B"]):
                #: Adds to the gradients of the weights, in any order.
                y.backward(None if stage.last else dy)
            outgoing, target = x.grad, w.rank - 1
            loss += y.item() if stage.last else float("nan")
            #: Or else they would outlive the next forward, as one more.
            del x, y
    exchange(outgoing, target, None, w.rank)
    return loss


def exchange(
    outgoing: Tensor | None, target: int, incoming: Tensor | None, source: int
) -> None:
    """Send and receive at once; beyond the pipeline's ends there is nobody."""
    stages = range(dist.get_world_size())
    messages = []
    if outgoing is not None and target in stages:
        send = dist.P2POp(dist.isend, outgoing.contiguous(), target)
        messages.append(send)
    if incoming is not None and source in stages:
        messages.append(dist.P2POp(dist.irecv, incoming, source))
    #: In one batch: one stage sends right while its neighbor sends left. As
    #: separate calls, NCCL would run them in order and both would wait.
    for work in dist.batch_isend_irecv(messages) if messages else []:
        work.wait()


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
        #: The flush: all micro-batches are back, so none of them meets other
        #: weights on its way back than on its way out.
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
