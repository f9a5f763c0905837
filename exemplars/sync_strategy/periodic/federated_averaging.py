"""Federated averaging: clients keep their data; each round some of them train.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.periodic.federated_averaging

Rank 0 is the server, and every other rank is a client with data of its own,
more or less of it. In each round

    the server sends its weights w to some clients, S, picked at random
    client k trains on its n_k samples, E epochs in batches, and gets w_k
    client k in S returns n_k w_k and n_k
    w  <-  sum over k in S of n_k w_k  /  sum over k in S of n_k

The weights n_k make a sample count as much on a small client as on a large
one. So if all clients take one step on all their data, a round is one step of
synchronous SGD on the data of all:

    sum of n_k (w - rate * g_k) / n  =  w - rate * (sum of n_k g_k) / n

With more than one step a client drifts toward the optimum of its own data,
and with some of the clients a round knows only their data.

Source: McMahan et al. 2017, algorithm 1.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import Clock, World, meter, report, span, world
from exemplars.sync_strategy.periodic.local_sgd import UNEVEN, local_step
from exemplars.workload import Step, Task, characters, digits


def samples(w: World, task: Task, client: int) -> tuple[Tensor, Tensor]:
    """All that a client has: from 6 to 22 samples that no other one has."""
    x, y = task.batch(client, 6 + 5 * client % 17)
    return x.to(w.device), y.to(w.device)


def picked(clients: int, percent: int, round_: int) -> list[int]:
    """The clients of a round, by rank; at least one."""
    #: A seed instead of a message: nobody has to be told, and the same
    #: clients take part on every run.
    source = torch.Generator().manual_seed(round_)
    order = 1 + torch.randperm(clients, generator=source)
    return [int(k) for k in order[: max(1, clients * percent // 100)]]


def average(weights: Tensor, clients: list[int]) -> None:
    """On the server: send the weights out, and average what comes back."""
    #: To all of them first, so that they train at the same time.
    for k in clients:
        dist.send(weights, k)
    theirs = torch.cat([weights, weights[:1]])
    total = torch.zeros_like(theirs)
    for k in clients:
        dist.recv(theirs, k)
        total += theirs
    #: By the samples of this round, not by those of all clients: the factors
    #: have to add up to 1.
    weights.copy_(total[:-1] / total[-1])


def epoch(
    task: Task, model: nn.Module, x: Tensor, y: Tensor, batch: int, rate: float
) -> float:
    """Steps through all samples once; the loss of the last batch."""
    for rows, labels in zip(x.split(batch), y.split(batch)):
        loss = task.loss(model, rows, labels) / labels.numel()
        local_step(model, loss, rate)
    return loss.item()


def train(
    w: World,
    task: Task,
    *,
    rounds: int,
    percent: int,
    epochs: int,
    local_batch: int,
    rate: float,
    clock: Clock = UNEVEN,
) -> Iterator[Step]:
    """Rank 0 serves, and the others train when they are picked."""
    model = task.model().to(w.device)
    weights = parameters_to_vector(model.parameters()).detach()
    for i in range(rounds):
        clients = picked(w.size - 1, percent, i)
        if w.rank == 0:
            average(weights, clients)
            #: The server has no data, and knows no loss.
            yield Step(float("nan"), [weights])
        elif w.rank in clients:
            dist.recv(weights, 0)
            #: A client forgets its own weights and starts from the server's.
            vector_to_parameters(weights.clone(), model.parameters())
            x, y = samples(w, task, w.rank)
            for _ in range(epochs):
                with span("epoch", label=i, cost=clock(w.rank, i)):
                    loss = epoch(task, model, x, y, local_batch, rate)
            #: The number of samples travels with the weights, as one more
            #: entry: the server need not know who has how many.
            mine = parameters_to_vector(model.parameters()).detach()
            count = mine.new_tensor([len(x)])
            dist.send(torch.cat([count * mine, count]), 0)
            yield Step(loss)


def reference(w: World, task: Task, size: dict[str, Any]) -> Tensor:
    """The server and all clients on one process."""
    weights = parameters_to_vector(task.model().to(w.device).parameters())
    weights = weights.detach()
    count = max(1, (w.size - 1) * size["percent"] // 100)
    for i in range(size["rounds"]):
        order = torch.Generator().manual_seed(i)
        clients = 1 + torch.randperm(w.size - 1, generator=order)[:count]
        data = [samples(w, task, k) for k in clients.tolist()]
        mean, total = 0 * weights, sum(len(x) for x, _ in data)
        for x, y in data:
            mean += len(x) / total * alone(task, weights, x, y, size)
        weights = mean
    return weights


def alone(
    task: Task, weights: Tensor, x: Tensor, y: Tensor, size: dict[str, Any]
) -> Tensor:
    """Where torch's own SGD leads from these weights on these samples."""
    model, batch = task.model().to(x.device), size["local_batch"]
    vector_to_parameters(weights.clone(), model.parameters())
    sgd = torch.optim.SGD(model.parameters(), lr=size["rate"])
    batches = list(zip(x.split(batch), y.split(batch)))
    for rows, labels in size["epochs"] * batches:
        sgd.zero_grad()
        (task.loss(model, rows, labels) / labels.numel()).backward()
        sgd.step()
    return parameters_to_vector(model.parameters()).detach()


def synchronous(w: World, task: Task, rounds: int, rate: float) -> Tensor:
    """On one process, as many steps on the data of all clients together."""
    data = [samples(w, task, k) for k in range(1, w.size)]
    x, y = (torch.cat(parts) for parts in zip(*data))
    start = parameters_to_vector(task.model().to(w.device).parameters())
    size = dict(epochs=rounds, local_batch=len(x), rate=rate)
    return alone(task, start.detach(), x, y, size)


def main(
    w: World, *, rounds: int = 4, percent: int = 70, epochs: int = 2
) -> None:
    w.require(w.size > 1, "1 rank: one serves, the rest train; use 2 or more")
    fits = 0 < percent <= 100 and min(rounds, epochs) > 0
    w.require(fits, f"{rounds} rounds, {epochs} epochs, {percent} percent")
    size: Any = dict(rounds=rounds, percent=percent, epochs=epochs)
    size |= dict(local_batch=5, rate=0.1)
    for task in (digits, characters):
        with meter() as moved:
            steps = list(train(w, task, **size))
        if w.rank == 0:
            weights = steps[-1].weights[0]
            # float64; another order of additions, amplified by a few steps
            w.check(task.name, weights, partial(reference, w, task, size), 256)
    up = sum(e.bytes for e in moved.events if e.kind == "recv")
    seen = dict(down=moved.bytes_sent, up=up) if w.rank == 0 else {}
    once: Any = dict(percent=100, epochs=1, local_batch=32)
    steps = list(train(w, digits, **(size | once)))
    if w.rank == 0:
        whole = partial(synchronous, w, digits, rounds, size["rate"])
        w.check("synchronous", steps[-1].weights[0], whole, slack=256)
    elements = sum(p.numel() for p in characters.model().parameters())
    report(w, given={"elements": elements, "itemsize": 8}, **seen)


if __name__ == "__main__":
    with world() as w:
        main(w)
