"""Two-dimensional tensor parallelism: every matrix in blocks over a grid.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.intra_layer.two_dimensional_tensor

Tensor parallelism cuts the weights, but each rank has the whole input of a
layer. Lay the ranks in a grid of R rows and C columns instead, and cut all
matrices both ways: weights, activations and gradients, a p-th each. A product
c = a b is then a sum over panels, columns of a times rows of b:

    for each panel t:   column t of a    broadcast along my row
                        row t of b       broadcast along my column
                        c block      +=  their product

                  b0      each rank holds a block of a, of b and of c, and
                  --      never has more than one panel of the others'
    c  =  a0 a1 * b1

Backward has two products of the same kind. There the panels of one factor are
broadcast, and those of the gradient are summed along the row or the column:

    da = dc bT   broadcast rows of b,     reduce columns of da
    db = aT dc   broadcast columns of a,  reduce rows of db

A rank hands over 1/R of a and 1/C of b in each product: on a square grid this
falls with the root of p, while an all-reduce of c stays what it is.

Source: Xu et al. 2021 (Optimus), section 3; SUMMA: van de Geijn, Watts 1997.
"""

from dataclasses import dataclass
from math import isqrt, lcm
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from exemplars.runtime import World, meter, report, span, world


@dataclass
class Line:
    """The ranks of my row or column; they share the panels of a matrix."""

    group: Any
    dim: int  # of the matrix, which panels cut
    place: int  # mine in this line
    share: int  # panels of each rank

    def spread(self, block: Tensor, panel: int) -> Tensor:
        """A panel of the line's blocks, for all of its ranks."""
        owner, index = divmod(panel, self.share)
        part = block.chunk(self.share, self.dim)[index]
        #: A copy of mine, which for all but the owner is only room.
        part = part.clone(memory_format=torch.contiguous_format)
        dist.broadcast(part, group=self.group, group_src=owner)
        return part

    def collect(self, term: Tensor, block: Tensor, panel: int) -> None:
        """Sum the ranks' terms of a panel into the block of its owner."""
        owner, index = divmod(panel, self.share)
        dist.reduce(term, group=self.group, group_dst=owner)
        #: The sum is the owner's. What the others have left is no result.
        if self.place == owner:
            block.chunk(self.share, self.dim)[index].copy_(term)


class Grid:
    """All ranks in rows and columns."""

    def __init__(self, rows: int, panels: int) -> None:
        r, p = dist.get_rank(), dist.get_world_size()
        self.rows, self.columns = rows, p // rows
        self.panels = panels
        ranks = torch.arange(p).view(self.rows, self.columns)
        across, _ = dist.new_subgroups_by_enumeration(ranks.tolist())
        down, _ = dist.new_subgroups_by_enumeration(ranks.T.tolist())
        row, column = divmod(r, self.columns)
        self.across = Line(across, 1, column, panels // self.columns)
        self.down = Line(down, 0, row, panels // self.rows)

    def block(self, whole: Tensor) -> Tensor:
        """My part of a matrix."""
        rows = whole.chunk(self.rows)[self.down.place]
        #: A view would keep all of the matrix alive.
        return rows.chunk(self.columns, 1)[self.across.place].clone()


class Product(torch.autograd.Function):
    """Of two matrices, of which each rank has a block."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, grid: Grid) -> Tensor:
        #: Blocks are kept, panels are not: backward asks for them again.
        ctx.save_for_backward(a, b)
        ctx.grid = grid
        c = a.new_zeros(len(a), b.shape[1])
        for t in range(grid.panels):
            left, top = grid.across.spread(a, t), grid.down.spread(b, t)
            with span("multiply", label=t, cost=1):
                c += left @ top
        return c

    @staticmethod
    def backward(ctx: Any, dc: Tensor) -> tuple[Tensor, Tensor, None]:
        (a, b), grid = ctx.saved_tensors, ctx.grid
        da, db = torch.empty_like(a), torch.empty_like(b)
        for t in range(grid.panels):
            left, top = grid.across.spread(a, t), grid.down.spread(b, t)
            with span("back", label=t, cost=2):
                term_a, term_b = dc @ top.T, left.T @ dc
            #: Each rank of my row has seen other columns of dc.
            grid.across.collect(term_a, da, t)
            grid.down.collect(term_b, db, t)
        return da, db, None


def reference(matrices: list[Tensor], dy: Tensor) -> list[Tensor]:
    """One process with whole matrices: output, gradients of all three."""
    x, up, down = inputs = [m.detach().requires_grad_() for m in matrices]
    y = F.gelu(x @ up) @ down
    return [y.detach(), *torch.autograd.grad(y, inputs, dy)]


def run(
    w: World, grid: Grid, whole: list[Tensor], dy: Tensor
) -> dict[str, int]:
    """Two layers forward and backward in blocks, compared with one process."""
    x, up, down = blocks = [grid.block(m).requires_grad_() for m in whole]
    grads: list[Tensor] = []
    state = {"parameters": lambda: [up, down], "gradients": lambda: grads}
    memory = w.memory(inputs=lambda: [x], **state)
    with memory, meter() as moved:
        y = Product.apply(F.gelu(Product.apply(x, up, grid)), down, grid)
        grads += torch.autograd.grad(y, blocks, grid.block(dy))
    truth = [] if w.dry else [grid.block(m) for m in reference(whole, dy)]
    # Sums of panels instead of one long sum, through both layers.
    w.check("output", y, lambda: truth[0], slack=16)
    w.check("gradients", grads, lambda: truth[1:], slack=64)
    held, kept = memory.peak["parameters"], memory.peak["activations"]
    sent = {"calls": moved.count, "payload": moved.payload}
    return {**sent, "held": held, "activations": kept}


def main(
    w: World,
    *,
    tokens: int = 16,
    width: int = 8,
    hidden: int = 24,
    thinner: int = 2,  # panels of each rank on a square grid
) -> None:
    #: As nearly square as p allows: then a rank hands over least.
    rows = max(n for n in range(1, isqrt(w.size) + 1) if w.size % n == 0)
    columns = w.size // rows
    #: Both lines of the grid share them. Many thin panels need less room.
    panels = thinner * lcm(rows, columns)
    #: Rounded up, so that all panels of a matrix are equal.
    tokens, width, hidden = (
        -(-n // panels) * panels for n in (tokens, width, hidden)
    )
    shapes = (tokens, width), (width, hidden), (hidden, width), (tokens, width)
    *whole, dy = (w.randn(*s, seed=i) for i, s in enumerate(shapes))
    measured = run(w, Grid(rows, panels), whole, dy)
    given = {"tokens": tokens, "width": width, "hidden": hidden, "itemsize": 8}
    given |= {"grid_rows": rows, "grid_columns": columns, "panels": panels}
    report(w, given=given, **measured)


if __name__ == "__main__":
    with world() as w:
        main(w)
