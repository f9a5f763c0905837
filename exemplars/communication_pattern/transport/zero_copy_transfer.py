"""Zero-copy transfer: numbers travel as they lie, into a place made ready.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.transport.zero_copy_transfer

Source: Xue et al. 2019, first called RPC Considered Harmful.

Two ways to give a tensor to the right neighbour:

              direct                    pickled, as an RPC does
    sender    send the tensor           copy it into a pickle, send its
                                        length, send the pickle
    receiver  has the place ready:      take the length, find memory, take
              receive into it           the pickle, copy the tensor out

A pickle has to say what it is: type, shape, order. And its length is news to
the receiver, so there are two messages, and memory can be found only when
the first is there. But the shapes of a network's tensors never change: both
sides know them from the start, and everything but the numbers can stay home.
"""

import pickle
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world

LAYERS, SIZE = 3, 10_007  # the place: a layer of a table of weights
HERE = 1


def pass_right(outgoing: Tensor, into: Tensor) -> None:
    """Send right while receiving from the left."""
    r, p = dist.get_rank(), dist.get_world_size()
    pair = [
        dist.P2POp(dist.isend, outgoing, (r + 1) % p),
        dist.P2POp(dist.irecv, into, (r - 1) % p),
    ]
    for work in dist.batch_isend_irecv(pair):
        work.wait()


def direct(x: Tensor, place: Tensor) -> None:
    """From the tensor's own memory into the place that waits for it."""
    with span("direct"):
        pass_right(x, place)


def pickled(thing: Any, w: World) -> Tensor:
    """The same for any object: its length first, then its pickle."""
    with span("pickle", cost=1):
        data = bytearray(pickle.dumps(thing))
        content = torch.frombuffer(data, dtype=torch.uint8).to(w.device)
        length = torch.tensor([len(data)], device=w.device)
    coming = length.clone()
    with span("length"):
        pass_right(length, coming)
    #: Only now is it known how much memory the object needs.
    arrived = content.new_empty(int(coming.item()))
    with span("content"):
        pass_right(content, arrived)
    return arrived


def unpickled(w: World, arrived: Tensor) -> Tensor:
    """The tensor out of the pickle: one more copy."""
    if w.dry:  # nothing has arrived
        return torch.empty(SIZE, dtype=torch.double)
    with span("unpickle", cost=1):
        data = arrived.cpu().numpy().tobytes()
        array = pickle.loads(data)  # noqa: S301 (from our own ranks)
        return torch.from_numpy(array).to(w.device)


def reference(w: World) -> Tensor:
    """What the left neighbour has."""
    return w.randn(SIZE, of_rank=(w.rank - 1) % w.size)


def main(w: World) -> None:
    w.require(w.size > 1, "1 rank: nobody to send to; use 2 or more")
    x = w.randn(SIZE)
    table = torch.zeros(LAYERS, SIZE, dtype=x.dtype, device=w.device)
    place = table[HERE]
    with meter() as plain:
        direct(x, place)
    with meter() as rpc:
        copy = unpickled(w, pickled(x.cpu().numpy(), w))
    w.check("direct", table[HERE], lambda: reference(w), slack=0)
    w.check("unpickled", copy, lambda: reference(w), slack=0)
    found = {
        "bytes_direct": plain.bytes_sent,
        "bytes_pickled": rpc.bytes_sent,
        "overhead": rpc.bytes_sent - plain.bytes_sent,
        "messages": plain.calls["send"].count,
        "messages_pickled": rpc.calls["send"].count,
    }
    length = len(pickle.dumps(x.cpu().numpy()))
    report(w, given={"n": SIZE, "b": 8, "s": length}, **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
