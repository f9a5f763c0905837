"""Resharded checkpoint: saved by one grid of ranks, loaded by any other.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.durable_state.resharded_checkpoint

A grid is d x t x s ranks: d replicas, each of t tensor-parallel ranks in each
of s stages. What a rank holds depends on the grid; what it means does not. So
nothing in a checkpoint is named by a rank. A piece is some rows of a tensor,
and has the tensor's name in the whole model and the number of its first row:

    (2, 2, 1)   rank 0   0.weight rows 0-2     its replica (rank 2)   rows 3-4
    (1, 1, 4)   rank 0   wants 0.weight rows 0-9: reads pieces of four files

A rank that loads says what it holds now, and reads where the pieces overlap
it, those bytes and no others. Moments are cut as the weights they belong to.
What belongs to no row, a step counter or the state of a random generator, is
the same on every rank, so it is written once and read by all.

The replicas of a piece share the writing, and no byte is written twice.

Source: Lian et al. 2024 (Universal Checkpointing); Wan et al. 2024
(ByteCheckpoint: metadata of global shape and offset, resharding at load).
"""

from functools import partial
from itertools import product
from math import prod
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import SGD

from exemplars.runtime import World, meter, report, world
from exemplars.scratch import shared
from exemplars.workload import equal_layers

State = dict[str, Tensor]
Grid = tuple[int, ...]  # replicas, tensor-parallel ranks, stages
Rows = dict[str, range]  # of each tensor, those that a rank holds
RATE, STEPS = 0.001, 2  # steps before the checkpoint, and after it


def cut(rows: range, parts: int, index: int) -> range:
    """One of some nearly equal parts, as torch.tensor_split cuts."""
    size, more = divmod(len(rows), parts)
    start = index * size + min(index, more)
    return rows[start : start + size + (index < more)]


def held(state: State, layers: int, grid: Grid, rank: int) -> Rows:
    """What a rank of this grid holds."""
    _, tensor, stages = grid
    mine = cut(range(layers), stages, rank % stages)
    rows = {}
    for name, t in state.items():
        layer = name.split(".")[0]
        if not layer.isdigit():
            #: Of no layer, such as a step counter: the same on every rank.
            rows[name] = range(len(t))
        elif int(layer) in mine:
            #: By the layer's number in the model, not in the stage.
            rows[name] = cut(range(len(t)), tensor, rank // stages % tensor)
    return rows


def save(folder: Path, state: State, layers: int, grid: Grid, r: int) -> int:
    """Write what a rank holds, but for what others write; how many bytes."""
    folder.mkdir(exist_ok=True)
    written = 0
    for name, own in held(state, layers, grid, r).items():
        #: Those that hold the same rows write a part of them each.
        part = cut(own, grid[0], r * grid[0] // prod(grid))
        if not name[0].isdigit():
            part = cut(own, prod(grid), r)
        data = state[name][part.start : part.stop].cpu().numpy()
        #: What it is, and not who had it.
        path = folder / f"{name}@{part.start}@{part.stop}"
        written += path.write_bytes(data.tobytes())
    return written


def load(folder: Path, like: State, rows: Rows) -> tuple[State, int]:
    """Read these rows, whoever has written them; and how many bytes."""
    found = {n: torch.zeros_like(like[n][: len(rows[n])]) for n in rows}
    read = 0
    for path in folder.iterdir():
        name, *ends = path.name.split("@")
        start, stop = map(int, ends)
        want = rows.get(name, range(0))
        first, last = max(start, want.start), min(stop, want.stop)
        if first < last:
            into = found[name][first - want.start : last - want.start]
            with path.open("rb") as file:
                #: These bytes only: a rank reads no more than it will hold.
                file.seek((first - start) * into[0].nbytes)
                data = bytearray(file.read(into.nbytes))
            into.copy_(torch.frombuffer(data, dtype=into.dtype).view_as(into))
            read += len(data)
    return found, read


class Trainer:
    """Momentum SGD with dropout, which has a state to be kept as well."""

    def __init__(self, w: World, layers: int, width: int) -> None:
        self.draw = partial(w.randn, 5, width)
        self.model = equal_layers(layers, width).to(w.device)
        self.sgd = SGD(self.model.parameters(), lr=RATE, momentum=0.9)
        self.random = torch.Generator().manual_seed(0)

    def run(self, steps: range) -> None:
        """The same on all ranks: they differ in what they keep of it."""
        for step in steps:
            x = self.draw(seed=step)
            kept = torch.rand(x.shape, generator=self.random) < 0.9
            self.sgd.zero_grad()
            self.model(x * kept.to(x.device)).square().sum().backward()
            self.sgd.step()

    def state(self) -> State:
        """All of it, by names that only depend on the model."""
        state = {"random": self.random.get_state()}
        for name, p in self.model.named_parameters():
            state[name] = p.detach()
            state[name + ".moment"] = self.sgd.state[p]["momentum_buffer"]
        return state

    def resume(self, state: State) -> None:
        """Have the state that somebody else had."""
        self.random.set_state(state["random"])
        for name, p in self.model.named_parameters():
            p.data.copy_(state[name])
            self.sgd.state[p]["momentum_buffer"] = state[name + ".moment"]


def reference(w: World, layers: int, width: int, steps: int) -> list[Tensor]:
    """Of one process that is never interrupted: weights and momenta."""
    model = equal_layers(layers, width).to(w.device)
    sgd = SGD(model.parameters(), lr=RATE, momentum=0.9)
    source = torch.Generator().manual_seed(0)
    for step in range(steps):
        x = w.randn(5, width, seed=step)
        kept = torch.rand(x.shape, generator=source) < 0.9
        sgd.zero_grad()
        model(x * kept.to(w.device)).square().sum().backward()
        sgd.step()
    pairs = [(p.data, sgd.state[p]["momentum_buffer"]) for p in sgd.state]
    return [t for pair in pairs for t in pair]


def main(w: World, *, layers: int = 3, width: int = 10) -> None:
    run, again = (Trainer(w, layers, width) for _ in range(2))
    run.run(range(STEPS))
    state, read = run.state(), dict[tuple[Grid, Grid], int]()
    every = product(range(1, w.size + 1), repeat=3)
    grids = [g for g in every if prod(g) in (w.size, (w.size + 1) // 2)]
    with shared(w) as top, meter():
        for old in grids:
            folder = top / "x".join(map(str, old))
            #: A rank beyond the grid finds that nothing is left to write.
            written = save(folder, state, layers, old, w.rank)
            dist.barrier()
            for new in grids:
                rows = held(state, layers, new, w.rank % prod(new))
                found, read[old, new] = load(folder, state, rows)
                cuts = [state[n][r.start : r.stop] for n, r in rows.items()]
                w.check("state", [*found.values()], partial(list, cuts), 0)
        whole = held(state, layers, (1, 1, 1), 0)
        again.resume(load(folder, state, whole)[0])
    again.run(range(STEPS, 2 * STEPS))
    truth = partial(reference, w, layers, width, 2 * STEPS)
    w.check("resumed", [*again.state().values()][1:], truth, slack=0)
    given = {"random_bytes": len(state["random"]), "itemsize": 8}
    pair = (1, 1, w.size), (1, w.size, 1)
    report(w, given=given, written=written, read=read[pair])


if __name__ == "__main__":
    with world() as w:
        main(w)
