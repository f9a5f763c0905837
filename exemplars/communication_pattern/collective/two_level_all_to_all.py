"""Two-level all-to-all: one message to each node, not one to each rank.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.collective.two_level_all_to_all

Every rank has a block for every rank. Sent one by one, all blocks for the L
ranks of another node cross the slow links as L messages. So first hand each
block to the rank of the own node that has the place of its receiver. Then
each rank has all blocks from its node for one rank of every other node, and
sends them in one message.

    block from (node 0, place 0) to (node 1, place 2)
    1 inside     from (0, 0) to (0, 2), with all blocks for place 2
    2 between    from (0, 2) to (1, 2), with all blocks from node 0

With G nodes of L ranks, p = GL, a rank sends G-1 messages of L blocks to
other nodes, where a direct exchange sends p-L messages of one block. The
bytes between nodes are the same. What is added is the detour inside the
nodes, over the fast links: L-1 messages of G blocks.

Source: Rajbhandari et al. 2022 (DeepSpeed-MoE), section 5.3; Hwang et al.
2023 (Tutel, 2DH).
"""

import os

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.communication_pattern.collective.hierarchical import nodes_of
from exemplars.runtime import World, meter, report, span, world


def all_to_all(x: Tensor, node_size: int) -> Tensor:
    """As dist.all_to_all_single: row block q goes to rank q."""
    p = dist.get_world_size()
    if p % node_size:
        raise ValueError(f"{p} ranks in nodes of {node_size}: must divide")
    if x.dim() == 0 or len(x) % p:
        raise ValueError(
            f"shape {tuple(x.shape)}: {p} ranks need equal blocks"
        )
    #: Neighbors in rank are neighbors in a node, as torchrun numbers them.
    node, place = divmod(dist.get_rank(), node_size)
    nodes = p // node_size
    row = [node * node_size + q for q in range(node_size)]
    column = [g * node_size + place for g in range(nodes)]
    #: By node and place of the receiver.
    blocks = x.reshape(nodes, node_size, x.numel() // p)
    with span("inside"):
        #: Each rank of the row gets the blocks for its place in all nodes.
        inside = exchange(blocks.transpose(0, 1), row)
    with span("between"):
        #: By place of the sender until now; by node of the receiver again,
        #: so that all blocks for one node are one message.
        between = exchange(inside.transpose(0, 1), column)
    #: By node and place of the sender, which is the order of ranks.
    return between.reshape(x.shape)


def exchange(blocks: Tensor, ranks: list[int]) -> Tensor:
    """Send block i to the i-th of these ranks; receive one from each."""
    i, m = ranks.index(dist.get_rank()), len(ranks)
    #: The transpose is done here: what goes to one rank is packed together.
    outgoing = blocks.contiguous()
    incoming = torch.empty_like(outgoing)
    incoming[i] = outgoing[i]
    for k in range(1, m):
        to, source = (i + k) % m, (i - k) % m
        #: One batch: as two separate calls, NCCL would run them in order
        #: and every rank would wait in its send.
        pair = [
            dist.P2POp(dist.isend, outgoing[to], ranks[to]),
            dist.P2POp(dist.irecv, incoming[source], ranks[source]),
        ]
        for work in dist.batch_isend_irecv(pair):
            work.wait()
    return incoming


def reference(w: World, block: int) -> Tensor:
    """The blocks for this rank, in the order of their senders."""
    every = [w.randn(w.size * block, 2, seed=q)[:, 0] for q in range(w.size)]
    return torch.cat([x.tensor_split(w.size)[w.rank] for x in every])


def main(w: World, *, block: int = 1009, node_size: int = 0) -> None:
    #: Nodes are real if torchrun started only some of the ranks here. Else
    #: they are pretended, in a table as square as p allows.
    here = int(os.environ.get("LOCAL_WORLD_SIZE", w.size))
    pretended = w.size // nodes_of(w.size)
    size = node_size or (here if 1 < here < w.size else pretended)
    wrong = f"{w.size} ranks: nodes of {size} do not divide them"
    w.require(w.size % size == 0, wrong)
    x = w.randn(w.size * block, 2, seed=w.rank)[:, 0]
    with meter() as moved:
        y = all_to_all(x, size)
    #: The second witness is the library, with its own algorithm.
    theirs = torch.empty_like(y)
    dist.all_to_all_single(theirs, x.contiguous())
    w.check("blocks", y, lambda: reference(w, block), slack=0)
    w.check("library", y, lambda: theirs, slack=0)
    first = w.rank - w.rank % size
    row = range(first, first + size)
    sent = [e for e in moved.events if e.kind == "send"]
    report(
        w,
        given={"itemsize": x.element_size(), "node_size": size},
        inside=sum(e.bytes for e in sent if e.peer in row),
        between=sum(e.bytes for e in sent if e.peer not in row),
        messages=sum(e.peer not in row for e in sent),
    )


if __name__ == "__main__":
    with world() as w:
        main(w)
