"""Tensor fusion: many small tensors travel as a few large ones.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.scheduling.tensor_fusion

A network has many small gradients, and every all-reduce costs a fixed time,
its latency, however little it moves. So copy tensors side by side into a
buffer until the next does not fit, reduce the buffer, copy them out again:

    u tensors, f in a buffer        calls    bytes     time
    one by one                      u        N         u latency + N / speed
    fused                           u / f    N         u/f latency + N / speed

The bytes are the same and so is the sum; what is saved is latency, once for
every call that is not made. The price is two copies in local memory, and
waiting: a buffer can leave only when its last tensor is there.

Source: Sergeev and Del Balso 2018 (Horovod); Li et al. 2020.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world


def fused(tensors: Sequence[Tensor], *, bucket: int) -> None:
    """Sum each tensor over all ranks, in place, through a shared buffer."""
    kinds = {t.dtype for t in tensors}
    if len(kinds) > 1:
        raise ValueError(f"{kinds}: one buffer holds one type; call once each")
    for i, group in enumerate(fitting(tensors, bucket)):
        with span("fused", label=i):
            #: The first copy: side by side, whatever their shapes.
            buffer = torch.cat([t.reshape(-1) for t in group])
            #: Only as much as is filled travels: not a byte more than one
            #: by one, in one call instead of many.
            dist.all_reduce(buffer)
            #: The second copy: each sum back to where its tensor lies.
            sums = buffer.split([t.numel() for t in group])
            for t, summed in zip(group, sums):
                t.copy_(summed.view_as(t))


def fitting(tensors: Sequence[Tensor], bucket: int) -> Iterator[list[Tensor]]:
    """Neighbors that fit into the buffer together; a larger one goes alone."""
    group: list[Tensor] = []
    room = bucket
    for t in tensors:
        #: Neighbors, in the order in which backward makes them: the first
        #: buffer can leave while later gradients are still computed.
        if group and t.numel() > room:
            yield group
            group = []
            room = bucket
        group.append(t)
        room -= t.numel()
    #: The last group is rarely full, and must leave all the same.
    if group:
        yield group


def one_by_one(tensors: Sequence[Tensor]) -> None:
    """The other way: a call for each tensor."""
    for i, t in enumerate(tensors):
        with span("one by one", label=i):
            dist.all_reduce(t)


def gradients(w: World, units: int, elements: int, seed: int) -> list[Tensor]:
    """One rank's, in the order in which backward makes them."""
    return list(w.randn(units, elements, seed=seed).unbind())


def reference(w: World, units: int, elements: int) -> list[Tensor]:
    """The sums on one process."""
    every = [w.randn(units, elements, seed=r) for r in range(w.size)]
    return list(torch.stack(every).sum(0))


def main(
    w: World, *, units: int = 30, elements: int = 1001, bucket: int = 8008
) -> None:
    #: Eight tensors fill the buffer to its last element: a ninth must not
    #: be let in, and the eighth must not be kept out.
    alone = gradients(w, units, elements, seed=w.rank)
    together = gradients(w, units, elements, seed=w.rank)
    with meter() as single:
        one_by_one(alone)
    with meter() as moved:
        fused(together, bucket=bucket)
    # A tensor lies elsewhere in a longer one: its ranks add in another order.
    w.check("sum", together, lambda: reference(w, units, elements), slack=1)
    w.check("single", together, lambda: alone, slack=1)
    w.check_same("same", together)
    counts = {"calls": moved.count, "saved": single.count - moved.count}
    payloads = {"payload": moved.payload, "payload_single": single.payload}
    given = {"itemsize": alone[0].element_size()}
    report(w, given=given, **counts, **payloads)


if __name__ == "__main__":
    with world() as w:
        main(w)
