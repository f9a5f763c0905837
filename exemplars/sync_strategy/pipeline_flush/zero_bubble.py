"""Zero bubble: half of each backward can wait, so it fills the gaps.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.pipeline_flush.zero_bubble

A backward computes two gradients: B, that of the stage's input, for which the
stage before waits; and W, that of its weights, which nobody needs before the
update. Split them, do B in the order of 1F1B, and let W lag behind: as many
micro-batches as there are stages before this one. ZB-H1 for p = 3, m = 4, if
all three take one second:

    stage 0  F0 F1 F2 .  .  B0 W0 F3 B1 W1 B2 W2 B3 W3
    stage 1  .  F0 F1 .  B0 F2 B1 W0 F3 B2 W1 B3 W2 W3
    stage 2  .  .  F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3

A stage idles for (p-1)(f + b - w) seconds, where 1F1B idles for
(p-1)(f + b + w), and no stage holds more than the p micro-batches that the
first one holds in 1F1B. With twice as many forwards in the warm-up, and W
twice as far behind, it is ZB-H2: 2p-1 micro-batches are held, and a stage
does not pause between its first work and its last, if all three take equal
time. It still begins s seconds after stage 0 and ends s seconds after it.

f, b and w are the seconds of F, B and W of one micro-batch.

Source: Qi et al. 2024, sections 2.1 and 2.2.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from exemplars.runtime import Held, Schedule, World, meter, report, world
from exemplars.sync_strategy.pipeline_flush.schedule_as_data import (
    Stage,
    Work,
    reference,
    run_batch,
)
from exemplars.workload import Step, Task, digits, equal_layers

#: A layer, what it made of one micro-batch, and the gradient of that.
Due = tuple[nn.Module, Tensor, Tensor]


def zero_bubble(s: int, p: int, m: int, depth: int) -> Iterator[Work]:
    """What stage s of p does, in order: ZB-H1 at depth 1, ZB-H2 at 2."""
    ahead, lag = min(m, depth * (p - 1 - s)), depth * s
    yield from (("F", i, s) for i in range(ahead))
    for i in range(m):
        if ahead + i < m:
            yield "F", ahead + i, s
        yield "B", i, s
        #: The later the stage, the sooner its first B, and the more W it
        #: saves up for the end, where the others still wait for B.
        if i >= lag:
            yield "W", i - lag, s
    yield from (("W", i, s) for i in range(max(0, m - lag), m))


def plan(p: int, m: int, depth: int) -> Schedule:
    """The schedule of all stages."""
    return Schedule.of(zero_bubble(s, p, m, depth) for s in range(p))


class Halves(Stage):
    """A stage whose backward comes in two."""

    times: ClassVar = {"F": 1, "B": 1, "W": 1}

    def __init__(self, w: World, task: Task, s: int, of: Schedule) -> None:
        super().__init__(w, task, s, of)
        self.micro, self.due = 0, dict[int, list[Due]]()
        self.made = defaultdict[int, list[tuple[nn.Module, Tensor]]](list)
        self.own = dict[nn.Module, list[nn.Parameter]]()
        for layer in self.layers.modules():
            every = layer.parameters(recurse=False)
            if own := [p for p in every if p.requires_grad]:
                self.own[layer] = own
                layer.register_forward_hook(self.note)

    def note(self, layer: nn.Module, _: Any, y: Tensor) -> None:
        """Remember what each layer with weights makes."""
        self.made[self.micro].append((layer, y))

    def do(self, work: Work, came: Tensor, labels: Tensor, count: int) -> Any:
        """One pass; B and W are the two parts of a backward."""
        kind, i, _ = work
        if kind == "F":
            self.micro = i
            return super().do(work, came, labels, count)
        return self.backward(i, came) if kind == "B" else self.weights(i)

    def backward(self, i: int, came: Tensor) -> Tensor | None:
        """B: the gradients of the input, and of what each layer made."""
        x, y = self.kept.pop(i)
        layers, made = zip(*self.made.pop(i))
        inputs = made if self.first else (*made, x)
        dy = None if self.last else came
        #: Autograd does only what these need: no product with weights'
        #: gradients. The graph stays, for W.
        found = torch.autograd.grad(y, inputs, dy, retain_graph=True)
        self.due[i] = [*zip(layers, made, found)]
        return None if self.first else found[-1]

    def weights(self, i: int) -> None:
        """W: from what each layer made to its own weights, and no further."""
        for layer, y, dy in self.due.pop(i):
            own = self.own[layer]
            #: Adds to the gradients of these weights, and of no others. The
            #: graph stays: the way to a weight of another layer may share it.
            torch.autograd.backward(y, dy, retain_graph=True, inputs=own)


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    batch: int,
    microbatches: int,
    depth: int,
    rate: float,
) -> Iterator[Step]:
    """Plain SGD."""
    by = plan(w.size, microbatches, depth)
    own = Halves(w, task, w.rank, by)
    weights = [*own.layers.parameters()]
    optimizer = torch.optim.SGD(weights, lr=rate)
    for step in range(steps):
        x, y = (t.to(w.device) for t in task.batch(step, batch))
        parts = (t.tensor_split(microbatches) for t in (x, y))
        loss = run_batch(w, {w.rank: own}, by, [*zip(*parts)])
        #: The last W has been done everywhere on this rank.
        optimizer.step()
        optimizer.zero_grad()
        yield Step(loss, weights)


def layers(w: World, held: Held | None = None) -> nn.Sequential:
    """One layer of 64 units per stage, this rank's watched from outside."""
    model = equal_layers(w.size, 64)
    if held is not None:
        #: The matrix: what it made lives until W; the tanh's until B.
        next(iter(model[w.rank].children())).register_forward_hook(held)
    return model


def main(
    w: World,
    *,
    steps: int = 2,
    batch: int = 30,
    microbatches: int = 10,
    depth: int = 1,
    rate: float = 0.5,
) -> None:
    enough = depth == 1 or microbatches > depth * (w.size - 1)
    why = f"{batch} samples, {microbatches} micro-batches: uneven or too few"
    w.require(enough and batch % microbatches == 0, why)
    held, by = Held(), plan(w.size, microbatches, depth)
    task = replace(digits, model=partial(layers, w))
    watched = replace(task, model=partial(layers, w, held))
    sizes: dict[str, Any] = {"steps": steps, "batch": batch, "rate": rate}
    shape = {"microbatches": microbatches, "depth": depth}
    training = train(w, watched, **shape, **sizes)
    with meter() as moved:
        seen = [next(training)]  # one flush is counted, the others only train
    seen.extend(training)
    weights = parameters_to_vector(seen[-1].weights).detach()
    truth = partial(reference, w, task, by, **sizes)
    # A sum over micro-batches against one over the batch: rounding only.
    w.check("parameters", weights, lambda: truth()[1], 16)
    if w.rank == w.size - 1:
        losses = weights.new_tensor([step.loss for step in seen])
        w.check("loss", losses, lambda: truth()[0], 4)
    given = {"activation_bytes": batch // microbatches * 64 * 8}
    given |= {"forward": 1, "input_gradient": 1, "weight_gradient": 1}
    report(w, given=given, bytes_sent=moved.bytes_sent, in_flight=held.most)


if __name__ == "__main__":
    with world() as w:
        main(w)
