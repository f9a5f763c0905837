"""Synchronized batch norm: normalize by the whole batch, not by one's share.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.replicated.synchronized_batch_norm

A batch norm gives each channel mean 0 and variance 1 over the batch, so what
it makes of a sample depends on all the others. Where the batch is cut, each
rank would use the mean of its own few samples, and the network would be
another one. So the ranks add up what the whole batch has to say:

    forward    sum of x, and how many           C + 1 numbers
               sum of (x - mean)^2              C
    backward   sum of dy, sum of dy * x_hat     2C

    dx = weight / deviation * (dy - mean(dy) - x_hat * mean(dy * x_hat))

One all-reduce forward would do, of x and x^2, as variance = E(x^2) - E(x)^2.
But these two are large and nearly equal where the mean is large, and little
is left of the difference. Two in a row lose nothing.

The means are over samples, so shares may be uneven, and even empty: a rank
without samples adds zeros, but it has to take part.

    N samples of this rank   C channels   S positions

Source: Peng et al. 2018, cross-GPU batch normalization.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from exemplars.runtime import World, meter, report, span, world


class Normalize(torch.autograd.Function):
    """x_hat, by mean and variance of all ranks' samples; and those two."""

    @staticmethod
    def forward(
        ctx: Any, x_NCS: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        size = x_NCS.numel() // x_NCS.shape[1]
        count = x_NCS.new_full((1,), size)
        #: Sums and a count, not the mean: a mean of the ranks' means would
        #: favor the samples of small shares.
        told = torch.cat([x_NCS.sum((0, 2)), count])
        dist.all_reduce(told)
        #: A copy is kept for backward: a view would keep all of the sums.
        total_C, count = told[:-1], told[-1].clone()
        centered_NCS = x_NCS - (total_C / count)[:, None]
        #: Around the mean of all: around one's own it would be too small.
        square_C = centered_NCS.square().sum((0, 2))
        dist.all_reduce(square_C)
        scale_C = (square_C / count + eps).rsqrt()
        hat_NCS = centered_NCS * scale_C[:, None]
        ctx.save_for_backward(hat_NCS, scale_C, count)
        #: By n / (n - 1), and n too is that of the whole batch.
        unbiased_C = square_C / (count - 1)
        return hat_NCS, total_C / count, unbiased_C

    @staticmethod
    def backward(
        ctx: Any, dhat_NCS: Tensor, *_: Tensor
    ) -> tuple[Tensor, None]:
        hat_NCS, scale_C, count = ctx.saved_tensors
        #: Each sample moved the mean and variance that all ranks used, so
        #: its gradient depends on the gradients of all samples.
        terms = dhat_NCS, dhat_NCS * hat_NCS
        told_2C = torch.stack([term.sum((0, 2)) for term in terms])
        dist.all_reduce(told_2C)
        shift_C, slope_C = told_2C / count
        through = dhat_NCS - shift_C[:, None] - hat_NCS * slope_C[:, None]
        return through * scale_C[:, None], None


def averages(norm: nn.BatchNorm2d) -> list[Tensor]:
    """The running mean and variance, by which evaluation normalizes."""
    return [*norm.buffers()][:2]


class SyncNorm(nn.Module):
    """A batch norm whose batch is spread over the ranks."""

    def __init__(self, whole: nn.BatchNorm2d) -> None:
        super().__init__()
        if whole.momentum is None:
            raise ValueError(f"{whole}: needs a momentum")
        self.whole, self.momentum = whole, whole.momentum

    def forward(self, x: Tensor) -> Tensor:
        """(samples, channels, rows, columns) to the same."""
        if not self.training:
            #: What was learned of the data is known to every rank already.
            return self.whole(x)
        out = Normalize.apply(x.flatten(2), self.whole.eps)
        hat_NCS, mean_C, variance_C = out
        #: The same on all ranks, so their copies stay alike with no message.
        self.follow(mean_C.detach(), variance_C.detach())
        #: Outside: a rank's gradients of weight and bias are of its own
        #: samples, for data parallelism to add up like all others.
        y_NCS = hat_NCS * self.whole.weight[:, None]
        return (y_NCS + self.whole.bias[:, None]).view_as(x)

    def follow(self, mean_C: Tensor, variance_C: Tensor) -> None:
        """Move the averages that evaluation will use."""
        for average, seen in zip(averages(self.whole), (mean_C, variance_C)):
            average.lerp_(seen, self.momentum)


def layer(w: World, channels: int) -> nn.BatchNorm2d:
    """The same on every rank, with a weight and a bias for each channel."""
    norm = nn.BatchNorm2d(channels, device=w.device, dtype=torch.double)
    norm.weight.data = w.randn(channels, seed=0)
    norm.bias.data = w.randn(channels, seed=1)
    return norm


def data(w: World, *shape: int) -> tuple[Tensor, Tensor, Tensor]:
    """Two batches whose channels' means go up to 100, and a gradient."""
    means = torch.linspace(0, 100, shape[1], device=w.device)[:, None, None]
    x, dy, later = (w.randn(*shape, seed=seed) for seed in range(3))
    return x + means, dy, later + means


def reference(w: World, *shape: int) -> list[Tensor]:
    """One process: output, gradients, averages, and the later output."""
    norm, (x, dy, later) = layer(w, shape[1]), data(w, *shape)
    y = norm(x.requires_grad_())
    grads = torch.autograd.grad(y, [x, norm.weight, norm.bias], dy)
    mean, variance, *_ = norm.buffers()
    evaluated = norm.eval()(later).detach()
    return [y.detach(), *grads, mean, variance, evaluated]


def step(
    w: World, norm: SyncNorm, x: Tensor, dy: Tensor
) -> tuple[list[Tensor], dict[str, int]]:
    """Forward and backward: output and gradients; what it kept and sent."""
    learned = [x.requires_grad_(), *norm.parameters()]
    memory = w.memory(
        parameters=norm.parameters,
        gradients=lambda: [p.grad for p in norm.parameters()],
        inputs=lambda: [x],
    )
    with memory:
        with meter() as forward, span("forward", cost=1):
            y = norm(x)
        with meter() as backward, span("backward", cost=2):
            y.backward(dy)
    sent = {"payload": forward.payload, "payload_backward": backward.payload}
    kept = memory.peak["activations"]
    grads = [t.grad for t in learned if t.grad is not None]
    return [y, *grads], {"calls": forward.count, "activations": kept, **sent}


def main(
    w: World, *, batch: int = 13, channels: int = 6, side: int = 5
) -> None:
    shape = (batch, channels, side, side)
    norm, (*whole, later) = SyncNorm(layer(w, channels)), data(w, *shape)
    #: 13 samples on 4 ranks are shares of 4, 3, 3 and 3.
    x, dy = (t.tensor_split(w.size)[w.rank].clone() for t in whole)
    (y, *grads), counts = step(w, norm, x, dy)
    for gradient in grads[1:]:
        dist.all_reduce(gradient)  # as data parallelism would
    truth = reference(w, *shape)
    own = [t.tensor_split(w.size)[w.rank] for t in truth[:2]]
    # A mean of 100 costs a deviation of 1 some of its digits.
    w.check("output", y, lambda: own[0], slack=64)
    w.check("gradients", grads, lambda: own[1:] + truth[2:4], slack=1024)
    w.check("averages", averages(norm.whole), lambda: truth[4:6], slack=16)
    w.check_same("same", averages(norm.whole))
    after = norm.eval()(later).detach()
    w.check("evaluated", after, lambda: truth[6], slack=256)
    sizes = {"norms": 1, "norm_channels": channels, "itemsize": 8}
    report(w, given={**sizes, "inputs": whole[0][0].numel()}, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
