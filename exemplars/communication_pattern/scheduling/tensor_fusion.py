"""Tensor fusion: many small tensors travel as a few large ones.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.scheduling.tensor_fusion

Source: Sergeev and Del Balso 2018 (Horovod); Li et al. 2020.

A network has many small gradients, and every all-reduce costs a fixed time,
its latency, however little it moves. So copy tensors side by side into a
buffer until the next does not fit, reduce the buffer, copy them out again:

    u tensors, f in a buffer        calls    bytes     time
    one by one                      u        N         u latency + N / speed
    fused                           u / f    N         u/f latency + N / speed

The bytes are the same and so is the sum; what is saved is latency, once for
every call that is not made. What is paid are two copies in local memory, and
waiting: a buffer can leave only when its last tensor is there.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world

TENSORS, SIZE = 50, 1001  # 50 gradients of 1001 elements
BUFFER = 8192  # elements: room for 8 of them


def one_by_one(tensors: list[Tensor]) -> None:
    """Sum each tensor over all ranks, in place."""
    for i, t in enumerate(tensors):
        with span("one by one", label=i):
            dist.all_reduce(t)


def fused(tensors: list[Tensor]) -> None:
    """The same through a buffer."""
    buffer = tensors[0].new_empty(BUFFER)
    for i, group in enumerate(fitting(tensors)):
        sizes = [t.numel() for t in group]
        with span("fused", label=i):
            used = torch.cat(group, out=buffer[: sum(sizes)])
            dist.all_reduce(used)
            for t, summed in zip(group, used.split(sizes)):
                t.copy_(summed)


def fitting(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours that fit into the buffer together."""
    group, room = list[Tensor](), BUFFER
    for t in tensors:
        if t.numel() > room:
            yield group
            group, room = [], BUFFER
        group.append(t)
        room -= t.numel()
    yield group


def gradients(w: World, rank: int) -> list[Tensor]:
    """A rank's own, in the order in which backward makes them."""
    return list(w.randn(TENSORS, SIZE, of_rank=rank).unbind())


def reference(w: World) -> list[Tensor]:
    """The sums on one process."""
    every = [gradients(w, r) for r in range(w.size)]
    return [torch.stack(same).sum(0) for same in zip(*every)]


def main(w: World) -> None:
    alone, together = gradients(w, w.rank), gradients(w, w.rank)
    with meter() as single:
        one_by_one(alone)
    with meter() as moved:
        fused(together)
    # A tensor lies elsewhere in a longer one: its ranks add in another order.
    w.check("sum", together, lambda: reference(w), slack=1)
    w.check("single", together, lambda: alone, slack=1)
    w.check_same("same", together)
    counts = {"calls": moved.count, "saved": single.count - moved.count}
    bytes_ = {"payload": moved.payload, "payload_single": single.payload}
    given = {"u": TENSORS, "n": SIZE, "c": BUFFER, "b": 8}
    report(w, given=given, **counts, **bytes_)


if __name__ == "__main__":
    with world() as w:
        main(w)
