"""Hybrid sharding: shards inside a node, replicas between nodes.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.sharded.hybrid_sharded

ZeRO-3 over all p ranks gathers every layer across the slow links between
nodes. Where a node's L ranks together have room for the model's state, let
them share it, and let each of the G nodes have a copy:

                   ranks of a node      their counterparts
    forward        all-gather W         -
    backward       all-gather W         -
                   reduce-scatter dW    -
    end of step    -                    all-reduce dW, of one shard only

What is gathered stays in the node. Between nodes goes an L-th of a gradient,
once per step, however many micro-batches there are: 2(G-1)/G N/L numbers per
rank. The price is memory, N/L where it could be N/p.

The same exchange is measured of torch's FSDP2 on a mesh of two axes.

Source: Zhang et al. 2022 (MiCS); Zhao et al. 2023 (FSDP).
"""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector
from torch.optim import AdamW
from torch.utils.checkpoint import checkpoint

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Optimizers, equal_layers

UNITS = 3


def nodes_of(p: int) -> int:
    """Nodes to pretend: the largest divisor of p up to its square root."""
    return max(g for g in range(1, p + 1) if p % g == 0 and g * g <= p)


class Gather(torch.autograd.Function):
    """A layer's weights from a node's shards; its gradient, back again."""

    @staticmethod
    def forward(ctx: Any, shard: Tensor, node: dist.ProcessGroup) -> Tensor:
        ctx.node = node
        whole = shard.new_empty(node.size() * len(shard))
        dist.all_gather_single(whole, shard, group=node)
        return whole

    @staticmethod
    def backward(ctx: Any, dwhole: Tensor) -> tuple[Tensor, None]:
        shard = dwhole.new_empty(len(dwhole) // ctx.node.size())
        #: In the node only: other nodes' samples are not in this sum yet.
        dist.reduce_scatter_single(shard, dwhole, group=ctx.node)
        return shard, None


class HybridSharded(nn.Module):
    """Equal layers, each a matrix, a bias and a tanh, in shards of a node."""

    def __init__(self, whole: nn.Sequential) -> None:
        super().__init__()
        table = torch.arange(dist.get_world_size())
        self.table = table = table.view(nodes_of(len(table)), -1)
        #: Neighbors in rank are neighbors in a node. Every rank makes every
        #: group, in the same order.
        self.node, _ = dist.new_subgroups_by_enumeration(table.tolist())
        self.line, _ = dist.new_subgroups_by_enumeration(table.T.tolist())
        #: The place in the node decides the shard: so counterparts in all
        #: nodes hold the same one.
        place, parts = self.node.rank(), self.node.size()
        self.shards = nn.ParameterList()
        for layer in whole:
            vector = parameters_to_vector(layer.parameters()).detach()
            self.shards.append(vector.chunk(parts)[place].clone())

    def layer(self, x: Tensor, shard: Tensor) -> Tensor:
        """Gather, use, drop."""
        with span("layer", cost=1):
            width = x.shape[-1]
            whole = Gather.apply(shard, self.node)
            weight, bias = whole.split([width * width, width])
            return F.linear(x, weight.view(width, width), bias).tanh()

    def forward(self, x: Tensor) -> Tensor:
        """Through all layers, of which none is kept whole."""
        for shard in self.shards:
            #: Recomputed in backward: weights are gathered again for it.
            x = checkpoint(self.layer, x, shard, use_reentrant=False)
        return x

    def mesh(self, device: str) -> DeviceMesh:
        """The same groups, as torch wants to have them."""
        groups, names = [self.line, self.node], ("node", "rank")
        return DeviceMesh.from_group(
            groups, device, self.table, mesh_dim_names=names
        )

    def agree(self) -> None:
        """Add up the nodes' gradients: once, after the last micro-batch."""
        for shard in self.shards:
            dist.all_reduce(shard.grad, group=self.line)


def learn(model: HybridSharded, mine: Tensor, batch: int) -> None:
    """One step of AdamW, on this rank's micro-batches."""
    adam = AdamW(model.parameters())
    for x in mine:
        #: Divided by the whole batch: gradients only have to be added up.
        (model(x).square().sum() / batch).backward()
    model.agree()
    adam.step()


def learn_torch(mesh: DeviceMesh, mine: Tensor, batch: int) -> None:
    """The same by FSDP2: copies along one axis, shards along the other."""
    layers = equal_layers(UNITS, mine.shape[-1]).to(mine.device)
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    model, adam = fully_shard(layers, mesh=mesh), AdamW(layers.parameters())
    for i, x in enumerate(mine):
        model.set_requires_all_reduce(i == len(mine) - 1)
        #: It takes the mean over the ranks, so the loss is p times as large.
        (layers(x).square().sum() / batch * mesh.size()).backward()
    adam.step()


def reference(x: Tensor, part: int, parts: int) -> list[Tensor]:
    """AdamW on one process, on the whole batch; of each layer, one shard."""
    whole = equal_layers(UNITS, x.shape[-1]).to(x.device)
    adam = AdamW(whole.parameters())
    (whole(x).square().sum() / len(x)).backward()
    adam.step()
    layers = [parameters_to_vector(m.parameters()) for m in whole]
    return [v.detach().chunk(parts)[part] for v in layers]


def sent(moved: Any, node: set[int], by: str = "") -> dict[str, int]:
    """Bytes that this rank sends on rings: in its node, and beyond."""
    found = {"inside" + by: 0, "between" + by: 0}
    for e in moved.events:
        if e.kind == "collective":
            g = len(e.group)
            passes = {"all_gather": g, "reduce_scatter": 1, "all_reduce": 2}
            #: By who takes part, not by what is called.
            place = "inside" if set(e.group) <= node else "between"
            found[place + by] += passes[e.name] * e.bytes * (g - 1) // g
    return found


def main(
    w: World, *, batch: int = 48, width: int = 24, microbatches: int = 2
) -> None:
    even = width % w.size == 0 and batch % (w.size * microbatches) == 0
    w.require(even, f"{w.size} ranks do not divide {width} and {batch}")
    x = w.randn(batch, width, seed=0)
    model = HybridSharded(equal_layers(UNITS, width).to(w.device))
    mine = x.view(w.size, microbatches, -1, width)[w.rank]
    optimizers, state = Optimizers(), list[Tensor | None]()
    memory = w.memory(parameters=lambda: state)
    with optimizers, memory, meter() as moved:
        learn(model, mine, batch)
        state[:] = optimizers.state()
    with meter(shown=False) as theirs:
        learn_torch(model.mesh(w.device.type), mine, batch)
    size = w.size // nodes_of(w.size)
    first = w.rank // size * size
    truth = partial(reference, x, w.rank - first, size)
    # Another order of additions, through Adam's division.
    w.check("parameters", [*model.parameters()], truth, slack=256)
    node = set(range(first, first + size))
    given = {"units": UNITS, "unit_elements": width * width + width}
    report(
        w,
        given={**given, "node_size": size, "itemsize": 8},
        state=memory.live()["parameters"],
        **sent(moved, node),
        **sent(theirs, node, "_torch"),
    )


if __name__ == "__main__":
    with world() as w:
        main(w)
