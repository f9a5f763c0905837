"""Stale-synchronous parallel: fast workers run ahead, by at most s clocks.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.bounded_staleness.stale_synchronous_parallel

Source: Ho et al. 2013.

Rank 0 holds the weights. A worker reads them, works for one clock, and pushes
its update, which is applied on arrival. Its read for clock c is granted once
the slowest worker has finished clock c - s:

    c - min(finished) <= s            s = 0 is bulk synchrony

so a read at clock c sees every update of clocks up to c-s-1, and the
worker's own. A read that comes too early *waits*, and the server must wake
it when the slowest one moves. Time is virtual, a pure function of worker and
clock: the server knows by name whose update comes next, and order and weights
are the same on every run and every backend.
"""

import heapq
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import World, meter, one_slow, report, span, world
from exemplars.workload import digits

CLOCKS = 6
STALENESS = 1
SLOWDOWN = 3  # of worker 1
RATE, BATCH = 0.05, 8
seconds = one_slow(rank=1, factor=SLOWDOWN)


class Server:
    """Who may read, and whose update comes next. Holds no tensor."""

    def __init__(self, workers: int) -> None:
        self.finished = dict.fromkeys(range(1, workers + 1), 0)
        self.behind = [workers] * CLOCKS  # who has yet to finish clock c
        self.slowest = 0  # clocks that everyone has finished
        self.waiting: list[int] = []
        self.gap = self.missing = self.waits = 0
        #: A heap, not a scan: the next of a thousand workers in ten steps.
        self.due = [(seconds(q, 0), q) for q in self.finished]
        heapq.heapify(self.due)

    def may_read(self, q: int) -> bool:
        """Whether worker q is close enough to the slowest."""
        return self.finished[q] - self.slowest <= STALENESS

    def finish(self, q: int) -> None:
        """Worker q's update of one more clock has been applied."""
        self.behind[self.finished[q]] -= 1
        self.finished[q] += 1
        while self.slowest < CLOCKS and self.behind[self.slowest] == 0:
            self.slowest += 1

    def grant(self, q: int, now: float) -> None:
        """Worker q reads now; its update is due when it has computed."""
        c = self.finished[q]
        self.gap = max(self.gap, c - self.slowest)
        self.missing += max(0, c - STALENESS - self.slowest)
        heapq.heappush(self.due, (now + seconds(q, c), q))

    def run(self) -> Iterator[tuple[str, int]]:
        """In order of virtual time: answer q's read, or take q's update."""
        yield from (("answer", q) for q in self.finished)  # all at clock 0
        while self.due:
            now, q = heapq.heappop(self.due)
            yield "take", q
            self.finish(q)
            if self.finished[q] < CLOCKS:
                self.waiting.append(q)
                self.waits += not self.may_read(q)
            #: Whoever may go on now is woken, not only the one that came.
            for ready in [x for x in self.waiting if self.may_read(x)]:
                self.waiting.remove(ready)
                self.grant(ready, now)
                yield "answer", ready


def serve(w: World, weights: Tensor) -> Server:
    """Apply updates as they arrive; send the weights to those who may read."""
    server, update = Server(w.size - 1), torch.empty_like(weights)
    for what, q in server.run():
        if what == "take":
            dist.recv(update, q)
            weights.add_(update)
        else:
            dist.send(weights, q)
    return server


def work(w: World, model: nn.Module) -> None:
    """Read, compute, push, once a clock."""
    weights = parameters_to_vector(model.parameters()).detach()
    for c in range(CLOCKS):
        dist.recv(weights, 0)
        with span("compute", label=c, cost=seconds(w.rank, c)):
            update = gradient_step(model, weights, w.rank, c)
        dist.send(update, 0)


def gradient_step(model: nn.Module, weights: Tensor, q: int, c: int) -> Tensor:
    """Worker q's update at clock c, from the weights it read."""
    vector_to_parameters(weights, model.parameters())
    x, y = (t.to(weights.device) for t in digits.batch(1000 * q + c, BATCH))
    loss = digits.loss(model, x, y)
    grads = torch.autograd.grad(loss, [*model.parameters()])
    return torch.cat([g.view(-1) for g in grads]).mul_(-RATE / y.numel())


def reference(w: World) -> Tensor:
    """The same order of reads and updates, on one process."""
    model = digits.model().to(w.device)
    weights = parameters_to_vector(model.parameters()).detach()
    server, read = Server(w.size - 1), dict[int, Tensor]()
    for what, q in server.run():
        if what == "answer":
            read[q] = weights.clone()
        else:
            weights += gradient_step(model, read[q], q, server.finished[q])
    return weights


def main(w: World) -> None:
    w.require(w.size > 1, "1 rank: one serves, the rest work; use 2 or more")
    model, found = digits.model().to(w.device), dict[str, int]()
    weights = parameters_to_vector(model.parameters()).detach()
    with meter() as moved:
        if w.rank == 0:
            server = serve(w, weights)
        else:
            work(w, model)
    if w.rank == 0:
        w.check("order", weights, lambda: reference(w), slack=0)
        found = dict(gap=server.gap, sees=server.missing, waits=server.waits)
    given = dict(n=len(weights), b=8, t=CLOCKS, s=STALENESS, k=SLOWDOWN)
    found["updates"] = moved.calls["recv" if w.rank == 0 else "send"].count
    report(w, given=given, bytes_sent=moved.bytes_sent, **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
