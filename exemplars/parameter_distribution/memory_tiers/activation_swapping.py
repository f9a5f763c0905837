"""Activation swapping: what backward needs waits in slow memory.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.memory_tiers.activation_swapping

An activation is used twice: at once by the next layer, and much later by
backward, in the opposite order. Between the two it only takes room. So each
one that autograd saves is copied down, and forward lets go of it:

    forward    x0 -> x1 -> x2 -> x3       down x0, x1, x2, x3
    backward   dx3  needs x3     up x3, x2
               dw2  needs x2     up x1       (x3 is gone)
               dw1  needs x1     up x0       (x2 is gone)

Nothing is computed twice, so the gradients have the same bits. What is paid
is a way down and a way up for every byte. Backward asks in an order that is
known, so the activation it will need next comes up before it asks.

A tensor is often saved by two operations, the one that made it and the one
that takes it. It is one storage, and goes down once.

On a CPU both tiers are host memory; the bytes counted are the same.

Source: Rhu et al. 2016 (vDNN: offload in forward, prefetch in backward).
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from exemplars.parameter_distribution.memory_tiers import (
    cpu_offload_optimizer as tiers,
)
from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import equal_layers

Hooks = AbstractContextManager[Any]


class Place(NamedTuple):
    """Where a saved tensor is: which storage, and which part of it."""

    number: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class Swap:
    """Slow memory for what autograd saves; parameters stay where they are."""

    def __init__(
        self, link: tiers.Link, stay: Iterable[Tensor], ahead: int
    ) -> None:
        self.link, self.ahead = link, ahead
        self.stay = {StorageWeakRef(p.untyped_storage()) for p in stay}
        self.known: dict[StorageWeakRef, int] = {}
        self.slow: list[Tensor] = []  # in the order of forward
        self.fast: dict[int, Tensor] = {}
        self.users: list[int] = []  # operations that will still ask

    def down(self, x: Tensor) -> Tensor | Place:
        """What autograd keeps instead of a tensor."""
        storage = StorageWeakRef(x.untyped_storage())
        if storage in self.stay:
            return x
        #: By storage: the operation before has saved it already, as what it
        #: made, if this one saves what it takes.
        if storage not in self.known:
            self.known[storage] = len(self.slow)
            count = x.untyped_storage().nbytes() // x.itemsize
            whole = x.detach().as_strided((count,), (1,), 0)
            with span("down", label=len(self.slow)):
                self.slow.append(self.link.down(whole))
            self.users.append(0)
            self.device = x.device
        number = self.known[storage]
        self.users[number] += 1
        #: No reference to x: forward is the last to hold it.
        return Place(number, x.shape, x.stride(), int(x.storage_offset()))

    def up(self, kept: Tensor | Place) -> Tensor:
        """The tensor, when backward asks for it."""
        if isinstance(kept, Tensor):
            return kept
        #: And what it will ask for next, so that it need not wait.
        for i in range(kept.number, kept.number - self.ahead - 1, -1):
            if i >= 0 and i not in self.fast and self.users[i]:
                self.fast[i] = self.slow[i].new_empty(
                    self.slow[i].shape, device=self.device
                )
                with span("up", label=i):
                    self.link.up(self.slow[i], into=self.fast[i])
        whole = self.fast[kept.number]
        self.users[kept.number] -= 1
        #: The last user has it now, and drops it.
        if not self.users[kept.number]:
            del self.fast[kept.number]
        return whole.as_strided(*kept[1:])


class Watched(tiers.Link):
    """A link that has the memory looked at whenever something came up."""

    memory: Any

    def up(self, x: Tensor, into: Tensor) -> None:
        super().up(x, into)
        self.memory.mark("up")


def passes(memory: Any, layers: nn.Module, rows: Tensor, hooks: Hooks) -> int:
    """Forward, backward; bytes in fast memory between, without parameters."""
    with memory, hooks:
        with span("forward", cost=1):
            #: A copy that nobody else holds: the first activation, too.
            loss = layers(rows.clone()).sum()
        #: Whatever is alive now waits for backward.
        memory.mark("forward")
        with span("backward", cost=2):
            loss.backward()
    live = memory.live("forward")
    return live["activations"] + live["other"]


def gradients(model: nn.Module) -> list[Tensor]:
    """Of all parameters, as backward left them."""
    return [p.grad for p in model.parameters() if p.grad is not None]


def sum_over_ranks(model: nn.Module) -> None:
    """Each has computed on its own rows."""
    for gradient in gradients(model):
        dist.all_reduce(gradient)


def reference(w: World, layers: int, rows: Tensor) -> list[Tensor]:
    """Plain backward on these rows, which keeps everything."""
    model = equal_layers(layers, rows.shape[1]).to(w.device)
    return [*torch.autograd.grad(model(rows).sum(), [*model.parameters()])]


def main(
    w: World,
    *,
    layers: int = 5,
    width: int = 16,
    batch: int = 22,
    ahead: int = 1,
) -> None:
    w.require(ahead >= 0, f"{ahead} ahead: use 0 or more")
    rows, link = w.randn(batch, width, seed=0), Watched()
    own = rows.tensor_split(w.size)[w.rank]
    plain, model = (equal_layers(layers, width).to(w.device) for _ in range(2))
    memory = w.memory(parameters=plain.parameters)
    before = passes(memory, plain, own, nullcontext())
    swap = Swap(link, model.parameters(), ahead)
    link.memory = w.memory(
        parameters=model.parameters,
        slow_activations=lambda: swap.slow,
        fast_activations=lambda: list(swap.fast.values()),
    )
    hooks = saved_tensors_hooks(swap.down, swap.up)
    alone = partial(reference, w, layers)
    with meter():
        after = passes(link.memory, model, own, hooks)
        w.check("gradient", gradients(model), lambda: alone(own), slack=0)
        sum_over_ranks(model)
    # Another order of additions over the rows.
    w.check("batch", gradients(model), lambda: alone(rows), slack=64)
    found = {"down": link.bytes_down, "up": link.bytes_up}
    found["back"] = link.memory.peak["fast_activations"]
    report(w, given={"itemsize": 8}, saved=before - after, **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
