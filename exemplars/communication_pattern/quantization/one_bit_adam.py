"""1-bit Adam: once its variance is steady, Adam's momentum fits into bits.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.quantization.one_bit_adam

Adam divides a momentum m by the root of a variance v. Error feedback works
where an error made now can be made up for later by adding it; v is built of
squares, so errors in the gradient do not cancel in it. But v soon hardly
changes. So train in two phases:

    warm-up      all-reduce the gradients, and step as Adam does
    compressed   keep v as it is, and let every rank add its own gradient to
                 the common momentum:   m_r = beta m + (1 - beta) g_r
                 exchange the m_r in bits; their mean is the next m
                 weights = weights - rate * m / (sqrt(v) + epsilon)

The exchange is that of 1-bit SGD: n bits to the owners of the stripes, n bits
back, with an error at both ends. Here one number s stands for all entries, and
a sign chooses between s and -s; s keeps the norm:

    s = |m| / sqrt(n)

A step sends 2n bits where an all-reduce sends about 2n whole numbers.

Source: Tang et al. 2021, algorithm 1; the corrections for bias are those of
Adam itself, which the paper leaves out.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from exemplars.communication_pattern.quantization.one_bit_sgd import (
    OneBit,
    Owner,
    account,
)
from exemplars.runtime import World, meter, report, span, world

BETA, BETA2 = 0.9, 0.999  # as in torch.optim.Adam
#: Large: one bit has no 0, so where the variance is 0 a weight moves by
#: rate * s / epsilon in every step.
EPSILON = 1e-3


class Scaled(OneBit):
    """Signs, and one number that keeps the norm."""

    def levels(self, wanted: Tensor, signs: Tensor) -> Tensor:
        """The root of the mean square."""
        return wanted.square().mean().sqrt().view(1)

    def decode(self, signs: Tensor, levels: Tensor) -> Tensor:
        """The number, with every entry's sign."""
        return torch.where(signs, levels, -levels)


class OneBitAdam:
    """Adam for `warmup` steps, then Adam with a frozen variance, in bits."""

    def __init__(self, weights: Tensor, *, rate: float, warmup: int) -> None:
        self.weights, self.rate = weights, rate
        self.steps, self.warmup = 0, warmup
        self.adam = torch.optim.Adam([weights], lr=rate, eps=EPSILON)
        #: Two errors, of n and of n / p entries: the only state beyond
        #: Adam's own.
        self.sender, self.owner = Scaled(weights), Owner(weights, Scaled)

    def step(self, gradient: Tensor) -> None:
        """Move the weights, given this rank's gradient."""
        self.steps += 1
        if self.steps > self.warmup:
            self.compressed_step(gradient)
            return
        mean = gradient.clone()
        dist.all_reduce(mean)
        with span("Adam", label=self.steps, cost=1):
            self.weights.grad = mean / dist.get_world_size()
            self.adam.step()

    def compressed_step(self, gradient: Tensor) -> None:
        """Exchange momentum in bits; the variance is left as it is."""
        state = self.adam.state[self.weights]
        momentum, variance = state["exp_avg"], state["exp_avg_sq"]
        #: The momentum is the same on all ranks until each adds a gradient
        #: of its own. It is linear in the gradients, so what bits lose of it
        #: can be made up for later.
        own = BETA * momentum + (1 - BETA) * gradient
        total = self.owner.sum_of_all(*self.sender.compress(own))
        with span("compressed", label=self.steps, cost=1):
            #: What arrived, not what was sent: the next step builds on what
            #: all ranks have.
            momentum.copy_(total / dist.get_world_size())
            #: For good as it was after the last step of warm-up: squares of
            #: bits would make it the same for every weight.
            root = (variance / (1 - BETA2**self.warmup)).sqrt()
            ahead = momentum / (1 - BETA**self.steps)
            self.weights.sub_(self.rate * ahead / (root + EPSILON))


def reference(
    start: Tensor, gradients: Tensor, rate: float, warmup: int
) -> Tensor:
    """Adam by its formulas on one process; nothing is packed or sent."""
    ranks, n = gradients.shape[1:]
    m, v, weights = torch.zeros_like(start), torch.zeros_like(start), start
    errors = [m] * (ranks + 1)  # the last one is that of the owners
    for i, slopes in enumerate(gradients, start=1):
        if i <= warmup:
            mean = slopes.mean(0)
            m = BETA * m + (1 - BETA) * mean
            v = BETA2 * v + (1 - BETA2) * mean.square()
        else:
            total = errors[-1]
            for r in range(ranks):
                wanted = errors[r] + BETA * m + (1 - BETA) * slopes[r]
                errors[r] = wanted - same_size(wanted)
                total = total + same_size(wanted)
            stripes = total.split(8 * ((n - 1) // (8 * ranks) + 1))
            m = torch.cat([same_size(part) for part in stripes]) / ranks
            errors[-1] = total - ranks * m
        root = (v / (1 - BETA2 ** min(i, warmup))).sqrt() + EPSILON
        weights = weights - rate / (1 - BETA**i) * m / root
    return weights


def same_size(a: Tensor) -> Tensor:
    """Every entry's sign, times the root of the mean square."""
    return torch.where(a < 0, -1, 1) * a.norm() / len(a) ** 0.5


def plain_adam(start: Tensor, gradients: Tensor, rate: float) -> Tensor:
    """torch's own Adam on one process."""
    weights = start.clone()
    adam = torch.optim.Adam([weights], lr=rate, eps=EPSILON)
    for slopes in gradients:
        weights.grad = slopes.sum(0) / len(slopes)
        adam.step()
    return weights


def main(
    w: World, *, elements: int = 4001, steps: int = 6, warmup: int = 3
) -> None:
    phases = f"warmup = {warmup}: from 1 to {steps - 1}, for {steps} steps"
    w.require(0 < warmup < steps, phases)
    #: Whole numbers: an all-reduce adds them up exactly in whatever order,
    #: so that Adam can be held to the last bit.
    drawn = w.randn(steps, w.size, elements, seed=0) + w.randn(
        elements, seed=0
    )
    gradients, start = (1024 * drawn).round(), w.randn(elements, seed=1)
    adam = OneBitAdam(start.clone(), rate=0.01, warmup=warmup)
    with meter() as moved:
        for i, gradient in enumerate(gradients[:, w.rank], start=1):
            adam.step(gradient)
            if i == warmup:
                warm = adam.weights.clone()
    plain = partial(plain_adam, start, gradients[:warmup], 0.01)
    w.check("warm", warm, plain, slack=0)
    truth = partial(reference, start, gradients, 0.01, warmup)
    # Sums over ranks, in another order.
    w.check("weights", adam.weights, truth, slack=8)
    w.check_same("same", adam.weights)
    accounted = account(gradients[:, w.rank], Scaled)
    total = partial(gradients.sum, (0, 1))
    w.check("identity", accounted, total, slack=4 * steps)
    there, back = moved.calls["all_to_all"], moved.calls["all_gather"]
    before = int(moved.calls["all_reduce"].wire)
    after = int(there.wire + back.wire)
    counts = {"before": before, "after": after, "calls": moved.count}
    report(w, given={"itemsize": start.element_size()}, **counts)


if __name__ == "__main__":
    with world() as w:
        main(w)
