"""Push and pull: workers push gradients to one server and pull its weights.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.star.push_pull

Source: Li et al. 2014.

Rank 0 holds the weights, the others hold the data. In every step

    push   each worker sends the gradient of its share; the server adds them
    pull   the server steps, and sends the new weights to each worker

which is the step that one process would take. A worker moves two tensors a
step, however many there are. The server moves 2(p-1): its line is the narrow
place, and messages queue there one behind the other. That is why servers are
sharded, and why an all-reduce, in which nobody is special, took their place.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import digits

STEPS, BATCH, RATE = 3, 50, 0.1


def serve(w: World, weights: Tensor) -> None:
    """Add what the workers push, step, answer their pulls."""
    for step in range(STEPS):
        total, pushed = torch.zeros_like(weights), torch.empty_like(weights)
        for worker in range(1, w.size):
            #: By name and in order, so the sum has the same bits every time.
            dist.recv(pushed, worker)
            total += pushed
        with span("apply", label=step, cost=1):
            weights.sub_(total, alpha=RATE)
        for worker in range(1, w.size):
            dist.send(weights, worker)


def work(w: World, model: nn.Module, weights: Tensor) -> None:
    """Compute on this worker's share, push the gradient, pull the weights."""
    for step in range(STEPS):
        x, y = digits.batch(step, BATCH)
        mine = torch.arange(BATCH).tensor_split(w.size - 1)[w.rank - 1]
        with span("compute", label=step, cost=3):
            #: Divided by the whole batch: the server only has to add.
            pushed = gradient(model, weights, x[mine], y[mine]) / BATCH
        dist.send(pushed, 0)
        dist.recv(weights, 0)


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
    w.require(w.size > 1, "1 rank: one serves, the rest work; use 2 or more")
    model, weights = start(w)
    with meter() as moved:
        if w.rank == 0:
            serve(w, weights)
        else:
            work(w, model, weights)
    # Another order of additions, through a few steps.
    w.check("weights", weights, lambda: reference(w), slack=64)
    w.check_same("same", weights)
    given = {"n": len(weights), "b": 8, "t": STEPS}
    got = moved.calls["recv"].payload
    report(w, given=given, bytes_sent=moved.bytes_sent, bytes_received=got)


if __name__ == "__main__":
    with world() as w:
        main(w)
