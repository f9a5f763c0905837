"""Finds the first step and the first tensor in which p ranks differ from one process.

The tolerance is measured, not guessed. One process trains again with its weights,
inputs and layer outputs moved by one rounding; the distance that each tensor travels,
at each step, is its yardstick. A parallel run rounds elsewhere, not more: it sums the
same terms in another order. (The idea is TTrace's, arXiv 2506.09280.)
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from atlas.check.capture import Capture, Pieces, Step
from atlas.check.whole import Copies, Copy, aligned, copies

#: Yardsticks that a right program may be off. Right programs stay below 3 of them
#: (tests/check measures it); the mildest planted bug is off by more than 1000.
MARGIN = 8.0
#: Above this share of a gradient, the yardstick itself says that two runs of one
#: process do not repeat one another.
SHAKY = 0.05
#: Optimizers that divide by the size of the gradient, and so hide its scale.
SCALE_FREE = {"Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad"}


class NoYardstick(Exception):
    """One process does not repeat itself; the line says what to seed."""


@dataclass(frozen=True)
class Difference:
    """Where the runs first part."""

    step: int
    kind: str  # "weights" or "gradient"
    tensor: str
    others: int  # further tensors that differ at the same moment
    error: float  # relative to the tensor of one process
    limit: float  # relative too
    ranks: tuple[int, ...]
    apart: bool  # the ranks differ from each other


@dataclass
class Runs:
    """What was captured: one process, the same perturbed, and p ranks."""

    one: Capture
    moved: Sequence[Capture]
    many: Sequence[Capture]
    names: list[dict[str, str]] = field(init=False)
    shapes: dict[str, tuple[int, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self.names = [aligned(self.one, rank) for rank in self.many]
        start = self.one.steps[0].weights
        self.shapes = {n: tuple(p.local.shape) for n, p in start.items()}

    @property
    def steps(self) -> int:
        """Steps that all of the runs made."""
        runs = (self.one, *self.moved, *self.many)
        return min(len(c.steps) for c in runs)

    @property
    def unmatched(self) -> list[str]:
        """Tensors of one process that no rank has under any name."""
        known = {theirs for names in self.names for theirs in names.values()}
        return [n for n in self.shapes if n not in known]

    def of_one(self, step: int, kind: str) -> dict[str, Tensor]:
        """The tensors of one process at this moment."""
        return _local(_at(self.one, step, kind))

    def of_many(self, step: int, kind: str) -> Copies:
        """The same tensors as the ranks hold them."""
        held = [_at(rank, step, kind) for rank in self.many]
        return copies(held, self.names, self.shapes)

    def limits(self, step: int, kind: str) -> dict[str, float]:
        """How far each tensor may be off, as a norm."""
        one = self.of_one(step, kind)
        moved = [_local(_at(m, step, kind)) for m in self.moved]
        p = len(self.many)
        found = {}
        for name, t in one.items():
            yards = [distance(m[name], t) for m in moved if name in m]
            #: Where nothing moved, the reduction itself still rounds once per rank.
            floor = p * torch.finfo(t.dtype).eps * norm(t)
            found[name] = MARGIN * max(yards, default=0.0) + floor
        return found


def _at(capture: Capture, step: int, kind: str) -> Pieces:
    if step == len(capture.steps):
        return capture.final if kind == "weights" else {}
    at: Step = capture.steps[step]
    return at.weights if kind == "weights" else at.gradients


def _local(pieces: Pieces) -> dict[str, Tensor]:
    return {n: p.local for n, p in pieces.items() if p.local.is_floating_point()}


def norm(t: Tensor) -> float:
    """Its length; not a number counts as infinitely long."""
    length = t.double().norm().item()
    return length if length < float("inf") else float("inf")


def distance(a: Tensor, b: Tensor) -> float:
    """The length of the difference."""
    if a.shape != b.shape:
        return float("inf")
    return norm(a.double() - b.double())


def require_yardstick(runs: Runs) -> None:
    """Two runs of one process must repeat each other but for roundings."""
    for kind, what in (("weights", "weights it starts from"), ("gradient", "gradient")):
        one = runs.of_one(0, kind)
        for moved in runs.moved:
            again = _local(_at(moved, 0, kind))
            length = sum(norm(t) ** 2 for t in one.values()) ** 0.5
            off = sum(distance(again[n], t) ** 2 for n, t in one.items() if n in again)
            if off**0.5 > SHAKY * length:
                share = off**0.5 / length
                raise NoYardstick(
                    f"two runs on one process differ by {share:.0%} in the {what}, "
                    "so nothing can be compared: seed the script, also its shuffling"
                )


def first_difference(runs: Runs) -> Difference | None:
    """The earliest moment at which a tensor is further off than it may be."""
    for step in range(runs.steps + 1):
        for kind in ("weights", "gradient"):
            found = differing(runs, step, kind)
            if found and not (kind == "gradient" and harmless(runs, step)):
                return found
    return None


def differing(runs: Runs, step: int, kind: str) -> Difference | None:
    """The first tensor that differs at this moment, and how many others do."""
    one, limits = runs.of_one(step, kind), runs.limits(step, kind)
    found = []
    for name, held in runs.of_many(step, kind).items():
        if name not in one:  # a gradient that one process has not
            continue
        bad = [c for c in held if distance(c.tensor, one[name]) > limits[name]]
        if bad:
            found.append((name, held, bad))
    if not found:
        return None
    name, held, bad = found[0]
    worst = max(distance(c.tensor, one[name]) for c in bad)
    length = norm(one[name]) or 1.0
    return Difference(
        step,
        kind,
        name,
        len(found) - 1,
        worst / length,
        limits[name] / length,
        tuple(sorted(r for c in bad for r in c.ranks)),
        _apart(held, limits[name]),
    )


def _apart(held: Sequence[Copy], limit: float) -> bool:
    """Whether the copies differ from each other."""
    return any(distance(c.tensor, held[0].tensor) > 2 * limit for c in held[1:])


def harmless(runs: Runs, step: int) -> bool:
    """Whether these gradients are not what the weights are updated with.

    A sharded optimizer reduces gradients into memory of its own and leaves `p.grad`
    as it was; then the next weights are right. Only Adam and its kin are right with a
    gradient of the wrong scale too, so there a common scale is never harmless.
    """
    if step + 1 > runs.steps or differing(runs, step + 1, "weights"):
        return False
    if runs.of_many(step + 1, "weights").keys() != runs.shapes.keys():
        return False
    return not (scales_hidden(runs) and common_scale(runs, step) is not None)


def scales_hidden(runs: Runs) -> bool:
    """Whether the optimizer's update does not show the scale of the gradient."""
    return bool(SCALE_FREE & set(runs.one.optimizers))


def common_scale(runs: Runs, step: int) -> float | None:
    """The one number that all gradients are off by, if there is one."""
    one, limits = runs.of_one(step, "gradient"), runs.limits(step, "gradient")
    held = runs.of_many(step, "gradient")
    pairs = [
        (c.tensor.double(), n) for n, all_ in held.items() for c in all_ if n in one
    ]
    above = sum((t * one[n].double()).sum().item() for t, n in pairs)
    below = sum((one[n].double() ** 2).sum().item() for _, n in pairs)
    if not below:
        return None
    c = above / below
    off = [distance(t, c * one[n].double()) / max(1.0, abs(c)) for t, n in pairs]
    fits = all(x <= limits[n] for x, (_, n) in zip(off, pairs, strict=True))
    return c if fits else None


def worst_share(runs: Runs) -> float:
    """The largest distance of the run, as a share of what is allowed."""
    worst = 0.0
    for step in range(runs.steps + 1):
        for kind in ("weights", "gradient"):
            one, limits = runs.of_one(step, kind), runs.limits(step, kind)
            for name, held in runs.of_many(step, kind).items():
                for c in held if name in one else ():
                    off = distance(c.tensor, one[name])
                    worst = max(worst, off / limits[name] if off else 0.0)
    return worst
