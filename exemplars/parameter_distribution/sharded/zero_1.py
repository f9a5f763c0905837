"""ZeRO-1: each rank keeps 1/p of the optimizer state, for 1/p of the weights.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.sharded.zero_1

In data parallelism every rank computes the same update from the same gradient
and keeps the same optimizer state: p times the same work and the same bytes.
But an all-reduce is a reduce-scatter followed by an all-gather, and the update
fits between the two:

    reduce-scatter   the gradient: each rank gets the mean of its shard
    update           the shard, with optimizer state for the shard alone
    all-gather       the new weights

Not one byte more travels, and the optimizer state shrinks p-fold. With several
micro-batches the gradients accumulate locally and travel once per step.

Source: Rajbhandari et al. 2020, section 5.1; Xu et al. 2020.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters
from torch.optim import AdamW

from exemplars.runtime import Group, World, meter, report, span, world
from exemplars.workload import Optimizers, Step, Task, random_rows

Make = Callable[..., Any]  # of an optimizer


class Flat:
    """Parameters of one dtype as one vector; each rank owns a shard of it."""

    def __init__(self, own: list[nn.Parameter], group: Group = None) -> None:
        self.parameters, self.group = own, group
        self.weights = packed([p.detach() for p in own], group)
        #: Views: what the optimizer does to the shard, it does to the model.
        vector_to_parameters(self.weights, own)
        shards = self.weights.view(dist.get_world_size(group), -1)
        self.shard = nn.Parameter(shards[dist.get_rank(group)])

    def scatter(self) -> Tensor:
        """The gradient's mean over the ranks, of this rank's shard."""
        mine = torch.empty_like(self.shard, requires_grad=False)
        #: A copy of the whole gradient, for as long as it travels.
        whole = packed([gradient(p) for p in self.parameters], self.group)
        dist.reduce_scatter_single(mine, whole, group=self.group)
        #: By all ranks, whatever the group: so the loss was scaled.
        return mine / dist.get_world_size()

    def gather(self) -> None:
        """Replace every shard of the weights by its owner's."""
        #: In place: this rank's shard is where the result will have it.
        dist.all_gather_single(self.weights, self.shard.detach(), self.group)


def packed(tensors: Iterable[Tensor], group: Group = None) -> Tensor:
    """All of them as one vector."""
    p = dist.get_world_size(group)
    vector = torch.cat([t.reshape(-1) for t in tensors])
    #: Padded at the end, so that all shards have the same length.
    return nn.functional.pad(vector, (0, -len(vector) % p))


def gradient(p: Tensor) -> Tensor:
    """Zeros where backward did not come along."""
    return torch.zeros_like(p) if p.grad is None else p.grad


def alike(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Parameters by dtype, the frozen ones apart."""
    groups: dict[tuple[torch.dtype, bool], list[nn.Parameter]] = {}
    #: Without duplicates: a tied weight is one weight with one gradient.
    for p in dict.fromkeys(parameters):
        groups.setdefault((p.dtype, p.requires_grad), []).append(p)
    return [*groups.values()]


class Zero1:
    """An optimizer of replicated weights that keeps a shard of its state.

    `make` is any element-wise optimizer, such as torch.optim.AdamW. All ranks
    start from the same weights, and backward leaves their gradients alone.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], make: Make, **options: Any
    ) -> None:
        self.learned = [p for p in parameters if p.requires_grad]
        self.flats = [Flat(group) for group in alike(self.learned)]
        #: It knows this rank's shards only, so its state is 1/p as well.
        self.local = make([f.shard for f in self.flats], **options)

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters."""
        for p in self.learned:
            p.grad = None

    def step(self) -> None:
        """Reduce-scatter the gradients, update the shards, all-gather."""
        for flat in self.flats:
            flat.shard.grad = flat.scatter()
        with span("update", cost=1):
            self.local.step()
        self.local.zero_grad()
        for flat in self.flats:
            flat.gather()


def train(
    w: World, task: Task, *, batch: int, steps: int, microbatches: int
) -> Iterator[Step]:
    """Train on this rank's micro-batches of every batch, with AdamW."""
    model = task.model().to(w.device)
    optimizer = Zero1(model.parameters(), AdamW)
    for step in range(steps):
        whole = (t.to(w.device) for t in task.batch(step, batch))
        x, y = (t.tensor_split(w.size * microbatches) for t in whole)
        optimizer.zero_grad()
        for k in range(microbatches):
            part = w.rank * microbatches + k
            with span("compute", label=k, cost=3):
                #: The mean over p ranks of p times the loss is the sum over
                #: the ranks, which is right for uneven shares too.
                loss = task.loss(model, x[part], y[part]) * w.size / batch
                loss.backward()
        optimizer.step()
        yield Step(loss.item(), [*model.parameters()])


def reference(w: World, task: Task, batch: int, steps: int) -> list[Tensor]:
    """The weights after AdamW on one process, on whole batches."""
    model = task.model().to(w.device)
    adam = AdamW(model.parameters())
    for step in range(steps):
        x, y = (t.to(w.device) for t in task.batch(step, batch))
        adam.zero_grad()
        (task.loss(model, x, y) / batch).backward()
        adam.step()
    return [*model.parameters()]


def stranger(task: Task) -> Task:
    """The same, for a model with tied, frozen and unused weights."""
    stack, frozen = task.model(), task.model().requires_grad_(False)
    layers = [m for m in stack.modules() if isinstance(m, nn.Linear)]
    layers[-1].weight = layers[0].weight
    # Zeros: AdamW would let it decay here, where torch passes it over.
    layers[-1].unused = nn.Parameter(torch.zeros(5, dtype=torch.double))
    model = nn.Sequential(*frozen.children(), *stack.children())
    return replace(task, model=lambda: model)


def main(
    w: World,
    *,
    layers: int = 3,
    width: int = 17,
    batch: int = 50,
    steps: int = 2,
    microbatches: int = 3,
) -> None:
    task = random_rows(w, layers, width)
    weights, optimizers = list[Tensor](), Optimizers()
    memory = w.memory(
        parameters=lambda: weights,
        gradients=lambda: [p.grad for p in (*weights, *optimizers.weights())],
        optimizer=optimizers.moments,
    )
    sizes = {"batch": batch, "steps": steps, "microbatches": microbatches}
    with optimizers, memory, meter() as moved:
        for step in train(w, task, **sizes):
            weights[:] = step.weights
            memory.mark("step")
    *_, odd = train(w, stranger(task), **sizes)
    # Another order of additions in the gradient, through Adam's division.
    truth = partial(reference, w, batch=batch, steps=steps)
    w.check("parameters", weights, lambda: truth(task), slack=256)
    w.check("parameters", odd.weights, lambda: truth(stranger(task)), 256)
    w.check_same("same", weights)
    live = memory.live("step")
    state = live["parameters"] + live["gradients"] + live["optimizer"]
    given = {"elements": sum(p.numel() for p in weights), "itemsize": 8}
    report(w, given=given, state=state, volume=moved.wire, calls=moved.count)


if __name__ == "__main__":
    with world() as w:
        main(w)
