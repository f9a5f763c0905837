"""Peer-memory checkpoint: k copies of every shard survive any k - 1 deaths.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.durable_state.peer_memory_checkpoint

Memory of another machine is as good as a disk, if it does not die as well. So
each rank keeps its shard of the state and sends copies to k - 1 peers, every
few steps, over the network that is there anyway. Ranks form groups of k, in
which everybody holds everything; where k does not divide p, the last group is
larger, and its ranks lie on a ring:

    p = 8, k = 3     0 1 2    3 4 5 6 7      3 is held by 3, 4, 5
                                             7 is held by 7, 3, 4

When up to k - 1 ranks die, a copy of each shard is left. New workers get the
shards of the dead, all others go back to their own copy, and all make copies
again: nobody reads a disk.

When k die, it is a matter of luck. Something is lost if they are all holders
of one shard: p/k of all sets of k in groups, and p of them on a ring. So it
matters not only how many copies there are, but where.

A rank supervises here: its worker, which trains and dies, is a process of its
own (exemplars/elastic.py).

Source: Wang et al. 2023 (GEMINI: copies in CPU memory, placed in groups).
"""

import os
import signal
from collections.abc import Iterator
from functools import partial
from itertools import combinations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from exemplars.elastic import Crew
from exemplars.runtime import World, meter, report, world
from exemplars.sync_strategy.elastic.quorum_step import Replica, reference
from exemplars.workload import Step, Task, digits

BATCH, RATE = 40, 0.1


def holders(owner: int, ranks: int, copies: int) -> list[int]:
    """The ranks that hold a rank's state, itself first."""
    #: A group of k loses something only if all of it dies. On one ring of
    #: all ranks, any k neighbors would do.
    group = min(owner // copies, ranks // copies - 1)
    last = group == ranks // copies - 1
    members = range(ranks)[group * copies :][: ranks if last else copies]
    place = members.index(owner)
    return [members[(place + i) % len(members)] for i in range(copies)]


class Owner(Replica):
    """One shard of weights and momentum, in a process that may die."""

    def __init__(self, w: World, task: Task, batch: int, copies: int) -> None:
        super().__init__(w, task, batch, {})
        self.held = [holders(r, w.size, copies) for r in range(w.size)]
        self.own, self.copies = shard(w, self.state), dict[int, Tensor]()

    def step(self, step: int, dies: bool) -> float:
        """Gather the weights, compute, and update the shard."""
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        weights, momentum = self.own
        self.state = weights.new_empty(1, self.w.size * len(weights))
        dist.all_gather_single(self.state[0], weights)
        self.compute(step)
        self.exchange(step)
        samples, loss = self.total[-2:].tolist()
        momentum.mul_(0.9).add_(shard(self.w, self.total[:-2] / samples))
        weights.sub_(RATE * momentum)
        return float(loss / samples)

    def replicate(self) -> None:
        """Send copies of the state to those who shall hold them."""
        me = self.w.rank
        owners = [o for o, held in enumerate(self.held) if me in held]
        self.copies = {owner: self.own.clone() for owner in owners}
        send = partial(dist.P2POp, dist.isend, self.copies[me])
        #: In one batch, or ranks of a ring would all wait for one another.
        batch = [send(peer) for peer in self.held[me][1:]]
        for owner in self.copies.keys() - {me}:
            batch.append(dist.P2POp(dist.irecv, self.copies[owner], owner))
        for work in dist.batch_isend_irecv(batch):
            work.wait()

    def recover(self, dead: list[int]) -> None:
        """Go back to the copies: one's own, or from who else has it."""
        me = self.w.rank
        for owner in dead:
            #: All know who is dead, so nobody has to ask.
            source = next(r for r in self.held[owner] if r not in dead)
            if me == source:
                dist.send(self.copies[owner], owner)
            if me == owner:
                dist.recv(self.own, source)
        if me not in dead:
            #: The living have gone on; the dead cannot.
            self.own.copy_(self.copies[me])


def shard(w: World, whole: Tensor) -> Tensor:
    """This rank's part of each row, padded until p divides it."""
    padded = F.pad(whole, (0, -whole.shape[-1] % w.size))
    return padded.chunk(w.size, -1)[w.rank].clone()


def recover(crew: Crew) -> None:
    """New workers for the dead, which get their state from the living."""
    alive = crew.agree(crew.alive)
    if not crew.alive:
        crew.start()
    crew.form(range(crew.w.size))
    crew.ask("recover", [r for r in alive if not alive[r]])
    #: The dead held copies, too.
    crew.ask("replicate")


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    copies: int,
    interval: int,
    crashes: dict[int, range],
) -> Iterator[Step]:
    """The supervisor; some ranks' workers are killed in some steps."""
    with Crew(w, Owner, w, task, BATCH, copies) as crew:
        crew.form(range(w.size))
        crew.ask("replicate")
        step = told = 0
        while step < steps:
            loss = crew.ask("step", step, w.rank in crashes.get(step, ()))
            if not crew.unanimous(loss):
                crashes = {s: who for s, who in crashes.items() if s != step}
                recover(crew)
                #: To the step of the copies, which all made in one go.
                step -= step % interval
                continue
            step += 1
            if step % interval == 0:
                crew.ask("replicate")
            if step > told:
                told = step
                yield Step(loss, list(crew.ask("own")))


def lost(ranks: int, copies: int, deaths: int) -> int:
    """Of all sets of so many ranks, those whose death loses a shard."""
    held = [set(holders(r, ranks, copies)) for r in range(ranks)]
    every = map(set, combinations(range(ranks), deaths))
    return sum(any(own <= dead for own in held) for dead in every)


def main(w: World, *, copies: int = 2, interval: int = 2) -> None:
    w.require(1 < copies <= w.size, f"{copies} copies: use 2 to {w.size}")
    steps, middle = 3 * interval, interval + interval // 2
    first, last = range(copies - 1), range(w.size - copies, w.size - 1)
    crashes = {middle: first, middle + interval: last}
    run = partial(train, w, digits, copies=copies, interval=interval)
    *_, calm = run(steps=steps, crashes={})
    with meter() as moved:
        *_, done = run(steps=steps, crashes=crashes)
    w.check("resumed", done.weights, lambda: calm.weights, slack=0)
    # float64; another order of additions, amplified by the steps
    whole = torch.stack(reference(w, digits, steps, BATCH, RATE, {})[1:])
    truth = [*shard(w, whole)]
    w.check("parameters", done.weights, lambda: truth, slack=64)
    total = torch.tensor(moved.bytes_sent, device=w.device)
    dist.all_reduce(total)
    found = {"sent": int(total), "safe": lost(w.size, copies, copies - 1)}
    found["killed"] = sum(e.kind == "killed" for e in moved.events)
    found["fatal"] = lost(w.size, copies, copies)
    given = {"elements": whole.shape[1], "itemsize": 8}
    report(w, given=given, **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
