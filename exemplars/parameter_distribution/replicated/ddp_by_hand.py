"""Data parallelism by hand: gradients leave while backward still computes.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.replicated.ddp_by_hand

Every rank holds the whole model and computes gradients for its own samples;
the ranks then average them. All gradients are views of one vector, in the
order in which backward completes them: the last layer's first. A hook on every
parameter says when its gradient is complete, and every bucket of the vector
that is then full leaves at once:

    backward      head   block 1   block 0   embedding
    vector       [ bucket 0 | bucket 1 | bucket 2 | .. ]
    network                  bucket 0   bucket 1   bucket 2 ..

Only the buckets that fill up last are sent when there is nothing left to hide
them behind. When gradients accumulate over several micro-batches, only the
last of these sends.

A weight that is used twice (here the embedding, which is also the head) is one
parameter with one gradient, complete after its last use. A frozen weight has
no gradient, and no place in the vector.

Source: Li et al. 2020.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.optim import SGD

from exemplars.runtime import Group, World, meter, report, span, world
from exemplars.sync_strategy.synchronous.bsp_synchronous_sgd import reference
from exemplars.workload import Step, Task, tied_characters, weights_of


class DataParallel(nn.Module):
    """Any module whose gradients, after backward, are means over the ranks.

    Buckets have this many elements. With several micro-batches per step, only
    the last backward of the step sends; the others accumulate. A subclass may
    name a group of fewer ranks.
    """

    group: Group = None

    def __init__(
        self, module: nn.Module, *, bucket: int, microbatches: int = 1
    ) -> None:
        super().__init__()
        self.module, self.bucket = module, bucket
        self.microbatches, self.backwards = microbatches, 0
        #: All ranks start from the weights of rank 0.
        for t in module.state_dict().values():
            dist.broadcast(t, group_src=0, group=self.group)
        #: Backward completes the last layers first. A tied weight comes once.
        learned = [p for p in module.parameters() if p.requires_grad][::-1]
        if len({p.dtype for p in learned}) != 1:
            raise ValueError("the weights that learn must have one dtype")
        sizes = [p.numel() for p in learned]
        vector = learned[0].new_zeros(sum(sizes))
        self.buckets, self.works = vector.split(bucket), list[Any]()
        parts = zip(learned, vector.split(sizes))
        self.views = {p: part.view_as(p) for p, part in parts}
        self.missing = dict(self.views)
        for p in learned:
            if vars(p).setdefault("data_parallel", self) is not self:
                raise ValueError("the module is in a DataParallel already")
            p.register_post_accumulate_grad_hook(self.arrived)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """What the module computes."""
        return self.module(*inputs, **named)

    def arrived(self, p: Any) -> None:
        """The gradient of p is complete."""
        if p.grad is not self.views[p]:
            #: The first of a step is a new tensor; later ones add to the view.
            p.grad = self.views[p].copy_(p.grad)
        if len(self.missing) == len(self.views):
            #: To be called when backward ends.
            Variable._execution_engine.queue_callback(self.finish)
        del self.missing[p]
        #: The vector is complete up to the first gradient that is missing.
        first = next(iter(self.missing.values()), self.buckets[0])
        self.send(self.buckets[: first.storage_offset() // self.bucket])

    def send(self, full: tuple[Tensor, ...]) -> None:
        """Start the all-reduce of those of the full buckets not yet sent."""
        if (self.backwards + 1) % self.microbatches == 0:
            #: From the front on, so that all ranks send in the same order,
            #: even if their gradients do not come in order.
            for part in full[len(self.works) :]:
                #: By all ranks, whatever the group: so the loss was scaled.
                part /= dist.get_world_size()
                work = dist.all_reduce(part, group=self.group, async_op=True)
                self.works.append(work)

    def finish(self) -> None:
        """Send what is left, with zeros for parameters that were not used."""
        for p in self.missing:
            if p.grad is None:
                p.grad = self.views[p].zero_()
        self.send(self.buckets)
        for work in self.works:
            work.wait()
        self.works.clear()
        self.missing = dict(self.views)
        self.backwards += 1


def train(
    w: World,
    task: Task,
    *,
    batch: int,
    steps: int,
    microbatches: int,
    bucket: int,
) -> Iterator[Step]:
    """Train on this rank's micro-batches of every batch, with SGD."""
    module = task.model().to(w.device)
    model = DataParallel(module, bucket=bucket, microbatches=microbatches)
    sgd = SGD(model.parameters(), lr=0.5)
    for step in range(steps):
        whole = [t.to(w.device) for t in task.batch(step, batch)]
        x, y = (t.tensor_split(w.size * microbatches) for t in whole)
        sgd.zero_grad()
        for k in range(microbatches):
            part = w.rank * microbatches + k
            with span("backward", label=k, cost=3):
                #: Divided by all letters of all ranks: a mean of means would
                #: favor the samples of small micro-batches.
                share = w.size / whole[1].numel()
                loss = task.loss(model, x[part], y[part]) * share
                loss.backward()
        sgd.step()
        yield Step(loss.item(), [*model.parameters()])


def sizes_of(letters: Tensor, places: Tensor, *more: Tensor) -> dict[str, int]:
    """Elements that learn, that do not, and that are complete last."""
    learned = letters.numel() + sum(p.numel() for p in more)
    counts = {"elements": learned, "frozen_elements": places.numel()}
    return {**counts, "last_elements": letters.numel(), "itemsize": 8}


def main(
    w: World,
    *,
    batch: int = 50,
    steps: int = 2,
    microbatches: int = 3,
    bucket: int = 1500,
) -> None:
    weights, task = weights_of(w, tied_characters)
    moved = meter()
    if w.rank > 0:
        nn.init.zeros_(weights[2])  # to be replaced by rank 0's
    sent, started = moved.calls["all_reduce"], list[int]()
    #: The embedding is the last to learn its gradient: what left before?
    on_gradient = weights[0].register_post_accumulate_grad_hook
    on_gradient(lambda _: started.append(sent.count))
    memory = w.memory(
        parameters=lambda: weights, gradients=lambda: [p.grad for p in weights]
    )
    sizes = {"batch": batch, "steps": steps, "microbatches": microbatches}
    with memory, moved:
        for _ in train(w, task, bucket=bucket, **sizes):
            memory.mark("step")
    # float64; another order of additions, amplified by a few steps
    truth = partial(reference, w, tied_characters, steps, batch, rate=0.5)
    w.check("parameters", weights, truth, slack=64)
    w.check_same("same", weights)
    live = memory.live("step")
    #: Without the whole steps before.
    early = sum(count % (sent.count // steps) for count in started)
    found = {"calls": sent.count, "payload": sent.payload, "early": early}
    state = live["parameters"] + live["gradients"]
    report(w, given=sizes_of(*weights), state=state, **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
