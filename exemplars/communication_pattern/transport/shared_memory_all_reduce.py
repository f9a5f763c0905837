"""All-reduce in shared memory: the ranks of a host sum in one mapped file.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.transport.shared_memory_all_reduce

All ranks of a host map the same file. It has a row for each rank and one
more for the result:

    1 write   each rank copies its tensor into its row
    2 sum     each rank adds up, over all rows, its own chunk of columns
    3 read    each rank copies the result out

with a barrier between any two, since nobody may read what is still being
written. No tensor goes through a socket: a message between processes of one
host is copied into the kernel and out again; here both see the same page.

Every chunk is added by one rank, row after row: the result is the same to
the bit as on one process, whatever the number of ranks.

The file is unlinked as soon as all have mapped it, so nothing is left behind
even if a rank dies. A tensor on an accelerator is copied through the host.

Source: Jain et al. 2018, without their pipelining.
"""

import os
import secrets
import shutil
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world

#: A file system in memory, where there is one.
MEMORY = Path("/dev/shm")  # noqa: S108 (names in it are random)
FOLDER = MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir())


def agreed_file(device: torch.device) -> Path:
    """A path that all ranks of this host know and nobody else."""
    #: Rank 0 draws a name that nobody can guess, and tells the others.
    name = torch.tensor([secrets.randbits(62)], device=device)
    dist.broadcast(name, src=0)
    return FOLDER / f"atlas-{name.item()}"


def shared_rows(file: Path, like: Tensor) -> Tensor:
    """A table that all ranks see: a row for each, and one for the result."""
    count, size = dist.get_world_size() + 1, like.numel()
    try:
        flat = torch.from_file(
            str(file), shared=True, size=count * size, dtype=like.dtype
        )
        #: Nobody unlinks what another rank has still to open.
        dist.barrier()
    finally:
        #: The memory lives on while it is mapped; the name is gone.
        file.unlink(missing_ok=True)
    return flat.view(count, size)


def all_reduce(x: Tensor, rows: Tensor) -> None:
    """Sum x over all ranks, in place; the last row is for the result."""
    r, p = dist.get_rank(), dist.get_world_size()
    with span("write", cost=1):
        rows[r].copy_(x.flatten())
    dist.barrier()
    with span("sum", label=f"chunk {r}", cost=1):
        #: Ranks share the work by columns: no two write the same element,
        #: so no lock is needed.
        every = rows.tensor_split(p, dim=1)[r]
        result = every[p]
        result.copy_(every[0])
        for row in every[1:p]:
            result.add_(row)
    #: The result is complete only when the last chunk is.
    dist.barrier()
    with span("read", cost=1):
        x.copy_(rows[p].view_as(x))


def reference(w: World, elements: int) -> Tensor:
    """The same additions on one process."""
    total = w.randn(elements, seed=0)
    for r in range(1, w.size):
        total += w.randn(elements, seed=r)
    return total


def main(w: World, *, elements: int = 100_003) -> None:
    here = int(os.environ.get("LOCAL_WORLD_SIZE", w.size))
    hosts = f"{w.size} ranks, {here} of them here: they share no memory; "
    w.require(here == w.size, hosts + f"start all on one host, say {here}")
    #: A prime: no number of ranks divides it, so the chunks are uneven.
    x = w.randn(elements, seed=w.rank)
    file = agreed_file(w.device)
    mapped = (w.size + 1) * elements * x.element_size()
    free = shutil.disk_usage(file.parent).free
    room = f"{mapped} bytes to share, {free} free in {file.parent}"
    w.require(w.dry or mapped <= free, f"{room}: use fewer elements")
    rows = shared_rows(file, x)
    left = int(file.exists())
    file.unlink(missing_ok=True)  # should a mistake have left it
    with meter() as moved:
        all_reduce(x, rows)
    w.check("sum", x, lambda: reference(w, elements), slack=0)
    w.check_same("same", x)
    given = {"itemsize": x.element_size()}
    found = {"left": left, "mapped": rows.numel() * rows.element_size()}
    sent = moved.bytes_sent + moved.payload
    report(w, given=given, sent=sent, barriers=moved.count, **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
