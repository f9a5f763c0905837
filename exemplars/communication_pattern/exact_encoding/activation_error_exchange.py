"""Activations and errors: the server builds the gradient, workers send parts.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.exact_encoding.activation_error_exchange

Rank 0 holds the weights W of a fully connected layer y = x W^T, the others
hold the samples. The gradient of a worker's K samples is a sum of K products,
of the error at the layer's output and of the activation that entered it:

    dW  =  u_1 v_1^T + ... + u_K v_K^T        u: M entries   v: D entries

A worker pushes u and v, K(M + D) entries, instead of the M D of the matrix.
The server multiplies and gets the gradient that the worker would have pushed.
It is smaller while the batch is:

    K (M + D)  <  M D        that is  K < M D / (M + D)

For a square layer of width M that is M / 2 samples, and the number of workers
does not matter, unlike for factors that every rank sends to every other. The
pull stays as it is: the server sends all of W to every worker. And the
products, 2 K M D operations for each worker, are now the server's to compute.

    K samples of each worker   M outputs   D inputs

Source: Chilimbi et al. 2014 (Project Adam), whose workers do not wait for
one another; here they do, step by step.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from exemplars.runtime import World, meter, report, span, world


def factors(weight: Tensor, x: Tensor, target: Tensor) -> list[Tensor]:
    """Errors u and activations v of a worker's samples; no matrix is built."""
    y = F.linear(x, weight).requires_grad_()
    #: Backward stops at the layer's output: the error there, one row per
    #: sample, is all that the layer's own gradient needs.
    (u,) = torch.autograd.grad(loss_of(y, target), y)
    return [u, x]


def loss_of(y: Tensor, target: Tensor) -> Tensor:
    """Summed over samples: losses of all workers add up to that of all."""
    return F.smooth_l1_loss(y, target, reduction="sum")


def work(weight: Tensor, x: Tensor, target: Tensor) -> list[Tensor]:
    """One step of a worker: pull the weights, push what a gradient needs."""
    dist.recv(weight, 0)
    with span("compute", cost=2):
        pair = factors(weight, x, target)
    push(pair)
    return pair


def push(pair: list[Tensor]) -> None:
    """Errors and activations, a message each."""
    for part in pair:
        dist.send(part, 0)


def take(pair: list[Tensor], worker: int) -> None:
    """Errors and activations of one worker, in the order they were sent."""
    for part in pair:
        dist.recv(part, worker)


def serve(weight: Tensor, samples: int) -> Tensor:
    """One step of the server: the gradient of all workers' samples."""
    rows, columns = weight.shape
    workers = range(1, dist.get_world_size())
    #: The whole matrix to everyone: only the way back is shorter.
    for worker in workers:
        dist.send(weight, worker)
    gradient = torch.zeros_like(weight)
    u, v = weight.new_empty(samples, rows), weight.new_empty(samples, columns)
    for worker in workers:
        #: By name and in order, so the sum has the same bits every time.
        take([u, v], worker)
        with span("rebuild", cost=1):
            #: The product that the worker is spared: every worker's, one
            #: after the other, on the one server.
            gradient += u.T @ v
    return gradient


def exchange(
    weight: Tensor, xs: Tensor, targets: Tensor, rate: float
) -> list[Tensor]:
    """Step after step: the server's last gradient, or a worker's last pair."""
    r = dist.get_rank()
    last = list[Tensor]()
    for x, target in zip(xs, targets):
        if r > 0:
            last = work(weight, x[r - 1], target[r - 1])
        else:
            gradient = serve(weight, x.shape[1])
            weight -= rate * gradient
            last = [gradient]
    return last


def push_matrix(pair: list[Tensor], like: Tensor) -> Tensor:
    """The other way: each worker builds its matrix, and pushes that."""
    total = torch.zeros_like(like)
    if dist.get_rank() > 0:
        #: One sample or a thousand, the message is the whole matrix.
        dist.send(pair[0].T @ pair[1], 0)
        return total
    matrix = torch.empty_like(like)
    for worker in range(1, dist.get_world_size()):
        dist.recv(matrix, worker)
        total += matrix
    return total


def reference(
    start: Tensor, xs: Tensor, targets: Tensor, rate: float
) -> list[Tensor]:
    """Autograd on one process: the last gradient, and the weights after it."""
    rows, columns = start.shape
    linear = nn.Linear(columns, rows, bias=False, dtype=start.dtype)
    linear.weight.data = start.clone()
    sgd = torch.optim.SGD(linear.parameters(), lr=rate)
    for x, target in zip(xs, targets):
        sgd.zero_grad()
        y = linear(x.flatten(0, 1))
        nn.SmoothL1Loss(reduction="sum")(y, target.flatten(0, 1)).backward()
        sgd.step()
    assert linear.weight.grad is not None
    return [linear.weight.grad, linear.weight]


def main(
    w: World,
    *,
    steps: int = 3,
    local_batch: int = 4,
    features_out: int = 48,
    features_in: int = 80,
) -> None:
    w.require(w.size > 1, "1 rank: one serves, the rest work; use 2 or more")
    xs = w.randn(steps, w.size - 1, local_batch, features_in, seed=0)
    targets = w.randn(steps, w.size - 1, local_batch, features_out, seed=0)
    start = w.randn(features_out, features_in, seed=0)
    weight = start.clone() if w.rank == 0 else torch.empty_like(start)
    with meter() as moved:
        last = exchange(weight, xs, targets, 0.01)
    with meter(shown=False) as other:
        matrix = push_matrix(last, start)
    given, sent = {"itemsize": start.element_size()}, moved.bytes_sent
    if w.rank == 0:
        truth = partial(reference, start, xs, targets, 0.01)
        # Products of K rows, one worker after the other.
        w.check("gradient", last[0], lambda: truth()[0], slack=8)
        w.check("matrix", matrix, lambda: truth()[0], slack=8)
        w.check("parameters", weight, lambda: truth()[1], slack=8)
        report(w, given=given, bytes_sent=sent)
        return
    #: Of what was really sent: how many samples fit into a matrix.
    of_a_sample = sent // (steps * local_batch)
    most = (other.bytes_sent - 1) // of_a_sample
    sizes = {"dense": other.bytes_sent, "crossover": most}
    report(w, given=given, bytes_sent=sent, **sizes)


if __name__ == "__main__":
    with world() as w:
        main(w)
