"""ZeRO-3: each rank owns 1/p of everything; weights are whole only in use.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.sharded.zero_3

A unit (a layer) is a flat vector, padded until p divides it. A rank keeps one
shard of its weights, of its gradient and of the optimizer state.

    forward    all-gather the unit's weights, use them, drop them
    backward   all-gather them again, use them, drop them;
               reduce-scatter the gradient: each rank gets its shard's mean
    step       update the shard; the optimizer is element-wise

That is three passes over the weights where an all-reduce of gradients takes
two: 50 % more traffic buys 1/p of the memory. There is room for one whole
unit, and the units take turns in it. What autograd saves for backward are
views of the room, so they must show the right unit again when its backward
begins.

Source: Rajbhandari et al. 2020, sections 5 and 7.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters
from torch.optim import AdamW
from torch.utils._pytree import tree_leaves

from exemplars.parameter_distribution.sharded import zero_1, zero_2
from exemplars.runtime import Group, World, meter, report, span, world
from exemplars.workload import Optimizers, Step, Task, random_rows, weights_of


class Unit(zero_2.Unit):
    """Parameters that are kept in shards, and whole only while in use."""

    def __init__(self, own: list[nn.Parameter], group: Group = None) -> None:
        super().__init__(own, group)
        #: A copy, so that the whole weights can leave.
        mine = self.shard.detach().clone()
        self.shard = nn.Parameter(mine, own[0].requires_grad)

    def move(self, room: Tensor) -> None:
        """Make the parameters views of a room that others use too."""
        self.weights = room[: len(self.weights)]
        vector_to_parameters(self.weights, self.parameters)


class Zero3(nn.Module):
    """Any module, of whose weights this rank keeps a shard.

    The children are the units; their weights are whole inside their forward
    and nowhere else. Weights that several children share, or that belong to
    none, are gathered for the whole of forward and of backward.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.names = {p: name for name, p in module.named_parameters()}
        children = [*zero_2.units_of(module)]
        users = Counter(p for child in children for p in child.parameters())
        self.units: list[Unit] = []
        for child in children:
            #: Shared weights are left to the module that contains all users.
            own = [p for p in child.parameters() if users[p] == 1]
            self.units += gathered(child, self.cut(own))
        rooms = dict[Any, Tensor]()
        #: The largest unit's memory is the room in which all take turns. But
        #: a layer needs its frozen weights beside those that learn, and what
        #: lies on fewer ranks beside the rest.
        for unit in sorted(self.units, key=lambda unit: -len(unit.weights)):
            kind = unit.shard.dtype, unit.shard.requires_grad, unit.group
            unit.move(rooms.setdefault(kind, unit.weights))
        rest = [p for p in module.parameters() if users[p] != 1]
        self.units += gathered(module, self.cut(rest))
        self.shards = nn.ParameterList(unit.shard for unit in self.units)
        #: An optimizer shall see the shards only, so the whole weights become
        #: plain attributes of their modules.
        for m in module.modules():
            for name in [*m._parameters]:
                vars(m)[name] = m._parameters.pop(name)

    def cut(self, own: list[nn.Parameter]) -> list[Unit]:
        """A unit for each dtype, in shards over all ranks."""
        return [Unit(group) for group in zero_1.alike(own)]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """What the module computes."""
        return self.module(*inputs, **named)

    def whole(self) -> dict[str, Tensor]:
        """A copy of all weights, by name."""
        # In the order of the model; the units may have another.
        weights: dict[str, Tensor] = {n: p for p, n in self.names.items()}
        for unit in self.units:
            unit.gather()
            for p in unit.parameters:
                weights[self.names[p]] = p.detach().clone()
        return weights


def gathered(module: nn.Module, units: list[Unit]) -> list[Unit]:
    """Have the module's weights gathered before every use of them."""

    def gather(*_: Any) -> None:
        for unit in units:
            with span("gather"):
                unit.gather()

    #: Twice: what forward gathered is overwritten when backward begins.
    module.register_forward_pre_hook(gather)
    module.register_forward_hook(lambda m, x, y: on_gradient(y, gather))
    return units


def on_gradient(outputs: Any, hook: Callable[[Tensor], None]) -> None:
    """Call the hook when an output's gradient is known.

    That is just before backward comes to the module that computed it.
    """
    for y in tree_leaves(outputs):
        if isinstance(y, Tensor) and y.requires_grad:
            y.register_hook(hook)


def train(w: World, task: Task, *, batch: int, steps: int) -> Iterator[Step]:
    """Train on this rank's share of every batch, with AdamW."""
    module = task.model().to(w.device)
    model = module if isinstance(module, Zero3) else Zero3(module)
    adam = AdamW(model.parameters())
    for step in range(steps):
        whole = (t.to(w.device) for t in task.batch(step, batch))
        x, y = (t.tensor_split(w.size)[w.rank] for t in whole)
        adam.zero_grad()
        with span("forward", cost=1):
            loss = task.loss(model, x, y) * w.size / batch
        with span("backward", cost=2):
            loss.backward()
        #: Element-wise, so a shard is updated as the whole would be.
        adam.step()
        yield Step(loss.item(), [*model.parameters()])


def reference(w: World, task: Task, batch: int, steps: int) -> list[Tensor]:
    """The weights of one process; of each layer, this rank's shard."""
    whole = zero_1.reference(w, task, batch, steps)
    layers = [zero_1.packed(pair) for pair in zip(whole[::2], whole[1::2])]
    return [layer.chunk(w.size)[w.rank] for layer in layers]


def check_stranger(w: World, task: Task, **sizes: int) -> None:
    """Tied, frozen and unused weights, all of them, on every rank."""
    model = Zero3(zero_1.stranger(task).model().to(w.device))
    *_, _ = train(w, replace(task, model=lambda: model), **sizes)
    truth = partial(zero_1.reference, w, zero_1.stranger(task), **sizes)
    w.check("parameters", [*model.whole().values()], truth, slack=256)


def main(
    w: World,
    *,
    units: int = 3,
    width: int = 17,
    batch: int = 24,
    steps: int = 2,
) -> None:
    task, optimizers = random_rows(w, units, width), Optimizers()
    weights, ours = weights_of(w, task)
    memory = w.memory(
        parameters=optimizers.weights,
        gradients=lambda: [p.grad for p in (*weights, *optimizers.weights())],
        optimizer=optimizers.moments,
        gathered=lambda: weights if optimizers.seen else [],
    )
    for p in weights:
        p.register_post_accumulate_grad_hook(lambda _: memory.mark("whole"))
    with optimizers, memory, meter() as moved:
        for _ in train(w, ours, batch=batch, steps=steps):
            memory.mark("step")
    # Another order of additions in the gradient, through Adam's division.
    truth = partial(reference, w, task, batch, steps)
    w.check("parameters", optimizers.weights(), truth, slack=256)
    check_stranger(w, task, batch=batch, steps=steps)
    live, peak = memory.live("step"), memory.peak
    state = live["parameters"] + live["gradients"] + live["optimizer"]
    most = {kind: peak[kind] for kind in ("gathered", "gradients")}
    counts = {"state": state, "calls": moved.count, "volume": moved.wire}
    given = {"unit_elements": width * width + width, "itemsize": 8}
    report(w, given=given, **most, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
