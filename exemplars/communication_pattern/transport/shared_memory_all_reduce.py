"""All-reduce in shared memory: the ranks of a host sum in one mapped file.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.transport.shared_memory_all_reduce

Source: Jain et al. 2018, without their pipelining.

All ranks of a host map the same file. It has a row for each rank and one
more for the result:

    1 write   each rank copies its tensor into its row
    2 sum     each rank adds up, over all rows, its own chunk of columns
    3 read    each rank copies the result out

with a barrier between any two, since nobody may read what is still being
written. No tensor passes a socket: between processes of one host a message
is copied into the kernel and out again, here both see the same page.

Every chunk is added by one rank, row after row: the result is the same to
the bit as on one process, whatever the number of ranks.

The file is unlinked as soon as all have mapped it, so nothing is left behind
even if a rank dies. A tensor on an accelerator is copied through the host.
"""

import os
import secrets
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world

SIZE = 100_003  # prime: chunks are uneven


def shared_rows(w: World, count: int) -> Tensor:
    """A table that all ranks see: `count` rows of SIZE numbers, in memory."""
    #: Rank 0 draws a name that nobody can guess, and tells the others.
    name = torch.tensor([secrets.randbits(62)], device=w.device)
    dist.broadcast(name, src=0)
    #: A file system in memory, where there is one.
    memory = Path("/dev/shm")  # noqa: S108 (the name is random)
    folder = memory if memory.is_dir() else Path(tempfile.gettempdir())
    file = folder / f"atlas-{name.item()}"
    try:
        flat = torch.from_file(
            str(file), shared=True, size=count * SIZE, dtype=torch.double
        )
        dist.barrier()
    finally:
        file.unlink(missing_ok=True)  # it lives on while it is mapped
    return flat.view(count, SIZE)


def all_reduce(x: Tensor, rows: Tensor) -> None:
    """Sum x over all ranks, in place; the last row is for the result."""
    r, p = dist.get_rank(), dist.get_world_size()
    with span("write", cost=1):
        rows[r].copy_(x)
    dist.barrier()
    with span("sum", label=f"chunk {r}", cost=1):
        every = rows.tensor_split(p, dim=1)[r]
        result = every[p]
        result.copy_(every[0])
        for row in every[1:p]:
            result.add_(row)
    dist.barrier()
    with span("read", cost=1):
        x.copy_(rows[p])


def reference(w: World) -> Tensor:
    """The same additions on one process."""
    total = w.randn(SIZE, of_rank=0)
    for r in range(1, w.size):
        total += w.randn(SIZE, of_rank=r)
    return total


def main(w: World) -> None:
    here = int(os.environ.get("LOCAL_WORLD_SIZE", w.size))
    hosts = f"{w.size} ranks, {here} of them here: they share no memory; "
    w.require(here == w.size, hosts + f"start all on one host, say {here}")
    x, rows = w.randn(SIZE), shared_rows(w, w.size + 1)
    with meter() as moved:
        all_reduce(x, rows)
    w.check("sum", x, lambda: reference(w), slack=0)
    w.check_same("same", x)
    sent = moved.bytes_sent + moved.payload
    given = {"n": SIZE, "b": 8}
    mapped = rows.numel() * rows.element_size()
    report(w, given=given, sent=sent, barriers=moved.count, mapped=mapped)


if __name__ == "__main__":
    with world() as w:
        main(w)
