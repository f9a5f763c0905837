"""Mixed precision: 16 bits to compute and to send, 32 bits to remember.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.compact_state.mixed_precision

Weights, activations and gradients are float16: half the bytes to hold, half
to send. Two things go wrong with that, and each has its cure.

    small updates    w + dw = w when dw is below 1/2000 of w: keep master
                     weights in float32, update those, round to compute
    small gradients  below 6e-8 everything is zero: multiply the loss by a
                     scale, and divide the gradient by it, in float32

A scale that is a power of two only moves exponents. As long as nothing leaves
the range, every rounding falls as before: the gradient has the same bits for
any such scale, except where it would have been lost.

    bytes per parameter   2 weight + 2 gradient + 4 master + 8 moments = 16

Source: Micikevicius et al. 2018, section 3.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW, Optimizer

from exemplars import workload
from exemplars.parameter_distribution.sharded.zero_1 import gradient
from exemplars.runtime import Group, World, meter, report, span, world
from exemplars.workload import Optimizers, Step, Task, random_rows, weights_of

STATE = "weights", "gradients", "optimizer"  # what a rank keeps


class MixedPrecision(nn.Module):
    """Any module, computing in float16, and master weights in float32.

    `make` is any optimizer, such as torch.optim.AdamW. Multiply the loss by
    `scale` before backward. All ranks start from the same weights. A subclass
    may average over a group of fewer ranks.
    """

    group: Group = None

    def __init__(
        self, module: nn.Module, make: Callable[..., Optimizer], scale: float
    ) -> None:
        super().__init__()
        self.learned = [p for p in module.parameters() if p.requires_grad]
        #: Copied before the weights are rounded, so that nothing is lost.
        self.masters = [nn.Parameter(p.detach().float()) for p in self.learned]
        self.module, self.scale = module.half(), scale
        self.local = make(self.masters)

    def forward(self, x: Tensor) -> Tensor:
        """What the module computes; indices are not rounded."""
        y: Tensor = self.module(x.half() if x.is_floating_point() else x)
        #: The loss is float32: a sum over many samples needs the bits.
        return y.float()

    def step(self) -> None:
        """Average the gradients and update in float32; round the weights."""
        for p, master in zip(self.learned, self.masters):
            #: Divided in float32, where small numbers survive.
            master.grad = mean_of(gradient(p), self.group) / self.scale
        with span("float", cost=1):
            self.local.step()
        #: Only the float16 gradients are kept: 2 bytes, not 6.
        self.local.zero_grad()
        for p, master in zip(self.learned, self.masters):
            p.data.copy_(master.detach())


def mean_of(own: Tensor, group: Group) -> Tensor:
    """The mean over the ranks, in float32."""
    every = own.new_empty(dist.get_world_size(group), own.numel())
    #: Gathered, and added up in float32 by every rank alike: float16 travels,
    #: but no sum is rounded to it. (A ring would add in float16.)
    dist.all_gather_single(every.view(-1), own.reshape(-1), group)
    return every.float().mean(0).view_as(own)


def train(
    w: World,
    task: Task,
    *,
    batch: int,
    steps: int,
    scale: float,
    small: float = 1,
) -> Iterator[Step]:
    """Train on this rank's share, with AdamW; `small` multiplies the loss."""
    model = MixedPrecision(task.model().to(w.device), AdamW, scale)
    for step in range(steps):
        whole = (t.to(w.device) for t in task.batch(step, batch))
        x, y = (t.tensor_split(w.size)[w.rank] for t in whole)
        model.zero_grad()
        with span("half", cost=2):
            loss = task.loss(model, x, y) * (w.size / batch * small)
            #: The loss is float32 still; the scale matters on the way back.
            (loss * scale).backward()
        model.step()
        yield Step(loss.item(), model.masters)


def reference(
    w: World, task: Task, batch: int, steps: int, scale: float, small: float
) -> list[Tensor]:
    """One process that takes the ranks' shares in turn."""
    master = task.model().to(w.device).float()
    adam = AdamW(master.parameters())
    learned = [p for p in master.parameters() if p.requires_grad]
    for step in range(steps):
        x, y = (t.to(w.device) for t in task.batch(step, batch))
        pairs = zip(x.tensor_split(w.size), y.tensor_split(w.size))
        factor = w.size / batch * small * scale
        every = [in_float16(master, *pair, factor) for pair in pairs]
        for p, grads in zip(learned, zip(*every)):
            p.grad = torch.stack(grads).float().mean(0) / scale
        adam.step()
    return [*learned]


def in_float16(
    model: nn.Module, x: Tensor, y: Tensor, factor: float
) -> Sequence[Tensor]:
    """The gradient of a float16 copy of the model, times a factor."""
    half = deepcopy(model).half()
    learned = [p for p in half.parameters() if p.requires_grad]
    scores = half(x.half() if x.is_floating_point() else x).float()
    loss = F.cross_entropy(scores.flatten(0, -2), y.flatten(), reduction="sum")
    return torch.autograd.grad(loss * factor, learned)


def compare(w: World, task: Task, last: Step, *sizes: Any) -> None:
    """Hold the weights that learn against those of one process."""
    # The same shares, the same order of additions: the same bits.
    w.check("parameters", last.weights, partial(reference, w, task, *sizes), 0)


def lost(w: World, task: Task, batch: int, factor: float) -> int:
    """Elements of the first gradient that are zero in float16."""
    x, y = (t.to(w.device) for t in task.batch(0, batch))
    gradients = in_float16(task.model().to(w.device), x, y, factor)
    return sum(int((g == 0).sum()) for g in gradients)


def main(
    w: World,
    *,
    layers: int = 3,
    width: int = 17,
    batch: int = 48,
    steps: int = 3,
    scale: float = 2.0**30,
    small: float = 2.0**-20,
) -> None:
    task, optimizers = random_rows(w, layers, width), Optimizers()
    weights, ours = weights_of(w, task)
    memory = w.memory(
        weights=lambda: [p for p in weights if p.dtype == torch.half],
        gradients=lambda: [p.grad for p in weights],
        optimizer=optimizers.state,
    )
    run = partial(train, w, batch=batch, steps=steps, small=small)
    #: A small factor makes gradients as small as they are late in training.
    with optimizers, memory, meter() as moved:
        *_, last = run(ours, scale=scale)
    *_, other = run(task, scale=4 * scale)
    #: Letters are not rounded; of this model, some weights do not learn.
    *_, tied = run(workload.tied_characters, scale=scale)
    compare(w, task, last, batch, steps, scale, small)
    compare(w, workload.tied_characters, tied, batch, steps, scale, small)
    w.check("scale", other.weights, lambda: last.weights, slack=0)
    w.check_same("same", weights)
    state = sum(memory.live()[kind] for kind in STATE)
    zeros = lost(w, task, batch, scale * small / batch)
    given = {"elements": sum(p.numel() for p in weights)}
    report(w, given=given, state=state, payload=moved.payload, lost=zeros)


if __name__ == "__main__":
    with world() as w:
        main(w)
