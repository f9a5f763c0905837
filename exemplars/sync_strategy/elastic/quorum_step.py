"""Quorum step: a replica dies in the middle of a step, and the others take it.

    torchrun --standalone --nproc-per-node 4 -m exemplars.sync_strategy.elastic.quorum_step

An all-reduce needs everybody: one dead replica, and all others have an error.
So a step is taken in two parts. First the gradients are added up, which may
fail. Then all agree on what became of everyone, and only if the exchange was
complete for every member do they update. Otherwise the living form a smaller
group and exchange again:

    replica 0   compute   [sum ..  error]  agree  [sum]  agree  update
    replica 1   compute   [sum ..  error]  agree  [sum]  agree  update
    replica 2   compute   [sum ..  SIGKILL

They send what they had computed, so one exchange is lost and no gradient. The
samples are added up with the gradients, and the update is the mean over the
samples of the living: no step is repeated with other weights, none is taken
with half a sum.

A new worker on the dead one's rank joins between two steps. It copies the
weights and the momentum of a survivor, and its bits are those of the others
from then on.

A rank supervises here: its worker, which computes and dies, is a process of
its own (exemplars/elastic.py).

Source: Salpekar et al. 2026 (FT-HSDP, abstract); torchft (the vote).
"""

import os
import signal
from collections.abc import Iterator
from functools import partial
from math import nan
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import SGD

from exemplars.elastic import Crew
from exemplars.runtime import World, meter, report, world
from exemplars.workload import Step, Task, digits

Plan = dict[int, int]  # in which step whose worker dies, or is back


class Replica:
    """A copy of the model, in a process that may die."""

    def __init__(self, w: World, task: Task, batch: int, plan: Plan) -> None:
        self.w, self.task, self.batch, self.plan = w, task, batch, plan
        self.model = task.model().to(w.device)
        weights = parameters_to_vector(self.model.parameters()).detach()
        #: Weights and momentum: all that a newcomer has to copy.
        self.state = torch.stack([weights, torch.zeros_like(weights)])

    def compute(self, step: int) -> None:
        """The gradient of this replica's share, its samples, and its loss."""
        vector_to_parameters(self.state[0], self.model.parameters())
        #: Cut by rank, not by place in the group: the samples of the dead are
        #: left out, and nobody else's change.
        whole = self.task.batch(step, self.batch)
        shares = (t.tensor_split(self.w.size)[self.w.rank] for t in whole)
        x, y = (t.to(self.w.device) for t in shares)
        loss = self.task.loss(self.model, x, y)
        slope = torch.autograd.grad(loss, list(self.model.parameters()))
        more = loss.new_tensor([y.numel(), loss.item()])
        self.mine = torch.cat([parameters_to_vector(slope), more])

    def exchange(self, step: int) -> bool:
        """Add up what the members computed, in two buckets."""
        #: Into a copy: when the second breaks, the first is a sum already,
        #: with the share of the dead in it.
        self.total = self.mine.clone()
        first, second = self.total.tensor_split(2)
        dist.all_reduce(first)
        if self.plan.get(step) == self.w.rank:
            #: No exception and no goodbye: the kernel ends the process here.
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(second)
        return True

    def update(self, rate: float) -> float:
        """Momentum SGD with the mean over all samples of the members."""
        samples, loss = self.total[-2:].tolist()
        weights, momentum = self.state
        momentum.mul_(0.9).add_(self.total[:-2] / samples)
        weights.sub_(rate * momentum)
        return float(loss / samples)

    def copy(self, source: int, survived: bool) -> None:
        """Have the state of the member at this place in the group."""
        state = self.state.clone()
        dist.broadcast(state, source)
        #: Who survived keeps its own: that these are the same bits is a
        #: claim, and should not be made true here.
        self.state = self.state if survived else state


def regroup(crew: Crew) -> None:
    """Those who live are the group; who is new copies from who is not."""
    #: All supervisors hear the same, so all draw the same conclusion, also
    #: those whose worker is dead.
    living = [r for r, alive in crew.agree(crew.alive).items() if alive]
    old = [r for r in living if r in crew.members]
    if living != crew.members:
        crew.form(living)
    if len(old) < len(living):
        crew.ask("copy", living.index(old[0]), crew.w.rank in old)


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    batch: int,
    rate: float,
    plan: Plan,
    back: Plan,
) -> Iterator[Step]:
    """The supervisor, which knows of a death only by what it hears."""
    with Crew(w, Replica, w, task, batch, plan) as crew:
        crew.form(range(w.size))
        for step in range(steps):
            if back.get(step) == w.rank:
                crew.start()
            regroup(crew)
            crew.ask("compute", step)
            #: Who has the sum may not update alone: another may not have it.
            while not crew.unanimous(crew.ask("exchange", step)):
                regroup(crew)
            loss, state = crew.ask("update", rate), crew.ask("state")
            yield Step(loss, list(state)) if crew.alive else Step(nan)


def reference(
    w: World, task: Task, steps: int, batch: int, rate: float, gone: Plan
) -> list[torch.Tensor]:
    """One process: in every step, the samples of whoever is not gone."""
    model = task.model().to(w.device)
    weights = list(model.parameters())
    sgd = SGD(weights, lr=rate, momentum=0.9)
    for step in range(steps):
        x, y = (t.to(w.device) for t in task.batch(step, batch))
        cut = torch.arange(batch, device=w.device).tensor_split(w.size)
        kept = torch.cat([c for r, c in enumerate(cut) if gone.get(step) != r])
        loss = task.loss(model, x[kept], y[kept]) / len(kept)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    momentum = [sgd.state[p]["momentum_buffer"] for p in weights]
    return [loss, *map(parameters_to_vector, (weights, momentum))]


def main(
    w: World, *, steps: int = 8, batch: int = 50, kills: int = 2, away: int = 2
) -> None:
    w.require(w.size > 1, f"{w.size} rank: use 2 or more, so that one is left")
    w.require(min(kills, away) > 0, f"{kills} kills, {away} steps away: none")
    w.require(1 + kills * (away + 1) <= steps, f"{steps} steps: too few")
    w.require(batch >= w.size, f"{batch} samples: fewer than {w.size} ranks")
    #: The last rank, then rank 0, and so on: also the first of a group dies,
    #: from which the newcomer before it has copied.
    plan = {1 + i * (away + 1): (i - 1) % w.size for i in range(kills)}
    back = {step + away: rank for step, rank in plan.items()}
    gone = {step + k: rank for step, rank in plan.items() for k in range(away)}
    sizes: Any = dict(steps=steps, batch=batch, rate=0.1)
    with meter() as moved:
        for done in train(w, digits, plan=plan, back=back, **sizes):
            state = done.weights
    loss = state[0].new_tensor(done.loss)
    # float64; another order of additions, amplified by the steps
    alone = partial(reference, w, digits, gone=gone, **sizes)
    w.check("parameters", [loss, *state], alone, slack=64)
    w.check_same("same", state)
    report(
        w,
        given={"elements": state[0].numel(), "itemsize": 8},
        killed=sum(e.kind == "killed" for e in moved.events),
        payload=moved.calls["all_reduce"].payload,
        copied=moved.calls["broadcast"].payload,
    )


if __name__ == "__main__":
    with world() as w:
        main(w)
