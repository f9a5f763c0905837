"""Sharded parameter server: every rank serves 1/p of the weights.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.parameter_server.sharded_parameter_server

A single server's link carries everything that all workers push and pull. So
cut the weights into shards, each with its own server. With as many servers as
workers, and one of each on every rank,

    push   rank r sends chunk q of its gradient to rank q, for all q but r
    apply  rank q adds up what it received, and updates its chunk
    pull   rank q sends its new chunk to everyone else

A rank sends its gradient without its own chunk, and its chunk p-1 times: about
2(p-1)/p of the tensor, and over all ranks exactly the bytes of a ring. The
star has become a reduce-scatter and an all-gather by direct messages, in which
no rank is special any more.

Source: Li et al. 2014; Jiang et al. 2020 (BytePS).
"""

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import SGD

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Step, Task, digits


def push(gradient: Tensor) -> Tensor:
    """Send each chunk to its server; the sum of all that came for mine."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    chunk = gradient.tensor_split(ranks)
    came = {q: torch.empty_like(chunk[rank]) for q in others()}
    exchange({q: chunk[q] for q in others()}, came)
    #: The worker on the server's own rank pushes without a message.
    came[rank] = chunk[rank]
    #: Added in the order of the ranks, so that every run has the same bits.
    return torch.stack([came[q] for q in range(ranks)]).sum(0)


def pull(weights: Tensor) -> None:
    """Send my chunk to everyone, and receive theirs into the weights."""
    chunk = weights.tensor_split(dist.get_world_size())
    mine = chunk[dist.get_rank()]
    exchange(dict.fromkeys(others(), mine), {q: chunk[q] for q in others()})


def others() -> list[int]:
    """All other ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    #: Starting at the right, so that not all begin with the same server.
    return [(rank + i) % ranks for i in range(1, ranks)]


def exchange(out: dict[int, Tensor], into: dict[int, Tensor]) -> None:
    """Every message both ways, in one batch: none waits for another."""
    ops = [dist.P2POp(dist.isend, x, q) for q, x in out.items()]
    ops += [dist.P2POp(dist.irecv, x, q) for q, x in into.items()]
    for work in dist.batch_isend_irecv(ops) if ops else []:
        work.wait()


def train(w: World, task: Task, *, batch: int, steps: int) -> Iterator[Step]:
    """Every rank is a worker with a share and a server with a chunk."""
    model = task.model().to(w.device)
    weights = parameters_to_vector(model.parameters()).detach()
    #: The model's parameters become views: what is pulled is what it uses.
    vector_to_parameters(weights, model.parameters())
    parameters = [*model.parameters()]
    for step in range(steps):
        whole = (t.to(w.device) for t in task.batch(step, batch))
        x, y = (t.tensor_split(w.size)[w.rank] for t in whole)
        with span("compute", label=step, cost=3):
            #: Divided by the whole batch: the servers only have to add.
            loss = task.loss(model, x, y) / batch
            gradients = torch.autograd.grad(loss, parameters)
        #: Between push and pull each element is updated once, by its server.
        with span("push"):
            total = push(parameters_to_vector(gradients))
        with span("apply", label=step, cost=1):
            weights.tensor_split(w.size)[w.rank].sub_(total, alpha=0.1)
        with span("pull"):
            pull(weights)
        yield Step(loss.item(), [weights])


def reference(w: World, task: Task, batch: int, steps: int) -> Tensor:
    """The weights after SGD on one process, on whole batches."""
    model = task.model().to(w.device)
    sgd = SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        x, y = (t.to(w.device) for t in task.batch(step, batch))
        sgd.zero_grad()
        (task.loss(model, x, y) / batch).backward()
        sgd.step()
    return parameters_to_vector(model.parameters())


def main(w: World, *, batch: int = 50, steps: int = 3) -> None:
    weights: list[Tensor] = []
    memory = w.memory(parameters=lambda: weights)
    with memory, meter() as moved:
        for step in train(w, digits, batch=batch, steps=steps):
            weights[:] = step.weights
            memory.mark("step")
    # Another order of additions, through a few steps.
    truth = partial(reference, w, digits, batch, steps)
    w.check("weights", weights[0], truth, slack=64)
    w.check_same("same", weights)
    sent = torch.tensor(moved.bytes_sent, device=w.device)
    counts = {
        "bytes_sent": moved.bytes_sent,
        "bytes_received": moved.calls["recv"].payload,
    }
    if not w.dry:
        dist.all_reduce(sent)
        counts["total"] = int(sent)
    given = {"elements": len(weights[0]), "itemsize": 8}
    report(w, given=given, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
