"""Push and pull: workers push gradients to one server and pull its weights.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.star.push_pull

Rank 0 holds the weights, the others hold the data. In every step

    push   each worker sends the gradient of its share; the server adds them
    pull   the server steps, and sends the new weights to each worker

which is the step that one process would take. A worker moves two tensors per
step, however many workers there are. The server moves 2(p-1): its link is the
bottleneck, and messages queue there one behind the other. That is why servers
are sharded, and why the all-reduce, in which no rank is special, replaced
them.

Source: Li et al. 2014.
"""

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Step, Task, digits


def serve(weights: Tensor, rate: float) -> None:
    """One step: add what the workers push, apply it, answer their pulls."""
    workers = range(1, dist.get_world_size())
    #: Zero in every step: synchronous, so no gradient is left over.
    total, pushed = torch.zeros_like(weights), torch.empty_like(weights)
    for worker in workers:
        #: By name and in order, so the sum has the same bits every time.
        dist.recv(pushed, worker)
        total += pushed
    with span("apply", cost=1):
        weights.sub_(total, alpha=rate)
    #: One after the other through the server's one link: p - 1 copies of
    #: the same weights, which is what grows with the number of workers.
    for worker in workers:
        dist.send(weights, worker)


def push_and_pull(gradient: Tensor, weights: Tensor) -> None:
    """One step of a worker: the gradient goes, the new weights come."""
    dist.send(gradient, 0)
    #: In place, and nothing is computed meanwhile: synchronous. A worker
    #: that went on with its old weights would be asynchronous.
    dist.recv(weights, 0)


def train(
    w: World, task: Task, *, steps: int, batch: int, rate: float
) -> Iterator[Step]:
    """SGD on one server and p-1 workers, who share each batch."""
    model = task.model().to(w.device)
    parameters = list(model.parameters())
    #: One vector travels, and the parameters are views of it: weights that
    #: are pulled are in the model at once.
    weights = parameters_to_vector(parameters).detach()
    vector_to_parameters(weights, parameters)
    for step in range(steps):
        if w.rank == 0:
            serve(weights, rate)
            yield Step(float("nan"), parameters)
            continue
        x, y = task.batch(step, batch)
        mine = torch.arange(batch).tensor_split(w.size - 1)[w.rank - 1]
        with span("compute", label=step, cost=3):
            loss = task.loss(model, x[mine].to(w.device), y[mine].to(w.device))
            #: Divided by the whole batch: the server only has to add.
            loss = loss / y.numel()
            grads = torch.autograd.grad(loss, parameters)
        push_and_pull(parameters_to_vector(grads), weights)
        yield Step(loss.item(), parameters)


def reference(
    w: World, task: Task, steps: int, batch: int, rate: float
) -> list[Tensor]:
    """One process, whole batches."""
    model = task.model().to(w.device)
    sgd = torch.optim.SGD(model.parameters(), lr=rate)
    for step in range(steps):
        x, y = task.batch(step, batch)
        sgd.zero_grad()
        loss = task.loss(model, x.to(w.device), y.to(w.device))
        (loss / y.numel()).backward()
        sgd.step()
    return list(model.parameters())


def main(
    w: World, *, steps: int = 3, batch: int = 50, rate: float = 0.1
) -> None:
    w.require(w.size > 1, "1 rank: one serves, the rest work; use 2 or more")
    with meter() as moved:
        *_, last = train(w, digits, steps=steps, batch=batch, rate=rate)
    # Another order of additions, through a few steps.
    replay = partial(reference, w, digits, steps, batch, rate)
    w.check("weights", last.weights, replay, slack=64)
    w.check_same("same", last.weights)
    elements = sum(p.numel() for p in last.weights)
    given = {"elements": elements, "itemsize": last.weights[0].element_size()}
    received = moved.calls["recv"].payload
    sent = moved.bytes_sent
    report(w, given=given, bytes_sent=sent, bytes_received=received)


if __name__ == "__main__":
    with world() as w:
        main(w)
