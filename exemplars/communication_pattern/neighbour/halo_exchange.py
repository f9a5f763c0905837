"""Halo exchange: neighbours swap borders, so a convolution sees no seam.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.neighbour.halo_exchange

Source: Dryden et al. 2019; Kahira et al. 2021.

An image is cut by rows. A convolution with a K x K kernel looks h = K // 2
rows beyond each row, and at the cut those belong to the neighbour:

    rank r-1   . . . . a a                    a: its last h rows
    rank r         a a . . . . . . b b
    rank r+1                       b b . . .  b: its first h rows

Each rank sends its first h rows up and its last h rows down, and convolves
its part with what it got. Where there is no neighbour the image ends, and
zeros stand for what lies beyond, as in the convolution of the whole.

The traffic is a border, whatever the size of the parts and the number of
ranks. But a part must be at least as high as the halo, or the rows that a
neighbour needs would lie two ranks away.

    B images   C channels   H rows   W columns   h = rows of the halo
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from exemplars.runtime import World, meter, report, span, world

IMAGES, CHANNELS, ROWS, COLUMNS = 2, 3, 131, 40  # 131 rows: uneven parts
KERNEL = 5
HALO = KERNEL // 2


def with_halo(part_BCHW: Tensor) -> Tensor:
    """My rows, and on both sides the neighbours' borders or zeros."""
    r, p = dist.get_rank(), dist.get_world_size()
    top, bottom = part_BCHW[:, :, :HALO], part_BCHW[:, :, -HALO:]
    above, below = torch.zeros_like(top), torch.zeros_like(bottom)
    #: First all borders go up, then all go down, in one batch: separately,
    #: each rank would wait for a neighbour that waits for its own.
    ops = [
        dist.P2POp(what, border, neighbour)
        for what, border, neighbour in (
            (dist.isend, top.contiguous(), r - 1),
            (dist.irecv, below, r + 1),
            (dist.isend, bottom.contiguous(), r + 1),
            (dist.irecv, above, r - 1),
        )
        if 0 <= neighbour < p
    ]
    with span("exchange"):
        for work in dist.batch_isend_irecv(ops) if ops else []:
            work.wait()
    return torch.cat([above, part_BCHW, below], dim=2)


def convolve(part_BCHW: Tensor, kernel: Tensor) -> Tensor:
    """My rows of the convolution of the whole image."""
    whole = with_halo(part_BCHW)
    with span("convolve", cost=part_BCHW.shape[2] / ROWS):
        #: Rows are already there; only the columns are padded here.
        return F.conv2d(whole, kernel, padding=(0, HALO))


def reference(w: World, image: Tensor, kernel: Tensor) -> Tensor:
    """The whole image on one process; of it, this rank's rows."""
    whole = F.conv2d(image, kernel, padding=HALO)
    return whole.tensor_split(w.size, dim=2)[w.rank]


def main(w: World) -> None:
    most = ROWS // HALO
    thin = f"{w.size} ranks for {ROWS} rows: parts thinner than the halo "
    w.require(w.size <= most, thin + f"of {HALO}; use at most {most}")
    image = w.randn(IMAGES, CHANNELS, ROWS, COLUMNS, of_rank=0)
    kernel = w.randn(4, CHANNELS, KERNEL, KERNEL, of_rank=0)
    part = image.tensor_split(w.size, dim=2)[w.rank]
    with meter() as moved:
        y = convolve(part, kernel)
    # Each value is one sum of C x K x K products, in an order of its own.
    w.check("values", y, lambda: reference(w, image, kernel), slack=16)
    row = IMAGES * CHANNELS * COLUMNS
    given = {"k": KERNEL, "a": row, "h": ROWS, "b": 8}
    report(w, given=given, bytes_sent=moved.bytes_sent, ranks=w.size)


if __name__ == "__main__":
    with world() as w:
        main(w)
