"""Mesh layout: which dimension of the tensors is split over which axis.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.hybrid.mesh_layout

Tensor dimensions have names, here b for batch, w for width, h for hidden, and
so have the axes of the mesh on which the ranks lie, rows and columns. A layout
says which dimension is split over which axis. It holds for all tensors:

    bw,wh->bh   hidden = relu(x first)
    bh,hw->bw   y = hidden second

    b on rows                 data parallelism
    h on rows                 tensor parallelism
    b on rows, h on columns   both

A product sums over the one name that its result does not have. If that
dimension is split, each rank has a term, and one all-reduce along the axis
adds them up. Otherwise there is nothing to send. The gradients of a product
are products of the same kind, so this one rule gives all communication.

The rule also gives the price. Each dimension is summed over in two of the six
products, forward and backward; split over n ranks, it costs two all-reduces,
each of the other two dimensions' parts:

    sent   for each split dimension, 4(n-1)/n * the parts of the other two
    held   for x, hidden and the weights, their sizes / the ranks of their axes

A layout is illegal if it splits two dimensions of one tensor over one axis:
a rank would have only a diagonal block, and nobody has the others. Of the 27
layouts of three dimensions on two axes, 13 are legal. DTensor is given the
same 13 as placements, and sends as many bytes under each.

Source: Shazeer et al. 2018 (Mesh-TensorFlow), and its README on layouts.
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from math import isqrt, lcm

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from exemplars.runtime import World, meter, report, span, world

#: The names of each tensor's dimensions: x, first, second, and the slope of y.
GIVEN = ("bw", "wh", "hw", "bw")
#: Hidden, y, and the gradients of x, first and second.
RESULTS = ("bh", "bw", "bw", "wh", "hw")
NAMES = {"b": "batch", "w": "width", "h": "hidden"}
AXES = ("rows", "columns")
Multiply = Callable[[str, Tensor, Tensor], Tensor]


class Layout:
    """Which dimension is split over which axis of the mesh."""

    def __init__(self, mesh: DeviceMesh, split: dict[str, str]) -> None:
        for names in (*GIVEN, *RESULTS):
            axes = [split[name] for name in names if name in split]
            if len(set(axes)) < len(axes):
                both = " and ".join(NAMES[name] for name in names)
                raise ValueError(f"{both} of one tensor, both on {axes[0]}")
        self.mesh, self.split = mesh, split

    def part(self, whole: Tensor, names: str) -> Tensor:
        """This rank's part of a tensor."""
        for i, name in enumerate(names):
            if name in self.split:
                #: Ranks that differ only along other axes have the same part.
                group = self.mesh.get_group(self.split[name])
                whole = whole.chunk(group.size(), i)[group.rank()]
        return whole.clone()

    def multiply(self, rule: str, a: Tensor, b: Tensor) -> Tensor:
        """The product of two tensors by the names of their dimensions."""
        factors, names = rule.split("->")
        with span("multiply", label=rule, cost=1):
            c = torch.einsum(rule, a, b)
        (summed,) = set(factors) - set(names) - {","}
        #: What is summed over, and split, is a term on every rank.
        if summed in self.split:
            dist.all_reduce(c, group=self.mesh.get_group(self.split[summed]))
        return c

    def placements(self, names: str) -> list[Placement]:
        """The same of one tensor, as torch says it: by axes, not by names."""
        dims = {self.split.get(name): i for i, name in enumerate(names)}
        return [Shard(dims[a]) if a in dims else Replicate() for a in AXES]

    def by_torch(self, rule: str, a: Tensor, b: Tensor) -> Tensor:
        """The same product by DTensor, which is told where to put it."""
        c = torch.einsum(rule, a, b)
        assert isinstance(c, DTensor)
        return c.redistribute(self.mesh, self.placements(rule[-2:]))


def step(multiply: Multiply, *given: Tensor) -> list[Tensor]:
    """Forward and backward; not a word about ranks."""
    x, first, second, dy = given
    hidden = multiply("bw,wh->bh", x, first).relu()
    y = multiply("bh,hw->bw", hidden, second)
    #: The same names, but another one is left out: so another axis sums.
    dsecond = multiply("bh,bw->hw", hidden, dy)
    dhidden = multiply("bw,hw->bh", dy, second) * (hidden > 0)
    dfirst = multiply("bw,bh->wh", x, dhidden)
    dx = multiply("bh,wh->bw", dhidden, first)
    return [hidden, y, dx, dfirst, dsecond]


def mesh_of(rows: int, columns: int, device: str) -> DeviceMesh:
    """All ranks in rows and columns, and a group for each line of them."""
    ranks = torch.arange(rows * columns).view(rows, columns)
    #: Along the axis of rows, the row differs and the column does not.
    sides = ranks.T.tolist(), ranks.tolist()
    lines = [dist.new_subgroups_by_enumeration(side)[0] for side in sides]
    return DeviceMesh.from_group(lines, device, ranks, mesh_dim_names=AXES)


def price(layout: Layout, sizes: list[int]) -> list[float]:
    """Bytes sent, bytes held: what the layout says before anything runs."""
    axes = [layout.split.get(name) for name in NAMES]
    ways = [layout.mesh[axis].size() if axis else 1 for axis in axes]
    b, w, h = (size // n for size, n in zip(sizes, ways))
    others = w * h, b * h, b * w
    sent = sum(4 * (n - 1) / n * face for n, face in zip(ways, others))
    return [8 * sent, 8 * (b * w + 2 * w * h + b * h)]


def reference(given: list[Tensor]) -> list[Tensor]:
    """One process: hidden, the output, and the gradients of all three."""
    *inputs, dy = (t.clone().requires_grad_() for t in given)
    hidden = (inputs[0] @ inputs[1]).relu()
    y = hidden @ inputs[2]
    grads = torch.autograd.grad(y, inputs, dy)
    return [hidden.detach(), y.detach(), *grads]


def run(w: World, layout: Layout, whole: list[Tensor]) -> list[float]:
    """One step under one layout; bytes sent, bytes held."""
    parts = [layout.part(t, names) for t, names in zip(whole, GIVEN)]
    with meter(shown=len(layout.split) == 2) as moved:
        ours = step(layout.multiply, *parts)
    placed = [
        DTensor.from_local(t, layout.mesh, layout.placements(names))
        for t, names in zip(parts, GIVEN)
    ]
    with meter(shown=False) as theirs:
        alike = step(layout.by_torch, *placed)
    local = [t.to_local() for t in alike if isinstance(t, DTensor)]
    own = [layout.part(t, n) for t, n in zip(reference(whole), RESULTS)]
    # Sums of terms instead of one long sum, through both layers.
    w.check("output", ours[:2], lambda: own[:2], slack=16)
    w.check("gradient", ours[2:], lambda: own[2:], slack=64)
    w.check("dtensor", local, lambda: own, slack=64)
    sent, by_them = (torch.tensor(float(m.wire)) for m in (moved, theirs))
    w.check("dtensor_bytes", by_them, lambda: sent, slack=0)
    #: All memory behind what backward needs: a view has that of the whole.
    kept = (t.untyped_storage().nbytes() for t in (*parts[:3], ours[0]))
    return [float(moved.wire), sum(kept)]


def main(
    w: World, *, batch: int = 12, width: int = 6, hidden: int = 24
) -> None:
    #: As nearly square as p allows, and at least as many rows as columns.
    columns = max(n for n in range(1, isqrt(w.size) + 1) if w.size % n == 0)
    rows = w.size // columns
    mesh = mesh_of(rows, columns, w.device.type)
    #: Rounded up: a layout splits evenly, whatever it puts on which axis.
    even = lcm(rows, columns)
    sizes = [-(-n // even) * even for n in (batch, width, hidden)]
    size = dict(zip(NAMES, sizes))
    shapes = [[size[name] for name in names] for names in GIVEN]
    whole = [w.randn(*shape, seed=i) for i, shape in enumerate(shapes)]
    measured = {"refused": 0.0}
    for axes in product((None, *AXES), repeat=len(NAMES)):
        split = {name: axis for name, axis in zip(NAMES, axes) if axis}
        try:
            layout = Layout(mesh, split)
        except ValueError:
            measured["refused"] += 1
            continue
        costs = run(w, layout, whole)
        predicted = partial(torch.tensor, price(layout, sizes))
        w.check("priced", torch.tensor(costs), predicted, slack=0)
        #: The others are these with rows and columns exchanged, and none.
        if tuple(layout.split.values()) in (AXES, AXES[:1]):
            words = "_".join(NAMES[name] for name in layout.split)
            measured[f"sent_{words}"], measured[f"held_{words}"] = costs
    grid = {"grid_rows": rows, "grid_columns": columns, "itemsize": 8}
    report(w, given={**dict(zip(NAMES.values(), sizes)), **grid}, **measured)


if __name__ == "__main__":
    with world() as w:
        main(w)
