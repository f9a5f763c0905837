"""In-network aggregation: a switch adds up what passes through its slots.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.star.in_network_aggregation

Rank 0 plays a switch. The other ranks, its workers, hold one vector each, cut
into packets. The switch has memory for only a few packets, its pool of slots:

    worker    sends as many packets as there are slots; then, for each sum
              that comes back, the packet that uses the same slot next
    switch    slot i % slots holds packet i: adds one packet from each worker,
              sends the sum to all workers, and is free for packet i + slots

A worker sends its n elements once and receives n, where a ring all-reduce has
it send nearly 2 n. Packets in flight, and with them the memory of the switch,
never exceed the pool, however large n is.

A rank cannot multicast: as a switch it sends p - 1 copies of every sum. On a
network the switch makes the copies, and each link carries n elements each way.

Such switches add whole numbers only, so workers multiply by a scale and round.
The sum of these numbers is exact, and the same in any order.

Source: Sapio et al. 2021.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, world


def serve(like: Tensor, packet: int, slots: int) -> Tensor:
    """The switch: returns its pool, which is all that it remembers."""
    #: The only tensors of the switch: whatever the length of the vectors,
    #: the pool, one packet that arrives and one that leaves.
    pool = like.new_zeros(slots, packet)
    arrived, outgoing = like.new_zeros(packet), like.new_zeros(packet)
    lengths = [len(part) for part in like.split(packet)]
    for i in range(-slots, len(lengths)):
        #: Packet i + slots takes the slot of packet i, as soon as its sum
        #: has left: the number alone says which, without a table.
        slot, ahead = pool[i % slots], i + slots
        outgoing.copy_(slot)
        slot.zero_()
        for worker in range(1, dist.get_world_size()):
            pair = []
            if i >= 0:
                total = outgoing[: lengths[i]]
                pair.append(dist.P2POp(dist.isend, total, worker))
            if ahead < len(lengths):
                new = arrived[: lengths[ahead]]
                pair.append(dist.P2POp(dist.irecv, new, worker))
            exchange(pair)
            if ahead < len(lengths):
                slot[: lengths[ahead]] += new
    return pool


def stream(x: Tensor, packet: int, slots: int) -> None:
    """A worker: replaces x by the sum, a packet at a time."""
    parts = x.split(packet)
    for i in range(-slots, len(parts)):
        pair = []
        #: A sum that arrives says that its slot is free, and is answered by
        #: the next packet for this slot. No other signal is needed.
        if i + slots < len(parts):
            pair.append(dist.P2POp(dist.isend, parts[i + slots], 0))
        #: In place: packet i has left long ago, and nobody needs it again.
        if i >= 0:
            pair.append(dist.P2POp(dist.irecv, parts[i], 0))
        exchange(pair)


def exchange(pair: list[dist.P2POp]) -> None:
    """Send and receive at once."""
    for work in dist.batch_isend_irecv(pair):
        work.wait()


def all_reduce(x: Tensor, packet: int, slots: int) -> int:
    """Sum x over the workers, in place; returns the bytes of the pool."""
    if dist.get_rank() > 0:
        stream(x, packet, slots)
        return 0
    #: The vector of rank 0 only says how long the others are: a switch
    #: has no gradient, and keeps no sum.
    return serve(x, packet, slots).nbytes


def quantize(x: Tensor, scale: float) -> Tensor:
    """The nearest whole numbers, with 32 bits, to x times the scale."""
    #: Everyone uses the same scale: sums of other multiples mean nothing.
    return (x * scale).round().int()


def reference(w: World, elements: int, scale: float) -> Tensor:
    """The workers' vectors, multiplied, rounded and added by one process."""
    every = [w.randn(elements, seed=r) for r in range(1, w.size)]
    return torch.stack([(x * scale).round().long() for x in every]).sum(0)


def main(
    w: World,
    *,
    elements: int = 2003,
    packet: int = 256,
    slots: int = 3,
    scale: float = 2.0**16,
) -> None:
    w.require(w.size > 1, "1 rank: one is the switch; use 2 or more")
    w.require(packet > 0, f"packet = {packet}: use 1 or more")
    packets = -(-elements // packet)
    fits = 0 < slots <= packets
    w.require(fits, f"slots = {slots}: use 1 to {packets}, one per packet")
    x = quantize(w.randn(elements), scale)
    with meter() as moved:
        pool = all_reduce(x, packet, slots)
    #: The switch kept nothing: for the comparison it gets the last worker's.
    if w.rank == w.size - 1:
        dist.send(x, 0)
    elif w.rank == 0:
        dist.recv(x, w.size - 1)
    w.check("sum", x.long(), partial(reference, w, elements, scale), slack=0)
    w.check_same("same", x)
    received = moved.calls["recv"].payload
    given = {"itemsize": x.element_size()}
    sent = moved.bytes_sent
    report(w, given=given, bytes_sent=sent, bytes_received=received, pool=pool)


if __name__ == "__main__":
    with world() as w:
        main(w)
