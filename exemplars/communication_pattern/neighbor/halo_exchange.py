"""Halo exchange: neighbors swap borders, so a convolution sees no seam.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.neighbor.halo_exchange

An image is cut by rows. A convolution with a K x K kernel looks h = K // 2
rows beyond each row, and at the cut those belong to the neighbor:

    rank r-1   . . . . a a                    a: its last h rows
    rank r         a a . . . . . . b b
    rank r+1                       b b . . .  b: its first h rows

Each rank sends its first h rows up and its last h rows down, and convolves
its part together with what it received. Where there is no neighbor the image
ends, and zeros stand for what lies beyond, as in the convolution of the whole.

The traffic is a border, whatever the size of the parts and the number of
ranks. But a part must be at least as high as the halo, or the rows that a
neighbor needs would lie two ranks away.

    B images   C channels   H rows   W columns   h = rows of the halo

Source: Dryden et al. 2019; Kahira et al. 2021.
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from exemplars.runtime import World, meter, report, span, world


def with_halo(part_BCHW: Tensor, halo: int) -> Tensor:
    """My rows, and on both sides the neighbors' borders or zeros."""
    r, p = dist.get_rank(), dist.get_world_size()
    rows = part_BCHW.shape[2]
    if not 0 < halo <= rows:
        raise ValueError(f"a part of {rows} rows has no halo of {halo}")
    #: Copies: rows of one channel after another are not contiguous.
    top = part_BCHW[:, :, :halo].contiguous()
    bottom = part_BCHW[:, :, rows - halo :].contiguous()
    #: At the image's own border nothing arrives, and the zeros stay.
    above, below = torch.zeros_like(top), torch.zeros_like(bottom)
    #: First all borders go up, then all go down, in one batch: separately,
    #: each rank would wait for a neighbor that waits for its own.
    ops = [
        dist.P2POp(what, border, neighbor)
        for what, border, neighbor in (
            (dist.isend, top, r - 1),
            (dist.irecv, below, r + 1),
            (dist.isend, bottom, r + 1),
            (dist.irecv, above, r - 1),
        )
        if 0 <= neighbor < p
    ]
    with span("exchange"):
        for work in dist.batch_isend_irecv(ops) if ops else []:
            work.wait()
    return torch.cat([above, part_BCHW, below], dim=2)


def convolve(part_BCHW: Tensor, kernel: Tensor) -> Tensor:
    """My rows of the convolution of the whole image."""
    #: An odd kernel is symmetric about its middle: half of it hangs over.
    halo = kernel.shape[-1] // 2
    whole = with_halo(part_BCHW, halo)
    with span("convolve", cost=1):
        #: Rows are already there; only the columns are padded here.
        return F.conv2d(whole, kernel, padding=(0, halo))


def reference(w: World, image: Tensor, kernel: Tensor) -> Tensor:
    """The whole image on one process; of it, this rank's rows."""
    whole = F.conv2d(image, kernel, padding="same")
    return whole.tensor_split(w.size, dim=2)[w.rank]


def main(
    w: World,
    *,
    batch: int = 2,
    channels: int = 3,
    rows: int = 131,
    columns: int = 40,
    kernel: int = 5,
) -> None:
    odd = f"kernel = {kernel}: must be odd, and 3 or more"
    w.require(kernel % 2 == 1 and kernel > 1, odd)
    most = rows // (kernel // 2)
    thin = f"{w.size} ranks for {rows} rows: parts thinner than the halo "
    w.require(w.size <= most, thin + f"of {kernel // 2}; use at most {most}")
    #: 131 rows, a prime: no number of ranks divides it, parts are uneven.
    image = w.randn(batch, channels, rows, columns, seed=0)
    weight = w.randn(4, channels, kernel, kernel, seed=0)
    part = image.tensor_split(w.size, dim=2)[w.rank]
    with meter() as moved:
        y = convolve(part, weight)
    #: Each value is one sum of C x K x K products, in whatever order the
    #: convolution takes them: close, and not equal to the bit.
    w.check("values", y, lambda: reference(w, image, weight), slack=16)
    given = {"itemsize": image.element_size()}
    report(w, given=given, bytes_sent=moved.bytes_sent)


if __name__ == "__main__":
    with world() as w:
        main(w)
