"""Offload to NVMe: optimizer state lives in a file and passes through memory.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.memory_tiers.nvme_offload

Adam's step is element-wise: to update some weights it needs their gradient
and their own three numbers, master weight and two moments, and nothing of the
others. So a rank may keep its shard of all that on disk, and take it through
memory piece by piece:

    for every piece    read    w m v   from the file
                       update  with the gradient of the piece
                       write   w m v   to where it was
                       up      the new weights, to the device

A piece is as large as a budget of memory allows, and the file as large as the
disk. The state of each step is read once and written once, 3 numbers per
parameter each way; with p ranks, each disk moves 1/p of it. The result has
the bits of the same step in memory.

Source: Rajbhandari et al. 2021 (ZeRO-Infinity), section 5.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from exemplars.parameter_distribution.memory_tiers import (
    cpu_offload_optimizer as tiers,
)
from exemplars.parameter_distribution.sharded.zero_1 import (
    Flat,
    alike,
    reference,
    stranger,
)
from exemplars.runtime import World, meter, report, span, world
from exemplars.scratch import scratch
from exemplars.workload import Step, Task, random_rows

ROWS = 3  # numbers per parameter on disk: master weight and two moments


class Disk:
    """A file; it knows how many bytes went each way."""

    def __init__(self, path: Path) -> None:
        #: Unbuffered: Python would read more than it is asked for.
        self.file = path.open("w+b", buffering=0)
        self.bytes_read = self.bytes_written = 0

    def read(self, at: int, into: Tensor) -> None:
        """Fill a tensor from here on."""
        self.file.seek(at)
        self.bytes_read += self.file.readinto(into.numpy().data) or 0

    def write(self, at: int, x: Tensor) -> None:
        """Put a tensor here."""
        self.file.seek(at)
        self.bytes_written += self.file.write(x.numpy().data) or 0


class OnDisk:
    """AdamW of replicated weights, whose state is in a file of each rank."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], disk: Disk, budget: int
    ) -> None:
        self.learned = [p for p in parameters if p.requires_grad]
        self.flats = [Flat(group) for group in alike(self.learned)]
        self.disk, self.budget, self.steps = disk, budget, 0
        at = 0
        for flat in self.flats:
            for weights in self.pieces(flat.shard.detach()):
                state = torch.zeros(ROWS, len(weights), dtype=weights.dtype)
                state[0] = weights
                disk.write(at, state)
                at += state.nbytes

    def pieces(self, shard: Tensor) -> tuple[Tensor, ...]:
        """Of which the state fits into the budget."""
        return shard.split(self.budget // (ROWS * shard.itemsize))

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters."""
        for p in self.learned:
            p.grad = None

    def step(self) -> None:
        """Reduce-scatter, update the shard piece by piece, all-gather."""
        at = 0
        for flat in self.flats:
            #: Each rank its shard: p disks take part.
            pair = map(self.pieces, (flat.shard.detach(), flat.scatter()))
            for weights, gradient in zip(*pair):
                self.update(at, weights, gradient)
                at += ROWS * weights.nbytes
        self.steps += 1
        for flat in self.flats:
            flat.gather()

    def update(self, at: int, weights: Tensor, gradient: Tensor) -> None:
        """Read the state of some weights, take a step, write it back."""
        #: All of the state that is in memory: one piece, and then the next
        #: in its place.
        state = torch.empty(ROWS, len(weights), dtype=weights.dtype)
        assert state.nbytes <= self.budget
        with span("read"):
            self.disk.read(at, state)
        master = nn.Parameter(state[0])
        #: The gradient comes down; the disk never sees it.
        master.grad = gradient.to(tiers.SLOW)
        #: Adam of torch, for this piece and this step only. Its counter is
        #: the same for all pieces, so it stays in memory.
        adam, count = AdamW([master]), torch.tensor(float(self.steps))
        moments = {"exp_avg": state[1], "exp_avg_sq": state[2]}
        adam.state[master] = {"step": count, **moments}
        with span("update", cost=1):
            adam.step()
        #: What changed in memory has to change in the file.
        with span("write"):
            self.disk.write(at, state)
        weights.copy_(master.detach())


def train(
    w: World, task: Task, *, batch: int, steps: int, disk: Disk, budget: int
) -> Iterator[Step]:
    """Train on this rank's share of every batch, with AdamW."""
    model = task.model().to(w.device)
    optimizer = OnDisk(model.parameters(), disk, budget)
    for step in range(steps):
        whole = (t.to(w.device) for t in task.batch(step, batch))
        x, y = (t.tensor_split(w.size)[w.rank] for t in whole)
        optimizer.zero_grad()
        loss = task.loss(model, x, y) * w.size / batch
        loss.backward()
        optimizer.step()
        yield Step(loss.item(), [*model.parameters()])


class Watched(Disk):
    """A disk that has the memory looked at when something was read."""

    memory: Any
    last: Tensor | None = None

    def read(self, at: int, into: Tensor) -> None:
        super().read(at, into)
        self.last = into
        self.memory.mark("read")
        self.last = None


def main(
    w: World, *, width: int = 17, steps: int = 2, budget: int = 1000
) -> None:
    w.require(budget >= ROWS * 8, f"budget {budget}: use {ROWS * 8} or more")
    task = random_rows(w, 3, width)
    run = partial(train, w, batch=50, steps=steps, budget=budget)
    with scratch() as folder, meter():
        disk = Watched(folder / "state")
        disk.memory = w.memory(resident=lambda: [disk.last])
        with disk.memory:
            *_, last = run(task, disk=disk)
        *_, odd = run(stranger(task), disk=Disk(folder / "stranger"))
    *_, kept = tiers.train(w, task, batch=50, steps=steps)
    w.check("parameters", last.weights, lambda: kept.weights, slack=0)
    # Another order of additions in the gradient, through Adam's division.
    alone = partial(reference, w, batch=50, steps=steps)
    w.check("one_process", last.weights, lambda: alone(task), slack=256)
    w.check("one_process", odd.weights, lambda: alone(stranger(task)), 256)
    found = {"read": disk.bytes_read, "written": disk.bytes_written}
    found["resident"] = disk.memory.peak["resident"]
    elements = sum(p.numel() for p in last.weights)
    report(w, given={"elements": elements, "itemsize": 8}, **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
