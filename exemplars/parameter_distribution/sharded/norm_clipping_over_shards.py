"""Norm clipping over shards: one number per mesh axis, each weight once.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.sharded.norm_clipping_over_shards

Clipping multiplies every gradient by  min(1, C / |g|),  where |g| is the norm
of the whole model's gradient. No rank has that gradient. Ranks stand in a box
with one axis for each kind of parallelism, and parameters differ in where
they are cut and where they are copied:

                 data   stage            expert   tensor
    matrices     cut    cut by layers    copies   cut
    experts      cut    cut by layers    cut      cut
    norms        cut    cut by layers    copies   copies
    embedding    cut    first and last   copies   cut

The squares of all parts of a cut add up to the square of the whole. Copies
would add the same number again, so of all copies exactly one is counted:

    |g|^2  =  sum over data, stage, expert, tensor of  |parts counted|^2

What travels is one number per axis, however large the model. All ranks get
the same norm, so parts and copies shrink by the same factor.

Source: Megatron Core, clip_grads.py, and its pull request 5916.
"""

from dataclasses import dataclass
from math import gcd

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from exemplars.runtime import World, meter, report, span, world

Network = dict[str, Tensor]
AXES = ("data", "stage", "expert", "tensor")
#: Which axes cut a parameter, and along which of its dimensions. Along an
#: axis that is not named, all ranks hold the same.
CUT = {
    "embedding": {"tensor": 0, "data": 0},
    "matrices": {"stage": 0, "tensor": 1, "data": 1},
    "experts": {"stage": 0, "expert": 1, "tensor": 1, "data": 1},
    "norms": {"stage": 0, "data": 1},
}
#: Two boxes, since four ranks fill only two axes. Data has what is left.
BOXES = ({"tensor": 2, "stage": 2}, {"expert": 2})


class Mesh:
    """All ranks in a box, and this rank's line of them along each axis."""

    def __init__(self, lengths: dict[str, int]) -> None:
        rest = dist.get_world_size()
        self.size = dict.fromkeys(AXES, 1)
        for axis, length in lengths.items():
            self.size[axis] = gcd(rest, length)
            rest //= self.size[axis]
        self.size["data"] = rest
        box = torch.arange(dist.get_world_size()).view(*self.size.values())
        here = (box == dist.get_rank()).nonzero()[0]
        self.place = dict(zip(AXES, here.tolist()))
        self.group = {}
        #: Every rank makes every group, in the same order.
        for i, axis in enumerate(AXES):
            lines = box.movedim(i, -1).flatten(0, -2).tolist()
            self.group[axis], _ = dist.new_subgroups_by_enumeration(lines)


@dataclass
class Part:
    """A rank's part of a gradient; along which axes others have it too."""

    gradient: Tensor
    copies: frozenset[str]


def counts(mesh: Mesh, part: Part) -> bool:
    """Whether this rank is the one that counts its copy."""
    #: No message is needed: of all copies, it is the first on each axis.
    return all(mesh.place[axis] == 0 for axis in part.copies)


def global_norm(mesh: Mesh, parts: list[Part]) -> Tensor:
    """The norm of the whole model's gradient, on every rank."""
    square = parts[0].gradient.new_zeros((), dtype=torch.double)
    for part in parts:
        if counts(mesh, part):
            square += part.gradient.double().square().sum()
    #: Squares are added, not norms, and also by ranks that count nothing:
    #: if one of them stayed away, the others would wait for ever.
    for axis in mesh.group:
        dist.all_reduce(square, group=mesh.group[axis])
    return square.sqrt()


def clip(mesh: Mesh, parts: list[Part], most: float) -> Tensor:
    """Shrink all gradients by one factor, to a norm of `most` or less."""
    with span("norm", cost=1):
        norm = global_norm(mesh, parts)
    #: torch's own formula. Without the clamp, small gradients would grow.
    scale = (most / (norm + 1e-6)).clamp(max=1)
    for part in parts:
        #: Every part and every copy, counted or not.
        part.gradient.mul_(scale)
    return norm


def cut(mesh: Mesh, whole: Network) -> Network:
    """This rank's parts of the whole network, as views."""
    parts, last = {}, mesh.size["stage"] - 1
    for kind, part in whole.items():
        for axis, dim in CUT[kind].items():
            pieces = part.tensor_split(mesh.size[axis], dim)
            part = pieces[mesh.place[axis]]
        #: Input and output share the embedding: both ends of the pipeline
        #: hold it, each with the sum of both gradients, the others do not.
        if kind != "embedding" or mesh.place["stage"] in (0, last):
            parts[kind] = part
    return parts


def held(mesh: Mesh, whole: Network) -> list[Part]:
    """What backward and its sums leave here: this rank's gradients."""
    return [
        Part(part.clone(), frozenset(AXES) - CUT[kind].keys())
        for kind, part in cut(mesh, whole).items()
    ]


def network(w: World, layers: int, width: int, experts: int) -> Network:
    """Gradients by kind of parameter, all layers of a kind in one tensor."""
    shapes = {
        "embedding": (2 * width, width),
        "matrices": (layers, width, width),
        "experts": (layers, experts * width, width),
        "norms": (layers, width),
    }
    return {kind: w.randn(*s, seed=0) for kind, s in shapes.items()}


def reference(
    whole: Network, limits: list[float]
) -> tuple[list[Tensor], Network]:
    """One process and torch's own clipping: norms, and clipped gradients."""
    weights = [nn.Parameter(gradient) for gradient in whole.values()]
    for weight in weights:
        weight.grad = weight.detach().clone()
    norms = [nn.utils.clip_grad_norm_(weights, most) for most in limits]
    clipped = [weight.grad for weight in weights if weight.grad is not None]
    return norms, dict(zip(whole, clipped))


def check(
    w: World, lengths: dict[str, int], whole: Network, limits: list[float]
) -> dict[str, float]:
    """Clip in a box of ranks, and compare; what was moved."""
    mesh = Mesh(lengths)
    parts = held(mesh, whole)
    ours = [part.gradient for part in parts]
    with w.memory(gradients=lambda: ours), meter() as moved:
        seen = [clip(mesh, parts, most) for most in limits]
    norms, clipped = reference(whole, limits)
    # Squares in another order, then a root and a product.
    w.check("norm", seen, lambda: norms, slack=8)
    theirs = [*cut(mesh, clipped).values()]
    w.check("gradients", ours, lambda: theirs, slack=8)
    w.check_same("same", seen)
    times = {kind: torch.zeros_like(t) for kind, t in whole.items()}
    for view, part in zip(cut(mesh, times).values(), parts):
        view += counts(mesh, part)
    total = parameters_to_vector(times.values())
    dist.all_reduce(total)
    w.check("once", total, lambda: torch.ones_like(total), slack=0)
    return {"calls": moved.count, "payload": moved.payload}


def main(
    w: World,
    *,
    layers: int = 4,
    width: int = 6,
    experts: int = 4,
    loose: float = 50,
    tight: float = 2,
) -> None:
    whole, limits = network(w, layers, width, experts), [loose, tight]
    for lengths in BOXES:
        moved = check(w, lengths, whole, limits)
    given = {"steps": len(limits), "mesh_axes": len(AXES), "itemsize": 8}
    report(w, given=given, **moved)


if __name__ == "__main__":
    with world() as w:
        main(w)
