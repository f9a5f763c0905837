r"""Redistribute: from any placement of a tensor to any other, and its price.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.hybrid.redistribute

A matrix lies on p ranks in one of four placements:

    whole     every rank has all of it
    rows      rank r has the r-th part of the rows
    columns   rank r has the r-th part of the columns
    terms     every rank has a matrix of full size; their sum is meant

Code that is written for one placement can be handed a tensor in another, once
somebody moves it. One collective is enough for every pair of placements. What
each rank has to send of a matrix of N bytes, on p ranks:

    from \ to   whole              rows            columns         terms
    whole       -                  0, a cut        0, a cut        0
    rows        (p-1)/p N          -               (p-1)/p^2 N     0
    columns     (p-1)/p N          (p-1)/p^2 N     -               0
    terms       2(p-1)/p N         (p-1)/p N       (p-1)/p N       -

To give something up is free; to get it back is not. Going to terms is free
too: what is there stays, and everything else is zero, but a negative zero.
It alone changes no number that it is added to: 0 + -0 is 0, -0 + -0 is -0.

Source: Shazeer et al. 2018 (layouts); DTensor.redistribute (the collectives).
"""

from collections import defaultdict
from itertools import product

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn.functional import pad

from exemplars.runtime import World, meter, report, span, world

Shape = tuple[int, int]
DIM = {"rows": 0, "columns": 1}
NAMES = ("whole", *DIM, "terms")
#: The same four, as torch calls them.
TORCHS = dict(zip(NAMES, (Replicate(), Shard(0), Shard(1), Partial())))
ZERO = -0.0  # the one number that a sum does not notice


def redistribute(x: Tensor, shape: Shape, have: str, want: str) -> Tensor:
    """This rank's part in another placement of a matrix of this shape."""
    match have, want:
        case "whole", ("rows" | "columns"):
            return x[window(shape, DIM[want])]
        case "whole", "terms":
            #: The first rank's term is all of it. To divide by p would round.
            return x if dist.get_rank() == 0 else torch.full_like(x, ZERO)
        case (("rows" | "columns"), "terms"):
            full = x.new_full(shape, ZERO)
            full[window(shape, DIM[have])] = x
            return full
        case (("rows" | "columns"), "whole"):
            return gather(x, shape, DIM[have])
        case "terms", "whole":
            total = x.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total)
            return total
        case "terms", ("rows" | "columns"):
            return reduce_scatter(x, shape, DIM[want])
        case (("rows" | "columns"), ("rows" | "columns")) if have != want:
            return turn(x, shape, DIM[have], DIM[want])
    return x


def share(size: int) -> int:
    """Rows, or columns, of every part but the last ones, which may be less."""
    #: As torch.chunk cuts: 5 rows for 4 ranks are 2, 2, 1 and none.
    return -(-size // dist.get_world_size())


def window(shape: Shape, dim: int) -> tuple[slice, ...]:
    """Where this rank's part is in the whole."""
    length = share(shape[dim])
    own = slice(length * dist.get_rank(), length * (dist.get_rank() + 1))
    return (slice(None),) * dim + (own,)


def padded(x: Tensor, rows: int, columns: int) -> Tensor:
    """The matrix at the top left of a larger one."""
    #: Collectives want equal parts. What is added is cut off on arrival.
    return pad(x, (0, columns - x.shape[1], 0, rows - x.shape[0])).contiguous()


def gather(x: Tensor, shape: Shape, dim: int) -> Tensor:
    """Every part goes to every rank."""
    p, size = dist.get_world_size(), list(shape)
    size[dim] = share(shape[dim])
    every = x.new_empty(p * size[0], size[1])
    dist.all_gather_single(every, padded(x, *size))
    return torch.cat(every.chunk(p), dim)[: shape[0], : shape[1]]


def reduce_scatter(x: Tensor, shape: Shape, dim: int) -> Tensor:
    """Every part of the sum goes to its owner, and to nobody else."""
    p, size = dist.get_world_size(), list(shape)
    size[dim] = p * share(shape[dim])
    stacked = torch.cat(padded(x, *size).chunk(p, dim))
    own = stacked.new_empty(len(stacked) // p, stacked.shape[1])
    dist.reduce_scatter_single(own, stacked)
    return cropped(own, shape, dim)


def turn(x: Tensor, shape: Shape, have: int, want: int) -> Tensor:
    """A rank has 1/p of the matrix, and keeps 1/p of that."""
    p, size = dist.get_world_size(), list(shape)
    size[have], size[want] = share(shape[have]), p * share(shape[want])
    #: Block q of mine is for rank q. Only these two ever see it.
    blocks = torch.cat(padded(x, *size).chunk(p, want))
    arrived = torch.empty_like(blocks)
    dist.all_to_all_single(arrived, blocks)
    return cropped(torch.cat(arrived.chunk(p), have), shape, want)


def cropped(x: Tensor, shape: Shape, dim: int) -> Tensor:
    """This rank's part, without what padding has added to it."""
    length = len(range(shape[dim])[window(shape, dim)[dim]])
    return x.narrow(dim, 0, length)[: shape[0], : shape[1]]


def data(w: World, rank: int, shape: Shape) -> Tensor:
    """The term of one rank."""
    x = w.randn(*shape, seed=rank)
    # Sums that survive neither a plain zero nor a division: -0 and -5e-324.
    x[0] = x[0].abs() * (-0.0 if rank else -5e-324)
    return x


def reference(terms: list[Tensor], rank: int) -> dict[str, Tensor]:
    """The sum on one process, and one rank's parts of it by torch.chunk."""
    p, whole = len(terms), sum(terms[1:], terms[0])
    parts = {"whole": whole}
    for name, dim in DIM.items():
        none = [whole.narrow(dim, 0, 0)] * p
        parts[name] = [*whole.chunk(p, dim), *none][rank]
    return parts


def by_torch(w: World, x: Tensor, shape: Shape, have: str, want: str) -> float:
    """The same bits by DTensor; the bytes this rank has to send for them."""
    mesh = init_device_mesh(w.device.type, (w.size,))
    size, stride, at = torch.Size(shape), (shape[1], 1), [TORCHS[have]]
    placed = DTensor.from_local(x, mesh, at, shape=size, stride=stride)
    with meter(shown=False) as moved:
        there = placed.redistribute(mesh, [TORCHS[want]]).to_local()
    same = redistribute(x, shape, have, want)
    w.check("dtensor", there, lambda: same, slack=0)
    return moved.wire


def check(
    w: World, start: dict[str, Tensor], shape: Shape, have: str, want: str
) -> float:
    """There, back, and there again; the bytes of the first way."""
    with meter() as moved, span(f"{have} to {want}"):
        there = redistribute(start[have], shape, have, want)
    back = redistribute(there, shape, want, have)
    again = redistribute(back, shape, have, want)
    #: Only a sum rounds, once. Moved on, it keeps its bits.
    w.check("round_trip", again, lambda: there, slack=0)
    if have != "terms":
        w.check("round_trip", back, lambda: start[have], slack=0)
    seen = "whole" if want == "terms" else want
    value = redistribute(there, shape, want, seen)
    w.check("values", value, lambda: start[seen], slack=2)
    return moved.wire


def main(w: World, *, rows: int = 10, columns: int = 7) -> None:
    shape = (rows, columns)
    terms = [data(w, rank, shape) for rank in range(w.size)]
    start = {**reference(terms, w.rank), "terms": terms[w.rank]}
    ours: dict[str, float] = defaultdict(int)
    theirs: dict[str, float] = defaultdict(int)
    for have, want in product(NAMES, NAMES):
        free = have in ("whole", want) or want == "terms"
        name = "free" if free else f"{want}_from_{have}"
        ours[name] += check(w, start, shape, have, want)
        #: DTensor makes terms only for itself, and nobody can ask for them.
        if want != "terms":
            theirs[name] += by_torch(w, start[have], shape, have, want)
    turned = theirs.pop("rows_from_columns") + theirs.pop("columns_from_rows")
    alike = torch.tensor([ours[name] for name in theirs])
    sent = torch.tensor([*theirs.values()])
    w.check("dtensor_bytes", sent, lambda: alike, slack=0)
    report(w, given={"itemsize": 8}, dtensor_turned=turned, **ours)


if __name__ == "__main__":
    with world() as w:
        main(w)
