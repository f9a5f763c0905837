"""Decomposed overlap: a product starts before all of its input has arrived.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.scheduling.decomposed_overlap

In tensor parallelism with sharded tokens, an all-gather collects the tokens
for a product, and another product is followed by a reduce-scatter. Each waits
for the other, so nothing overlaps. But rows of a product do not depend on one
another: cut it into p partial products, one for each rank's tokens. While one
is computed, the tokens of the next travel round a ring.

    gather and product              product and scatter
    compute  | x0 W | x3 W | x2 W   compute  | y3 W | y2 W | y1 W
    network  | x3 . | x2 . |        network         | sum3 | sum2 |

On the left, rank 0 multiplies its own tokens while those of its neighbor
arrive. On the right, it sends the partial sum for rank 3 while it computes
what it will add to the partial sum for rank 2. The bytes are those of an
all-gather and a reduce-scatter by ring: (p - 1)/p of the tokens each.

If a message takes one second and a partial product t, a rank waits for
max(0, 1 - t) per message instead of 1. The backward pass of either is the
other one.

Source: Wang et al. 2023.
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, alike, meter, report, span, world


def gather_product(x: Tensor, weight: Tensor, cost: float) -> Tensor:
    """The tokens of all ranks, times a weight."""
    r, p = dist.get_rank(), dist.get_world_size()
    products: list[Tensor] = [x] * p
    for i in range(p):
        coming = torch.empty_like(x)
        #: The tokens are sent on before they are used: sending only reads
        #: them, as the product does.
        works = pass_right(x, coming) if i < p - 1 else []
        of = (r - i) % p
        with span("product", label=of, cost=cost):
            products[of] = x @ weight
        #: Waited for only now, when the product is done.
        for work in works:
            work.wait()
        x = coming
    return torch.cat(products)


def product_scatter(y: Tensor, weight: Tensor, cost: float) -> Tensor:
    """The sum of all ranks' products; of its tokens, this rank's."""
    r, p = dist.get_rank(), dist.get_world_size()
    tokens = y.chunk(p)
    #: The sum for rank r - 1 has the longest way to go, so it begins.
    with span("product", label=(r - 1) % p, cost=cost):
        total = tokens[r - 1] @ weight
    for i in range(2, p + 1):
        coming = torch.empty_like(total)
        works = pass_right(total, coming)
        of = (r - i) % p
        #: What this rank adds to the sum that is on its way.
        with span("product", label=of, cost=cost):
            own = tokens[of] @ weight
        for work in works:
            work.wait()
        total = coming + own
    return total


def pass_right(outgoing: Tensor, incoming: Tensor) -> list[dist.Work]:
    """Begin to send right and to receive from the left."""
    r, p = dist.get_rank(), dist.get_world_size()
    #: One batch: as two separate calls, NCCL would run them in order and
    #: every rank would wait in its send.
    pair = [
        dist.P2POp(dist.isend, outgoing, (r + 1) % p),
        dist.P2POp(dist.irecv, incoming, (r - 1) % p),
    ]
    return dist.batch_isend_irecv(pair)


def reference(w: World, tokens: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Both layers on one process; of the tokens, this rank's."""
    return (torch.tanh(tokens @ up) @ down).chunk(w.size)[w.rank]


def early(events: list[Any]) -> int:
    """Products that began while a message was still on its way."""
    awaited = {e.of for e in events if e.kind == "wait"}
    under_way, count = 0, 0
    for i, e in enumerate(events):
        under_way += i in awaited
        under_way -= e.kind == "wait"
        count += e.name == "product" and under_way > 0
    return count


def main(
    w: World,
    *,
    local_batch: int = 12,
    width: int = 24,
    hidden: int = 40,
    product: float = 0.75,
) -> None:
    tokens = w.randn(w.size * local_batch, width, seed=0)
    up, down = w.randn(width, hidden, seed=1), w.randn(hidden, width, seed=2)
    #: Columns of one weight and rows of the other: tanh is element-wise, so
    #: each rank has its own part of the hidden layer.
    mine = up.tensor_split(w.size, 1)[w.rank]
    theirs = down.tensor_split(w.size)[w.rank]
    x = tokens.chunk(w.size)[w.rank].contiguous()
    with meter() as gathering:
        y = gather_product(x, mine, product)
    with meter() as scattering:
        z = product_scatter(torch.tanh(y), theirs, product)
    # A dot product may be summed in another order: width and hidden roundings.
    w.check("gathered", y, lambda: tokens @ mine, slack=width)
    truth = partial(reference, w, tokens, up, down)
    w.check("scattered", z, truth, slack=hidden)
    halves = (gathering.events, scattering.events)
    report(
        w,
        given={"itemsize": x.element_size()},
        early=sum(early(events) for events in halves),
        exposed=sum(alike(events).exposed[0] for events in halves),
        gather_bytes=gathering.bytes_sent,
        scatter_bytes=scattering.bytes_sent,
    )


if __name__ == "__main__":
    with world() as w:
        main(w)
