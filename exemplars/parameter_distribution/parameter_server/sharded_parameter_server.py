"""Sharded parameter server: every rank serves a p-th of the weights.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.parameter_server.sharded_parameter_server

Source: Li et al. 2014; Jiang et al. 2020 (BytePS).

One server's line carries everything that all workers push and pull. So cut
the weights into k shards, each with a server of its own. With k = p, and a
server beside every worker,

    push   rank r sends chunk q of its gradient to rank q, for all q but r
    apply  rank q adds what it got, and steps its chunk
    pull   rank q sends its new chunk to everyone else

What rank r sends: its gradient without its own chunk, and its chunk p-1
times. That is n - c + (p-1) c elements, about 2(p-1)/p of the tensor, and
over all ranks exactly a ring's bytes. The star has become a reduce-scatter
and an all-gather by direct messages, in which nobody is special any more.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import digits

STEPS, BATCH, RATE = 3, 50, 0.1


def push(w: World, gradient: Tensor) -> Tensor:
    """Send each chunk to its server; the sum of what came for mine."""
    chunk = gradient.tensor_split(w.size)
    came = {q: torch.empty_like(chunk[w.rank]) for q in others(w)}
    exchange({q: chunk[q] for q in others(w)}, came)
    came[w.rank] = chunk[w.rank]
    total = torch.zeros_like(chunk[w.rank])
    #: By rank, so that the sum has the same bits on every run.
    for q in sorted(came):
        total += came[q]
    return total


def pull(w: World, weights: Tensor) -> None:
    """Send my chunk to everyone, and take theirs."""
    chunk = weights.tensor_split(w.size)
    mine = dict.fromkeys(others(w), chunk[w.rank])
    exchange(mine, {q: chunk[q] for q in others(w)})


def others(w: World) -> list[int]:
    """Starting at the right, so that not all begin with the same server."""
    return [(w.rank + i) % w.size for i in range(1, w.size)]


def exchange(out: dict[int, Tensor], into: dict[int, Tensor]) -> None:
    """Every message both ways, in one batch: none waits for another."""
    ops = [dist.P2POp(dist.isend, x, q) for q, x in out.items()]
    ops += [dist.P2POp(dist.irecv, x, q) for q, x in into.items()]
    for work in dist.batch_isend_irecv(ops) if ops else []:
        work.wait()


def train(w: World, model: nn.Module, weights: Tensor) -> None:
    """Every rank is a worker with a share and a server with a chunk."""
    for step in range(STEPS):
        x, y = digits.batch(step, BATCH)
        rows = torch.arange(BATCH).tensor_split(w.size)[w.rank]
        with span("compute", label=step, cost=3):
            #: Divided by the whole batch: the servers only have to add.
            slope = gradient(model, weights, x[rows], y[rows]) / BATCH
        with span("push"):
            total = push(w, slope)
        with span("apply", label=step, cost=1):
            weights.tensor_split(w.size)[w.rank].sub_(total, alpha=RATE)
        with span("pull"):
            pull(w, weights)


def gradient(
    model: nn.Module, weights: Tensor, x: Tensor, y: Tensor
) -> Tensor:
    """Of the summed loss, as one vector."""
    vector_to_parameters(weights, model.parameters())
    device = weights.device
    loss = digits.loss(model, x.to(device), y.to(device))
    grads = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([g.view(-1) for g in grads])


def start(w: World) -> tuple[nn.Module, Tensor]:
    """The model that everyone begins with, and its weights as a vector."""
    model = digits.model().to(w.device)
    return model, parameters_to_vector(model.parameters()).detach()


def reference(w: World) -> Tensor:
    """One process, whole batches."""
    model, weights = start(w)
    for step in range(STEPS):
        slope = gradient(model, weights, *digits.batch(step, BATCH)) / BATCH
        weights = weights - RATE * slope
    return weights


def main(w: World) -> None:
    model, weights = start(w)
    memory = w.memory(parameters=lambda: [weights])
    with memory, meter() as moved:
        train(w, model, weights)
    # Another order of additions, through a few steps.
    w.check("weights", weights, lambda: reference(w), slack=64)
    w.check_same("same", weights)
    sent, got = moved.bytes_sent, moved.calls["recv"].payload
    given = {"n": len(weights), "b": 8, "t": STEPS}
    found = {"bytes_sent": sent, "bytes_received": got}
    if not w.dry:
        total = torch.tensor(sent, device=w.device)
        dist.all_reduce(total)
        found["total"] = int(total)
    report(w, given=given, **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
