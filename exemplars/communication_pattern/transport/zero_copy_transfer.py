"""Zero-copy transfer: numbers travel as they lie, into a place made ready.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.transport.zero_copy_transfer

Two ways to give a tensor to the right neighbor:

              direct                    pickled, as an RPC does
    sender    send the tensor           copy it into a pickle, send its
                                        length, send the pickle
    receiver  has the place ready:      take the length, find memory, take
              receive into it           the pickle, copy the tensor out

A pickle has to say what it is: type, shape, order. And the receiver does not
know its length, so there are two messages, and memory can be found only when
the first has arrived. But the shapes of a network's tensors never change:
both sides know them from the start, and only the numbers need to travel.

Source: Xue et al. 2019, first called RPC Considered Harmful.
"""

import pickle
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world


def pass_right(outgoing: Tensor, into: Tensor) -> None:
    """Send right while receiving from the left."""
    r, p = dist.get_rank(), dist.get_world_size()
    #: One batch: as two separate calls, NCCL would run them in order and
    #: every rank would wait in its send.
    pair = [
        dist.P2POp(dist.isend, outgoing, (r + 1) % p),
        dist.P2POp(dist.irecv, into, (r - 1) % p),
    ]
    for work in dist.batch_isend_irecv(pair):
        work.wait()


def direct(x: Tensor, place: Tensor) -> None:
    """From the tensor's own memory into the place that waits for it."""
    with span("direct"):
        #: The place is a view, a layer of a larger table: the numbers land
        #: where they are used, and nobody copies them there.
        pass_right(x, place)


def pickled(thing: Any, device: torch.device) -> Tensor:
    """The same for any object: its length first, then its pickle."""
    with span("pickle", cost=1):
        #: The first copy: the numbers go into the pickle's own memory.
        data = bytearray(pickle.dumps(thing))
        content = torch.frombuffer(data, dtype=torch.uint8).to(device)
        length = torch.tensor([len(data)], device=device)
    coming = length.clone()
    with span("length"):
        pass_right(length, coming)
    #: Only now is it known how much memory the object needs. Waiting for
    #: the number stalls an accelerator as well.
    arrived = content.new_empty(int(coming.item()))
    with span("content"):
        pass_right(content, arrived)
    return arrived


def unpickled(arrived: Tensor) -> Tensor:
    """The tensor out of the pickle: one more copy."""
    with span("unpickle", cost=1):
        data = arrived.cpu().numpy().tobytes()
        #: Unpickling can run any code: only ever from ranks one trusts.
        array = pickle.loads(data)  # noqa: S301 (from our own ranks)
        return torch.from_numpy(array).to(arrived.device)


def reference(w: World, *, elements: int) -> Tensor:
    """The left neighbor's numbers, drawn here."""
    return w.randn(elements, seed=(w.rank - 1) % w.size)


def main(w: World, *, elements: int = 10_007, layers: int = 4) -> None:
    w.require(w.size > 1, "1 rank: nobody to send to; use 2 or more")
    x = w.randn(elements, seed=w.rank)
    #: The receiver's weights, a row for each layer, made long before.
    table = torch.zeros(layers, elements, dtype=x.dtype, device=w.device)
    with meter() as plain:
        direct(x, table[layers // 2])
    expected = torch.zeros_like(table)
    expected[layers // 2] = reference(w, elements=elements)
    w.check("direct", table, lambda: expected, slack=0)
    # A receiver does not know lengths: odd ranks pickle one number more.
    array = w.randn(elements + w.rank % 2, seed=w.rank).cpu().numpy()
    with meter() as rpc:
        arrived = pickled(array, w.device)
    # In a dry run nothing has arrived that could be unpickled.
    if not w.dry:
        with meter():
            copy = unpickled(arrived)
        longer = elements + (w.rank - 1) % w.size % 2
        truth = partial(reference, w, elements=longer)
        w.check("unpickled", copy, truth, slack=0)
    header = len(pickle.dumps(array)) - array.nbytes
    given = {"itemsize": x.element_size(), "pickle_header": header}
    report(
        w,
        given=given,
        bytes_direct=plain.bytes_sent,
        bytes_pickled=rpc.bytes_sent,
        messages=plain.calls["send"].count,
        messages_pickled=rpc.calls["send"].count,
    )


if __name__ == "__main__":
    with world() as w:
        main(w)
