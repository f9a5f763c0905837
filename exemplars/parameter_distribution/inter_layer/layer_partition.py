"""Layer partition: whole layers per rank; one computes while the others wait.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.inter_layer.layer_partition

Source: Dean et al. 2012, section 3; Huang et al. 2019 (GPipe).

The network is cut into p runs of layers. A batch goes through the ranks in
turn, and its gradient comes home in reverse:

    rank 0  F . . . . . . B B     each rank holds about 1/p of the weights,
    rank 1  . F . . . B B . .     and is busy for 1/p of the time
    rank 2  . . F B B . . . .

Only the activation at a cut travels. Where to cut is a matter of cost, not of
number: layers differ, and so the cuts make the dearest rank as cheap as can
be. That balances memory. It does not make anything faster: no two ranks ever
compute at once, and only cutting the batch too (a pipeline) mends that.
"""

from itertools import count

import torch
import torch.distributed as dist
from torch import Tensor, nn

from exemplars.runtime import World, meter, report, span, world

STEPS, ROWS, WIDTH, RATE = 2, 5, 8, 0.5
FORWARD, BACKWARD = 1, 2  # virtual seconds of one matrix
PATTERN = (6,), (3, 3), (2, 2, 2), (1,) * 6  # matrices of a layer
SHARE = 6  # matrices of a rank, if the cuts are right


def costs(ranks: int) -> list[int]:
    """Layers of all sizes, in no order that counting them would balance."""
    return [c for q in range(ranks) for c in PATTERN[q % len(PATTERN)]]


def balanced(costs: list[int], ranks: int) -> list[list[int]]:
    """Runs of layers for each rank, the dearest as cheap as it can be."""
    least = max(*costs, -(-sum(costs) // ranks))
    return next(
        runs
        for limit in count(least)
        if len(runs := filled(costs, limit)) <= ranks
    )


def filled(costs: list[int], limit: int) -> list[list[int]]:
    """As many layers as fit under the limit, then the next run."""
    runs, cost = [list[int]()], 0
    for i, c in enumerate(costs):
        if cost + c > limit:
            runs.append([])
            cost = 0
        runs[-1].append(i)
        cost += c
    return runs


def step(w: World, part: nn.Sequential, batch: Tensor, work: int) -> Tensor:
    """One batch there and back, and one update; the loss, on the last rank."""
    first, last = w.rank == 0, w.rank == w.size - 1
    x = batch.clone() if first else torch.empty_like(batch)
    if not first:
        dist.recv(x, w.rank - 1)
    with span("F", cost=work * FORWARD):
        y = part(x.requires_grad_())
    dy = torch.empty_like(batch)
    if not last:
        dist.send(y.detach(), w.rank + 1)
        dist.recv(dy, w.rank + 1)
    with span("B", cost=work * BACKWARD):
        loss = loss_of(y)
        inputs = [x, *part.parameters()]
        dx, *slopes = (
            torch.autograd.grad(loss, inputs)
            if last
            else torch.autograd.grad(y, inputs, dy)
        )
    if not first:
        dist.send(dx.contiguous(), w.rank - 1)
    for weight, slope in zip(part.parameters(), slopes):
        weight.data.sub_(slope, alpha=RATE)
    return loss.detach()


def loss_of(y: Tensor) -> Tensor:
    return y.square().mean()


def layer(i: int, matrices: int) -> nn.Module:
    """A function of its number: every rank can make every layer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(i)
        pairs = [(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(matrices)]
        return nn.Sequential(*(m for pair in pairs for m in pair)).double()


def network(w: World, layers: list[int]) -> nn.Sequential:
    """These layers of the whole."""
    every = costs(w.size)
    return nn.Sequential(*(layer(i, every[i]) for i in layers)).to(w.device)


def reference(w: World, batch: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The whole network on one process; of its layers, this rank's."""
    model = network(w, [*range(len(costs(w.size)))])
    for _ in range(STEPS):
        loss = loss_of(model(batch))
        slopes = torch.autograd.grad(loss, [*model.parameters()])
        for weight, slope in zip(model.parameters(), slopes):
            weight.data.sub_(slope, alpha=RATE)
    mine = balanced(costs(w.size), w.size)[w.rank]
    return loss.detach(), [*model[mine[0] : mine[-1] + 1].parameters()]


def main(w: World) -> None:
    mine = balanced(costs(w.size), w.size)[w.rank]
    part, batch = network(w, mine), w.randn(ROWS, WIDTH, of_rank=0)
    work = sum(costs(w.size)[i] for i in mine)
    memory = w.memory(parameters=part.parameters)
    with memory, meter() as moved:
        losses = [step(w, part, batch, work) for _ in range(STEPS)]
        memory.mark("step")
    # The same operations in the same order: the same bits.
    ours = [p.detach() for p in part.parameters()]
    w.check("parameters", ours, lambda: reference(w, batch)[1], slack=0)
    if w.rank == w.size - 1:
        w.check("loss", losses[-1], lambda: reference(w, batch)[0], slack=0)
    given = dict(m=STEPS, a=batch.nbytes, c=SHARE, h=WIDTH, e=8)
    given |= dict(f=FORWARD, b=BACKWARD)
    state = memory.live("step")["parameters"]
    report(w, given=given, bytes_sent=moved.bytes_sent, state=state)


if __name__ == "__main__":
    with world() as w:
        main(w)
