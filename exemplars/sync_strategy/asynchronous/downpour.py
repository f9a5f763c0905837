"""Downpour: a server applies each gradient on arrival, however old it is.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.asynchronous.downpour

Source: Dean et al. 2012, section 4.1, fetching and pushing at every step.

Rank 0 holds the weights and counts their versions; the others are W = p-1
workers. A worker reads, computes, pushes, and reads again. Nobody waits for
anybody, so other updates slip in between a worker's read and its push:

    staleness = version when the gradient is applied - version it was read at

At equal speeds all others push once in the meantime: staleness W-1. Beside a
worker that is k times slower they push k times: its gradients are k(W-1)
versions old, and the others hardly notice it. Nothing bounds that number:
double k and it doubles. What is saved in waiting is paid in age.

Time is virtual: the server knows by name whose gradient comes next.
"""

import heapq
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import digits

SECONDS = 9  # virtual; who is faster makes more updates
SLOWDOWN = 3  # of worker 1
RATE, BATCH = 0.05, 8


def seconds(q: int, k: int) -> int:
    """How long worker q takes for a step: worker 1 is k times slower."""
    return k if q == 1 else 1


class Server:
    """Whose gradient comes next, and how old it is. Holds no tensor."""

    def __init__(self, workers: int, k: int) -> None:
        self.workers, self.k = range(1, workers + 1), k
        self.version = 0
        self.read_at = dict.fromkeys(self.workers, 0)
        self.ages = {q: list[int]() for q in self.workers}  # of gradients
        self.due: list[tuple[int, int]] = []

    def read(self, q: int, now: int) -> None:
        """Worker q reads now; its gradient is due when it has computed."""
        self.read_at[q] = self.version
        heapq.heappush(self.due, (now + seconds(q, self.k), q))

    def run(self) -> Iterator[tuple[str, int]]:
        """In order of virtual time: answer q's read, or take q's gradient."""
        for q in self.workers:
            self.read(q, 0)
            yield "answer", q
        while self.due:
            now, q = heapq.heappop(self.due)
            self.ages[q].append(self.version - self.read_at[q])
            yield "take", q
            self.version += 1
            if len(self.ages[q]) < SECONDS // seconds(q, self.k):
                self.read(q, now)
                yield "answer", q

    def steady(self) -> list[int]:
        """All ages but those of each worker's first gradient."""
        return [age for ages in self.ages.values() for age in ages[1:]]


def serve(weights: Tensor, server: Server) -> None:
    """Apply what arrives, at once; send the newest weights back."""
    arrived = torch.empty_like(weights)
    for what, q in server.run():
        if what == "take":
            dist.recv(arrived, q)
            weights -= RATE * arrived
        else:
            dist.send(weights, q)


def work(w: World, weights: Tensor, model: nn.Module, k: int) -> None:
    """Read, compute, push, and never wait for another worker."""
    mine = seconds(w.rank, k)
    for step in range(SECONDS // mine):
        dist.recv(weights, 0)
        with span("compute", label=step, cost=mine):
            gradient = gradient_of(model, weights, w.rank, step)
        dist.send(gradient, 0)


def gradient_of(model: nn.Module, read: Tensor, q: int, step: int) -> Tensor:
    """Worker q's gradient at the weights it read."""
    vector_to_parameters(read, model.parameters())
    x, y = (t.to(read.device) for t in digits.batch(1000 * q + step, BATCH))
    loss = digits.loss(model, x, y) / y.numel()
    grads = torch.autograd.grad(loss, [*model.parameters()])
    return torch.cat([g.view(-1) for g in grads])


def train(w: World, k: int) -> tuple[Tensor, Server]:
    """Rank 0's weights and books are the ones that count."""
    model, server = digits.model().to(w.device), Server(w.size - 1, k)
    weights = parameters_to_vector(model.parameters()).detach()
    if w.rank == 0:
        serve(weights, server)
    else:
        work(w, weights, model, k)
    return weights, server


def reference(w: World, k: int) -> Tensor:
    """The same order of reads and updates, on one process."""
    model = digits.model().to(w.device)
    weights = parameters_to_vector(model.parameters()).detach()
    server, read = Server(w.size - 1, k), dict[int, Tensor]()
    for what, q in server.run():
        if what == "answer":
            read[q] = weights.clone()
        else:
            step = len(server.ages[q]) - 1
            weights -= RATE * gradient_of(model, read[q], q, step)
    return weights


def main(w: World) -> None:
    w.require(w.size > 1, "1 rank: one serves, the rest work; use 2 or more")
    weights, equal = train(w, k=1)
    with meter() as moved:
        late, uneven = train(w, k=SLOWDOWN)
    found = dict[str, int]()
    if w.rank == 0:
        w.check("order", weights, lambda: reference(w, k=1), slack=0)
        w.check("order", late, lambda: reference(w, k=SLOWDOWN), slack=0)
        ages, found["straggler"] = equal.steady(), uneven.ages.pop(1)[-1]
        found["others"] = max(uneven.steady(), default=0)
        found |= dict(youngest=min(ages), oldest=max(ages))
    given = dict(n=len(weights), b=8, t=SECONDS, k=SLOWDOWN)
    found["updates"] = moved.calls["recv" if w.rank == 0 else "send"].count
    report(w, given=given, bytes_sent=moved.bytes_sent, **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
