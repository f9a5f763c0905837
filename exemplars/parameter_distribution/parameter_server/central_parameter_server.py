"""Central parameter server: one rank keeps all state, and workers keep none.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.parameter_server.central_parameter_server

Rank 0 has the parameters and the optimizer. A worker has samples, a model to
compute with, and a cache for that model's parameters:

             server                       worker
    pull     sends its parameters    ->   its cache is what the server had
    compute                               gradient of its share of the batch
    push     adds up all gradients   <-   sends it
    apply    one step of the optimizer

A worker decides nothing and remembers nothing: here it begins with zeros, and
its first pull makes up for that. So it may come late, or die and be replaced,
and no training is lost. All that must survive is on the server, which knows
the optimizer: change it, and no worker needs to know. AdamW's two moments,
twice the size of the parameters, exist once.

The price is paid on the server's link, which carries 2(p-1) copies of the
parameters per step, where a worker's carries two.

Source: Dean et al. 2012, section 4; Li et al. 2014, section 3.
"""

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import AdamW

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Optimizers, Step, Task, digits, weights_of


class Server:
    """The parameters as one vector, and the only optimizer there is."""

    def __init__(self, weights: Tensor) -> None:
        self.weights = nn.Parameter(weights)
        self.optimizer = AdamW([self.weights])
        self.workers = range(1, dist.get_world_size())

    def answer(self) -> None:
        """Send the parameters to everyone who pulls."""
        for worker in self.workers:
            #: What p - 1 workers pull is the same, but it is sent to each.
            dist.send(self.weights.detach(), worker)

    def apply(self) -> None:
        """Add up what is pushed, and take one step."""
        total = torch.zeros_like(self.weights)
        pushed = torch.empty_like(total)
        for worker in self.workers:
            #: By name and in order: a barrier, and the same bits every time.
            dist.recv(pushed, worker)
            total += pushed
        #: One step for all pushes. A step for each would move the moments
        #: p - 1 times, and no single process does that.
        self.weights.grad = total
        with span("apply", cost=1):
            self.optimizer.step()


class Worker:
    """A model whose parameters are views of a cache."""

    def __init__(self, task: Task, model: nn.Module, cache: Tensor) -> None:
        self.task, self.model, self.cache = task, model, cache
        #: As if it had just come, from nowhere: the server has all there is.
        cache.zero_()

    def step(self, x: Tensor, y: Tensor, batch: int) -> float:
        """Pull, compute on this share of a batch, push; the loss."""
        dist.recv(self.cache, 0)
        with span("compute", cost=3):
            #: Divided by the whole batch: the server only has to add.
            loss = self.task.loss(self.model, x, y) / batch
            parameters = [*self.model.parameters()]
            gradients = torch.autograd.grad(loss, parameters)
        #: Gone with the message: a worker keeps no gradient and no moments.
        dist.send(parameters_to_vector(gradients), 0)
        return loss.item()


def train(w: World, task: Task, *, batch: int, steps: int) -> Iterator[Step]:
    """AdamW on one server; p-1 workers share each batch."""
    model = task.model().to(w.device)
    weights = parameters_to_vector(model.parameters()).detach()
    #: Views of one vector: it travels whole, and what arrives is in use.
    vector_to_parameters(weights, model.parameters())
    if w.rank == 0:
        server = Server(weights)
        for _ in range(steps):
            server.answer()
            server.apply()
            yield Step(float("nan"), [weights])
        return
    worker = Worker(task, model, weights)
    for step in range(steps):
        whole = (t.to(w.device) for t in task.batch(step, batch))
        x, y = (t.tensor_split(w.size - 1)[w.rank - 1] for t in whole)
        yield Step(worker.step(x, y, batch))


def reference(w: World, task: Task, batch: int, steps: int) -> Tensor:
    """The parameters after AdamW on one process, on whole batches."""
    model = task.model().to(w.device)
    adam = AdamW(model.parameters())
    for step in range(steps):
        x, y = (t.to(w.device) for t in task.batch(step, batch))
        adam.zero_grad()
        (task.loss(model, x, y) / batch).backward()
        adam.step()
    return parameters_to_vector(model.parameters()).detach()


def main(w: World, *, batch: int = 50, steps: int = 3) -> None:
    w.require(w.size > 1, "1 rank: one serves, the rest work; use 2 or more")
    optimizers, (weights, task) = Optimizers(), weights_of(w, digits)
    memory = w.memory(
        parameters=lambda: weights,
        gradients=optimizers.gradients,
        optimizer=optimizers.moments,
    )
    with optimizers, memory, meter() as moved:
        for _ in train(w, task, batch=batch, steps=steps):
            memory.mark("step")
    #: What evaluation would pull: a worker's cache is one step behind.
    final = parameters_to_vector(weights).detach()
    dist.broadcast(final, 0)
    # Another order of additions, through Adam's division.
    truth = partial(reference, w, digits, batch, steps)
    w.check("parameters", final, truth, slack=256)
    report(
        w,
        given={"elements": len(final), "itemsize": 8},
        bytes_sent=moved.bytes_sent,
        bytes_received=moved.calls["recv"].payload,
        state=memory.live("step")["optimizer"],
    )


if __name__ == "__main__":
    with world() as w:
        main(w)
