"""Asynchronous snapshot: training waits for a copy, never for the disk.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.durable_state.asynchronous_snapshot

A checkpoint is made in two phases. The snapshot is a copy in memory, and the
next step waits for it, since its update would change what is copied. The copy
is then written to disk, piece by piece, while the next steps compute:

    step       1 2 3 4   5 6 7 8   9 10 11 KILLED
    compute    # # # # c # # # # c # #  #
    write                w w w w   w w  w

That hides the write and delays the checkpoint. In the last step before the
second one is whole, training can go back to the first only: what is lost at
most is not one interval but nearly two, 2k - 1 complete steps for a snapshot
every k.

Death may come at any byte. So two files take turns, and the one being written
is never the newest whole one. A file ends in a digest of all before it: where
that does not fit, the file was not written to its end, whatever its name and
its length. Each rank writes 1/p of what all ranks hold alike, and a version
counts when every rank has its part.

A rank supervises here: its worker, which trains and dies, is a process of its
own (exemplars/elastic.py). Its file is on the disk of its machine.

Source: Mohan et al. 2021 (CheckFreq: two-phase checkpointing).
"""

import os
import signal
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.elastic import Crew
from exemplars.runtime import World, meter, report, span, world
from exemplars.scratch import scratch
from exemplars.sync_strategy.elastic.quorum_step import Replica, reference
from exemplars.workload import Step, Task, random_rows

DIGEST, VERSION = 32, 8  # bytes of a file that are not state
RATE, BATCH = 0.1, 24


def write(path: Path, pieces: list[Tensor]) -> Iterator[None]:
    """A file, one piece at each turn, and then the digest of all."""
    digest = sha256()
    with path.open("wb", buffering=0) as file:
        for piece in pieces:
            data = piece.numpy().tobytes()
            digest.update(data)
            file.write(data)
            #: A turn per step stands for a thread that writes meanwhile, so
            #: that a death finds the same bytes on every run.
            yield
        file.write(digest.digest())


def whole(data: bytes) -> bytes | None:
    """What was to be written, if all of it was."""
    body, digest = data[:-DIGEST], data[-DIGEST:]
    return body if sha256(body).digest() == digest else None


class Trainee(Replica):
    """A copy of the model that takes snapshots, in a process that may die."""

    def __init__(self, w: World, task: Task, batch: int, folder: Path) -> None:
        super().__init__(w, task, batch, {})
        self.folder, self.writer = folder, iter(list[None]())

    def step(self, step: int, dies: bool) -> float:
        """Compute and update; meanwhile, a piece of the copy is written."""
        #: All die in this step, and one of them before its turn.
        if not dies or self.w.rank < self.w.size - 1:
            next(self.writer, None)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        with span("compute", cost=3):
            self.compute(step)
        self.exchange(step)
        return self.update(RATE)

    def snapshot(self, version: int, interval: int) -> None:
        """Copy this rank's part of the state, to be written by the next."""
        mine = self.state.view(-1).tensor_split(self.w.size)[self.w.rank]
        with span("copy", cost=1):
            #: All that training waits for. Without the copy, the file would
            #: hold pieces of several steps, and its digest would be right.
            copy = mine.to("cpu", copy=True)
        pieces = [torch.tensor(version), *copy.tensor_split(interval - 2)]
        #: Two files in turn: while one is written, the other stays whole.
        slot = self.folder / str(version // interval % 2)
        self.writer = write(slot, pieces)

    def versions(self) -> dict[int, bytes]:
        """The state in this rank's whole files, by the steps before it."""
        files = (path.read_bytes() for path in self.folder.iterdir())
        bodies = map(whole, files)
        return {int.from_bytes(b[:VERSION], "little"): b for b in bodies if b}

    def load(self, version: int) -> None:
        """Read this rank's part, and have those of the others."""
        parts = self.state.view(-1).tensor_split(self.w.size)
        into = parts[self.w.rank]
        own = bytearray(self.versions()[version][VERSION:][: into.nbytes])
        into.copy_(torch.frombuffer(own, dtype=into.dtype))
        for owner, part in enumerate(parts):
            dist.broadcast(part, owner)


def restart(crew: Crew) -> int:
    """New workers, at the newest version of which no part is missing."""
    crew.start()
    crew.form(range(crew.w.size))
    heard = crew.agree(list(crew.ask("versions")))
    #: What every rank has whole. Some have a newer part, others do not.
    newest = max(set.intersection(*map(set, heard.values())), default=0)
    if newest:
        crew.ask("load", newest)
    return newest


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    batch: int,
    interval: int,
    crashes: set[int],
    folder: Path,
) -> Iterator[Step]:
    """The supervisor; in some steps all workers are killed."""
    step = told = 0
    with Crew(w, Trainee, w, task, batch, folder) as crew:
        crew.form(range(w.size))
        while step < steps:
            loss = crew.ask("step", step, step in crashes)
            if not crew.unanimous(loss):
                crashes = crashes - {step}
                step = restart(crew)
                continue
            step += 1
            if step % interval == 0:
                crew.ask("snapshot", step, interval)
            #: A step that is taken again is told once.
            if step > told:
                told = step
                yield Step(loss, list(crew.ask("state")))


def torn(data: bytes) -> int:
    """Unfinished states of a file that are taken for the whole of it."""
    taken = 0
    for size in range(len(data)):
        #: Cut off after any byte, or of full length and empty from there.
        for part in (data[:size], data[:size].ljust(len(data), b"\0")):
            taken += part != data and whole(part) is not None
    return taken


def main(w: World, *, steps: int = 12, interval: int = 4) -> None:
    w.require(interval > 2, f"interval {interval}: use 3 or more")
    crash = 3 * interval - 1
    w.require(crash < steps, f"{steps} steps: use {crash + 1} or more")
    task = random_rows(w, layers=2, width=9)
    run = partial(train, w, task, steps=steps, batch=BATCH, interval=interval)
    with scratch() as folder:
        *_, calm = run(crashes=set(), folder=folder)
    with scratch() as folder, meter() as moved:
        *_, last = run(crashes={crash}, folder=folder)
        file = max((p.read_bytes() for p in folder.iterdir()), key=len)
    w.check("resumed", last.weights, lambda: calm.weights, slack=0)
    # float64; another order of additions, amplified by the steps
    alone = partial(reference, w, task, steps, BATCH, RATE, {})
    w.check("parameters", last.weights, lambda: alone()[1:], slack=64)
    found = {"written": len(file), "torn": torn(file)}
    found["lost"] = sum(e.name == "compute" for e in moved.events) - steps
    found["killed"] = sum(e.kind == "killed" for e in moved.events)
    given = {"elements": len(last.weights[0]), "itemsize": 8}
    report(w, given=given, **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
