"""Weight stashing: the pipeline never empties; each batch keeps its version.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.pipeline_stale.weight_stashing

Source: Narayanan et al. 2019 (PipeDream), section 3.3.

A stage updates its weights after every backward and goes on, so the pipeline
fills once in a training and not once in a batch. For p = 3, v the version of
the weights that a batch goes forward through:

    stage 0  F0v0 F1v0 F2v0 B0 F3v1 B1 F4v2 B2 F5v3 ...
    stage 1       F0v0 F1v0 B0 F2v1 B1 F3v2 B2 F4v3 ...
    stage 2            F0v0 B0 F1v1 B1 F2v2 B2 F3v3 ...

Between a batch's forward and its backward stage s makes p-1-s updates. Its
backward multiplies by the weights, dx = dz A^T, and must take those that its
forward took: of any others it is the gradient of nothing. So the old ones are
stashed, p-s versions at once. The gradient is then a true one, but of weights
p-1-s versions old; and the stages do not even agree on how old.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import Action, World, meter, report, span, world

ROWS, WIDTH = 5, 12  # of a batch
COST = {"F": 1, "B": 2}  # virtual seconds
RATE = 0.3


def without_flush(stage: int, stages: int, batches: int) -> Iterator[Action]:
    """Fill once, then one forward, one backward, over all of training."""
    ahead = min(batches, stages - 1 - stage)
    yield from (Action("F", i) for i in range(ahead))
    for i in range(batches):
        if ahead + i < batches:
            yield Action("F", ahead + i)
        yield Action("B", i)


class Stash(NamedTuple):
    """What a batch's backward needs of its forward."""

    version: int
    weights: Tensor
    x: Tensor
    y: Tensor


class Stage:
    """One layer, y = tanh(x A), its versions, and its neighbours."""

    def __init__(self, w: World) -> None:
        self.w, self.newest, self.version = w, layer(w, w.rank), 0
        self.stashed: dict[int, Stash] = {}
        self.most, self.ages = 0, list[int]()
        self.forth, self.back = list[Tensor](), list[Tensor]()  # weights used

    def forward(self, i: int, x: Tensor) -> Tensor:
        y = (x @ self.newest).tanh()
        self.stashed[i] = Stash(self.version, self.newest, x, y)
        held = {s.version for s in self.stashed.values()}
        self.most = max(self.most, len(held))
        self.forth.append(self.newest.clone())
        return y

    def backward(self, i: int, dy: Tensor | None) -> Tensor:
        version, weights, x, y = self.stashed.pop(i)
        self.back.append(weights.clone())
        dx, gradient = derive(weights, x, y, dy)
        self.ages.append(self.version - version)
        #: A new tensor: in place, it would change every stashed version.
        self.newest = self.newest - RATE * gradient
        self.version += 1
        return dx

    def run(self, batches: Tensor) -> None:
        """Between actions: send what one made, receive what the next needs."""
        r, outgoing, target = self.w.rank, None, -1
        for kind, i in without_flush(r, self.w.size, len(batches)):
            step = 1 if kind == "F" else -1
            incoming = self.exchange(outgoing, target, r - step)
            with span(kind, label=i, cost=COST[kind]):
                if kind == "B":
                    outgoing = self.backward(i, incoming)
                else:
                    x = batches[i] if incoming is None else incoming
                    outgoing = self.forward(i, x)
            target = r + step
        self.exchange(outgoing, target, -1)

    def exchange(self, out: Tensor | None, to: int, by: int) -> Tensor | None:
        """One batch of messages, which may cross those of a neighbour."""
        inside, ops = range(self.w.size), []
        incoming = self.newest.new_empty(ROWS, WIDTH)
        if out is not None and to in inside:
            ops.append(dist.P2POp(dist.isend, out.contiguous(), to))
        if by in inside:
            ops.append(dist.P2POp(dist.irecv, incoming, by))
        for work in dist.batch_isend_irecv(ops) if ops else []:
            work.wait()
        return incoming if by in inside else None


def layer(w: World, stage: int) -> Tensor:
    """A function of the stage: every rank can make every layer."""
    return w.randn(WIDTH, WIDTH, of_rank=stage) / WIDTH**0.5


def derive(
    weights: Tensor, x: Tensor, y: Tensor, dy: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Gradients in x and in the weights; the loss is the mean square of y."""
    dz = (2 * y / y.numel() if dy is None else dy) * (1 - y * y)
    return dz @ weights.T, x.T @ dz


def reference(w: World, batches: Tensor) -> Tensor:
    """The stale updates on one process: versions by index, no pipeline."""
    made = [[layer(w, s)] for s in range(w.size)]  # by stage, by version
    for i, x in enumerate(batches):
        used = [made[s][max(0, i - (w.size - 1 - s))] for s in range(w.size)]
        xs, dx = [x], None
        for weights in used:
            xs.append((xs[-1] @ weights).tanh())
        for s in reversed(range(w.size)):
            dx, gradient = derive(used[s], xs[s], xs[s + 1], dx)
            made[s].append(made[s][-1] - RATE * gradient)
    return made[w.rank][-1]


def main(w: World) -> None:
    count = 2 * w.size  # enough for every stage to be as stale as it gets
    batches, stage = w.randn(count, ROWS, WIDTH, of_rank=0), Stage(w)
    with meter() as moved:
        stage.run(batches)
    w.check("weights", stage.newest, lambda: reference(w, batches), slack=0)
    w.check("version", stage.back, lambda: stage.forth, slack=0)
    given = {"m": count, "a": ROWS * WIDTH * 8, "f": COST["F"], "b": COST["B"]}
    found = dict(staleness=max(stage.ages), versions=stage.most)
    report(w, given=given, bytes_sent=moved.bytes_sent, **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
