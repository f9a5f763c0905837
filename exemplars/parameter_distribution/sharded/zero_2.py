"""ZeRO-2: gradients, too, are kept in shards; a layer's is whole for a moment.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.sharded.zero_2

The rank that updates a shard needs the gradient of that shard only. So the
gradient of a unit (a layer) is reduce-scattered as soon as backward has
finished it. Only the shard is kept; the whole gradient is dropped before the
next unit's is computed.

    backward   reduce-scatter the unit's gradient, add it to the shard's
    step       update the shard; all-gather the new weights

With one micro-batch that is the traffic of an all-reduce: gradients once,
weights once. But a rank that has dropped the whole gradient cannot accumulate
locally: each of m micro-batches scatters, m + 1 passes over the model where
ZeRO-1 needs 2. The memory saved is paid for in bytes by those who accumulate.

Source: Rajbhandari et al. 2020, section 5.2.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.autograd import Variable
from torch.optim import AdamW

from exemplars.parameter_distribution.sharded.zero_1 import (
    Flat,
    Make,
    alike,
    reference,
    stranger,
)
from exemplars.runtime import Group, World, meter, report, span, world
from exemplars.workload import Optimizers, Step, Task, random_rows, weights_of


class Unit(Flat):
    """Parameters whose gradients are kept in shards."""

    def __init__(self, own: list[nn.Parameter], group: Group = None) -> None:
        super().__init__(own, group)
        self.missing = set(own)
        for p in own:
            #: Called when backward has added up all uses of p, so a tied
            #: weight reports once, after the last of its layers.
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self.arrived)

    def arrived(self, p: Tensor) -> None:
        """The gradient of p is complete: is it the last of the unit's?"""
        if len(self.missing) == len(self.parameters):
            Variable._execution_engine.queue_callback(self.finish)
        self.missing.discard(p)
        if not self.missing:
            self.keep_shard()

    def keep_shard(self) -> None:
        """Add the mean of this rank's shard, and drop the whole gradient."""
        with span("scatter", cost=2):
            mine = self.scatter()
        #: Added, not assigned: other micro-batches have been here before.
        if self.shard.grad is None:
            self.shard.grad = mine
        else:
            self.shard.grad += mine
        #: Before the next layer's gradient, so that one is whole at a time.
        self.drop()

    def drop(self) -> None:
        """Forget the whole gradient, or the part of it that there is."""
        self.missing = set(self.parameters)
        for p in self.parameters:
            p.grad = None

    def finish(self) -> None:
        """When backward ends: has it used the unit only in part?"""
        if any(p.grad is not None for p in self.parameters):
            self.keep_shard()


def units_of(module: nn.Module) -> Iterator[nn.Module]:
    """The children; of a list or dict of modules, what is in it."""
    for child in module.children():
        has_forward = type(child).forward is not nn.Module.forward
        yield from (child,) if has_forward else units_of(child)


class Zero2:
    """An optimizer that keeps shards of its state and of the gradients.

    `make` is any element-wise optimizer, such as torch.optim.AdamW. All ranks
    start from the same weights and use the same layers. A weight that several
    children of the module share belongs to the first of them.
    """

    def __init__(self, module: nn.Module, make: Make, **options: Any) -> None:
        self.units: list[Unit] = []
        #: What is frozen has no gradient, and no place in a unit.
        placed = {p for p in module.parameters() if not p.requires_grad}
        for part in (*units_of(module), module):
            free = [p for p in part.parameters() if p not in placed]
            placed.update(free)
            #: The last part is the module itself: weights of no child's.
            self.units += self.cut(free)
        self.local = make([unit.shard for unit in self.units], **options)

    def cut(self, own: list[nn.Parameter]) -> list[Unit]:
        """A unit for each dtype, in shards over all ranks."""
        return [Unit(group) for group in alike(own)]

    def zero_grad(self) -> None:
        """Forget the shards' gradients; backward leaves no others."""
        self.local.zero_grad()

    def step(self) -> None:
        """Update the shards, and gather everybody's."""
        #: Element-wise: what a rank computes for its shard is what all would.
        with span("update", cost=1):
            self.local.step()
        for unit in self.units:
            unit.gather()


def train(
    w: World, task: Task, *, batch: int, steps: int, microbatches: int
) -> Iterator[Step]:
    """Train on this rank's micro-batches of every batch, with AdamW."""
    model = task.model().to(w.device)
    optimizer = Zero2(model, AdamW)
    for step in range(steps):
        whole = (t.to(w.device) for t in task.batch(step, batch))
        x, y = (t.tensor_split(w.size * microbatches) for t in whole)
        optimizer.zero_grad()
        for k in range(microbatches):
            part = w.rank * microbatches + k
            with span("forward", label=k, cost=1):
                loss = task.loss(model, x[part], y[part]) * w.size / batch
            #: Every micro-batch scatters: nothing whole is left to add to.
            loss.backward()
        optimizer.step()
        yield Step(loss.item(), [*model.parameters()])


def compare(w: World, task: Task, weights: Any, **sizes: int) -> None:
    """Hold the weights, and a stranger's, against those of one process."""
    *_, odd = train(w, stranger(task), **sizes)
    # Another order of additions in the gradient, through Adam's division.
    truth = partial(reference, w, batch=sizes["batch"], steps=sizes["steps"])
    w.check("parameters", weights, lambda: truth(task), slack=256)
    w.check("parameters", odd.weights, lambda: truth(stranger(task)), 256)


def main(
    w: World,
    *,
    units: int = 3,
    width: int = 17,
    batch: int = 50,
    steps: int = 2,
    microbatches: int = 3,
) -> None:
    task, optimizers = random_rows(w, units, width), Optimizers()
    weights, ours = weights_of(w, task)
    memory = w.memory(
        parameters=lambda: weights,
        gradients=lambda: [p.grad for p in (*weights, *optimizers.weights())],
        optimizer=optimizers.moments,
    )
    for p in weights:
        p.register_post_accumulate_grad_hook(lambda _: memory.mark("whole"))
    sizes = {"batch": batch, "steps": steps, "microbatches": microbatches}
    with optimizers, memory, meter() as moved:
        for _ in train(w, ours, **sizes):
            memory.mark("step")
    compare(w, task, weights, **sizes)
    w.check_same("same", weights)
    live, peak = memory.live("step"), memory.peak["gradients"]
    state = live["parameters"] + live["gradients"] + live["optimizer"]
    given = {"unit_elements": width * width + width, "itemsize": 8}
    count = {"volume": moved.wire, "calls": moved.count}
    report(w, given=given, state=state, gradients=peak, **count)


if __name__ == "__main__":
    with world() as w:
        main(w)
