"""Scatter and all-gather: a broadcast whose root sends under two tensors.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.collective.scatter_all_gather_broadcast

A tree sends the whole tensor in every round, so its root sends ceil(lg p)
tensors. Instead, cut the tensor into p chunks and give one to each rank. Then
all ranks together know everything, and a ring can pass the chunks round.

    scatter, p = 4      place 0     place 1     place 2     place 3
    at first            0 1 2 3
    distance 2          0 1                     2 3
    distance 1          0           1           2           3
    all-gather          0 1 2 3     0 1 2 3     0 1 2 3     0 1 2 3

The scatter is the same binomial tree with half as much in each round: all
chunks but its own leave the root, each once. The ring sends p-1 of p chunks
more. That makes 2(p-1)/p of the tensor at the root, under two tensors for any
number of ranks, in ceil(lg p) + p - 1 rounds.

If a message costs alpha, plus beta per byte, the tree takes ceil(lg p)
(alpha + M beta) for M bytes, and this one saves time if

    M beta (ceil(lg p) - 2(p-1)/p)  >  (p-1) alpha

Source: Barnett et al. 1994 (van de Geijn); Thakur et al. 2005.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.runtime import World, meter, report, span, world


def broadcast(x: Tensor, root: int = 0) -> Tensor:
    """The root's x; on the other ranks, x only says its shape and type."""
    place = (dist.get_rank() - root) % dist.get_world_size()
    #: A copy: messages are contiguous, x may be a slice or a transpose, and
    #: it stays as it is.
    tensor = x.clone(memory_format=torch.contiguous_format)
    #: Chunks are numbered by places from the root on, so that what a place
    #: passes on in the scatter is one piece of memory.
    scatter(tensor.view(-1), place)
    all_gather(tensor.view(-1), place)
    return tensor


def scatter(tensor: Tensor, place: int) -> None:
    """Leave chunk i with place i; at first the root, place 0, has them all."""
    r, p = dist.get_rank(), dist.get_world_size()
    #: Where each chunk begins. The last may be one shorter than the first.
    start = [0]
    for chunk in tensor.tensor_split(p):
        start.append(start[-1] + len(chunk))
    for k in reversed(range((p - 1).bit_length())):
        distance = 2**k
        offset = place % (2 * distance)
        #: A place holds the chunks up to the next holder's. It keeps the
        #: nearer half and sends the farther half, if that is not empty.
        if offset == 0 and place + distance < p:
            end = start[min(place + 2 * distance, p)]
            with span("scatter", label=distance):
                far = tensor[start[place + distance] : end]
                dist.send(far, (r + distance) % p)
        #: Each place receives once: its own chunk, with all that it is to
        #: pass on.
        if offset == distance:
            end = start[min(place + distance, p)]
            with span("scatter", label=distance):
                dist.recv(tensor[start[place] : end], (r - distance) % p)


def all_gather(tensor: Tensor, place: int) -> None:
    """Pass the chunks round the ring; place i begins with chunk i."""
    r, p = dist.get_rank(), dist.get_world_size()
    chunk = tensor.tensor_split(p)
    for k in range(p - 1):
        #: Pass on what arrived in the round before. The root takes part,
        #: too, and receives what it has already.
        outgoing, into = chunk[(place - k) % p], chunk[(place - k - 1) % p]
        pair = [
            dist.P2POp(dist.isend, outgoing, (r + 1) % p),
            dist.P2POp(dist.irecv, into, (r - 1) % p),
        ]
        #: One batch, or every rank would wait in its send.
        with span("gather", label=k):
            for work in dist.batch_isend_irecv(pair):
                work.wait()


def reference(w: World, elements: int, root: int) -> Tensor:
    """The root's tensor."""
    return w.randn(elements, 2, seed=root)[:, 0]


def main(w: World, *, elements: int = 100_003) -> None:
    #: The last rank, so that nothing works only because the root is rank 0.
    root = w.size - 1
    #: A column of a matrix, not contiguous, of a prime number of elements.
    x = w.randn(elements, 2, seed=w.rank)[:, 0]
    # NCCL wants every rank in a group's first message; here some wait.
    dist.barrier()
    with meter() as moved:
        y = broadcast(x, root)
    w.check("copy", y, lambda: reference(w, elements, root), slack=0)
    w.check_same("same", y)
    counts = {"bytes_sent": moved.bytes_sent}
    if not w.dry:
        most = torch.tensor(moved.bytes_sent, device=w.device)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        counts["busiest"] = int(most)
    report(w, given={"itemsize": x.element_size(), "root": root}, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
