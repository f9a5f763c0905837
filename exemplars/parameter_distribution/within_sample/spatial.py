"""Spatial parallelism: every rank has some rows of each sample, all weights.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.within_sample.spatial

Cut each sample by rows (in 3-D, by depth). A convolution looks a little way
beyond its own rows, and those few rows, the halo, come from the neighbors:

    forward    rows of x at the cuts             to both neighbors
    backward   what they contributed to dx       back to where they came from
    at last    dw, from own rows only            all-reduce, as with data

Windows of K rows that advance by s rows overlap by K - s: that is what the
neighbors exchange, however many rows each of them has.

With strides, all ranks must stay in step: cuts lie where a row of the smallest
map begins, and each rank needs at least one of its rows. A batch norm needs
the mean over all rows: its 2C + 1 sums are added up, forward and backward.

Source: Dryden et al. 2019; Kahira et al. 2021.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import P2POp, irecv, isend
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import (
    ROWS,
    Norm,
    Pass,
    cnns,
    images,
    passes,
    row_sizes,
)

Group = dist.ProcessGroup | None  # None: all ranks
Swap = Callable[[Tensor, Tensor], Sequence[Tensor]]


def own_rows(t: Tensor, part: int, parts: int, map_rows: int = ROWS) -> Tensor:
    """One part of a map's rows, cut between rows of the smallest map."""
    #: A row of the smallest map stands for 1, 2 or 4 rows of a larger one.
    step = -(-t.shape[2] // map_rows)
    rows = step * torch.arange(map_rows).tensor_split(parts)[part]
    return t[:, :, rows[0] : rows[-1] + step].contiguous()


def swap(up: Tensor, down: Tensor, group: Group = None) -> list[Tensor]:
    """Send to both neighbors; what the one above sent, and the one below."""
    ranks, place = dist.get_process_group_ranks(group), dist.get_rank(group)
    #: The first rank has nobody above, the last nobody below: zeros stay.
    above, below = torch.zeros_like(down), torch.zeros_like(up)
    messages = []
    if place > 0:
        upper = ranks[place - 1]
        messages += [P2POp(isend, up, upper), P2POp(irecv, above, upper)]
    if place < len(ranks) - 1:
        lower = ranks[place + 1]
        messages += [P2POp(irecv, below, lower), P2POp(isend, down, lower)]
    #: A window that moves by 2 looks only upward: half its halos are empty.
    messages = [m for m in messages if m.tensor.numel() > 0]
    #: In one batch: one by one, each rank would wait for its neighbor.
    for work in dist.batch_isend_irecv(messages) if messages else []:
        work.wait()
    return [above, below]


class Halo(torch.autograd.Function):
    """The neighbors' rows forward; their gradients return backward."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, above: int, below: int, swap: Swap
    ) -> Tensor:
        ctx.sizes, ctx.swap = (above, x.shape[2], below), swap
        first, last = x[:, :, :below], x[:, :, x.shape[2] - above :]
        with span("halo"):
            before, after = swap(first.contiguous(), last.contiguous())
        return torch.cat([before, x, after], dim=2)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None, None, None]:
        above, rows, below = ctx.sizes
        up, dx, down = (t.contiguous() for t in d.split(ctx.sizes, dim=2))
        #: A borrowed row was read here too: its gradient goes home.
        with span("halo"):
            from_above, from_below = ctx.swap(up, down)
        dx[:, :, :below] += from_above
        dx[:, :, rows - above :] += from_below
        return dx, None, None, None


class Spatial(nn.Module):
    """A convolution of this rank's rows, and of what lies just beyond."""

    def __init__(self, whole: nn.Module, swap: Swap = swap) -> None:
        super().__init__()
        if not isinstance(whole, nn.Conv2d | nn.Conv3d):
            raise ValueError(f"{whole}: not a convolution")
        (kernel, *_), (stride, *_) = whole.kernel_size, whole.stride
        self.above, odd = divmod(kernel, 2)
        if not odd or whole.padding[0] != self.above or whole.dilation[0] != 1:
            raise ValueError(f"{whole}: rows need an odd kernel, half padded")
        self.whole, self.swap = whole, swap
        self.below = max(0, self.above + 1 - stride)
        #: What padding was for rows is now the halo, or the zeros at an end.
        whole.padding = (0, *whole.padding[1:])

    def forward(self, x: Tensor) -> Tensor:
        x = Halo.apply(x, self.above, self.below, self.swap)
        #: A strided window that begins on the last row of all ends beyond it.
        zeros = torch.zeros_like(x[:, :, : self.above - self.below])
        x = torch.cat([x, zeros], dim=2)
        with span("convolve", cost=1):
            return self.whole(x)


class Sum(torch.autograd.Function):
    """Sums over all ranks, which all use: their gradient is summed too."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        total = t.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, dt: Tensor) -> Tensor:
        total = dt.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


def agree(grads: list[Tensor]) -> None:
    """Add up what all rows of all samples contribute to the gradients."""
    vector = parameters_to_vector(grads)
    dist.all_reduce(vector)
    vector_to_parameters(vector, grads)


def reference(w: World, samples: list[Tensor], part: int, parts: int) -> Pass:
    """The whole networks on one process; of their maps, one part's rows."""
    found = passes(cnns(w.device), samples)

    def own(t: Tensor) -> Tensor:
        bands = t.split(-(-t.shape[2] // ROWS), dim=2)
        which = torch.arange(ROWS).tensor_split(parts)[part].tolist()
        return torch.cat([bands[i] for i in which], dim=2)

    activations, dx = map(own, found.activations), map(own, found.dx)
    return found._replace(activations=[*activations], dx=[*dx])


def main(w: World, *, batch: int = 2) -> None:
    w.require(w.size <= ROWS, f"{w.size} ranks for {ROWS} rows: too many")
    nets = cnns(w.device, Spatial, lambda whole: Norm(whole, Sum.apply))
    samples = images(w, batch)
    learned = [t for net in nets for t in net.parameters()]
    grads: list[Tensor] = []
    memory = w.memory(parameters=lambda: learned, gradients=lambda: grads)
    with memory, meter() as moved:
        found = passes(nets, [own_rows(x, w.rank, w.size) for x in samples])
        grads.extend(found.dw + found.dn)
        agree(grads)
    serial = None if w.dry else reference(w, samples, w.rank, w.size)
    for claim, value in found._asdict().items():
        # Sums in another order, through up to 13 layers and their norms.
        w.check(claim, value, partial(getattr, serial, claim), slack=128)
    given = {**row_sizes(), "map_rows": ROWS, "itemsize": 8}
    rows = found.activations[-1].shape[2]
    sent = {"halo": moved.bytes_sent, "messages": moved.calls["send"].count}
    added = {"sums": moved.count, "summed": moved.payload}
    report(w, given=given, rows=rows, **sent, **added)


if __name__ == "__main__":
    with world() as w:
        main(w)
