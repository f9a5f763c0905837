"""Random state per axis: each rank draws its slice of one process's numbers.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.intra_layer.random_state_per_axis

Where a tensor is cut, ranks need different random numbers; where it is whole,
they need the same. With a generator for each rank, somebody has to say which
seed belongs to which axis, and a slip is silent:

                        tensor ranks     data ranks
    weights, cut        different        same
    biases, whole       same             same
    mask of neurons     different        different
    mask of outputs     same             different

A generator without state needs no such table. The number at a place is a hash
of the seed, of what is drawn, and of where it is in the whole tensor:

    number  =  mix(mix(mix(seed + what) + row) + column)

Each rank asks for the places it holds, and for no others. Whatever p is, and
however a tensor is cut, the slices together are what one process draws.

    B samples   N neurons of this rank   H width

Source: Salmon et al. 2011 (counter-based generators); Shoeybi et al. 2019,
appendix B, keeps one generator per rank and one that all ranks share.
"""

from itertools import product
from math import gcd

import torch
import torch.distributed as dist
from torch import Tensor, nn

from exemplars.parameter_distribution.intra_layer import (
    tensor_parallel_column_row as tensor_parallel,
)
from exemplars.runtime import World, meter, report, world

Group = dist.ProcessGroup
DROPPED = 0.25  # of neurons and outputs
UP, DOWN, BIAS, NEURONS, OUTPUTS = range(5)  # what is drawn
STEP = 0x9E3779B97F4A7C15 - 2**64  # as signed numbers of 64 bits
FIRST = 0xBF58476D1CE4E5B9 - 2**64
SECOND = 0x94D049BB133111EB - 2**64


def mix(z: Tensor) -> Tensor:
    """A hash of 64 bits: one changed bit of z changes half of the result."""
    #: Products wrap around; shifts must not drag the sign along.
    z = (z ^ (z >> 30 & (1 << 34) - 1)) * FIRST
    z = (z ^ (z >> 27 & (1 << 37) - 1)) * SECOND
    return z ^ (z >> 31 & (1 << 33) - 1)


def uniform(seed: int, *places: int | Tensor) -> Tensor:
    """Numbers in [0, 1), one for each place: no state, so no order."""
    z = torch.as_tensor(seed)
    for place in places:
        z = mix((z + place + 1) * STEP)
    #: 53 bits fill a double exactly: the same bits on every device.
    return (z >> 11 & (1 << 53) - 1).double() * 2.0**-53


def axes(p: int, data_ranks: int) -> tuple[Group, Group]:
    """This rank's tensor ranks, and its data ranks, in a box of all."""
    box = torch.arange(p).view(gcd(data_ranks, p), -1)
    tensor, _ = dist.new_subgroups_by_enumeration(box.tolist())
    data, _ = dist.new_subgroups_by_enumeration(box.T.tolist())
    return tensor, data


class Perceptron(nn.Module):
    """A rank's neurons of a layer with dropout on neurons and outputs."""

    def __init__(
        self, n_N: Tensor, h_H: Tensor, hidden: int, seed: int, group: Group
    ) -> None:
        super().__init__()
        #: Places in the whole layer: all that a rank knows of itself.
        self.n_N, self.h_H, self.seed, self.group = n_N, h_H, seed, group
        self.up_NH = self.initial(len(h_H), UP, n_N[:, None], h_H)
        #: The spread follows from whole rows, however long the rank's are.
        self.down_HN = self.initial(hidden, DOWN, h_H[:, None], n_N)
        self.bias_H = self.initial(hidden, BIAS, 0, h_H)

    def initial(self, fan_in: int, *places: int | Tensor) -> nn.Parameter:
        """As nn.Linear does it: uniform within 1 / sqrt(fan_in)."""
        numbers = uniform(self.seed, *places)
        return nn.Parameter((2 * numbers - 1) / fan_in**0.5)

    def mask(self, *places: int | Tensor) -> Tensor:
        """Zero at a quarter of the places, 4/3 at the others."""
        return (uniform(self.seed, *places) >= DROPPED) / (1 - DROPPED)

    def forward(self, x_BH: Tensor, b_B1: Tensor, step: int) -> Tensor:
        """Of samples with these numbers in the whole batch, in this step."""
        x_BH = tensor_parallel.Enter.apply(x_BH, self.group)
        n_BN = (x_BH @ self.up_NH.T).tanh()
        #: Cut along both axes, so no two ranks share a place.
        n_BN = n_BN * self.mask(NEURONS, step, b_B1, self.n_N)
        y_BH = tensor_parallel.Leave.apply(n_BN @ self.down_HN.T, self.group)
        #: Whole on tensor ranks, which therefore ask for the same places.
        mask_BH = self.mask(OUTPUTS, step, b_B1, self.h_H)
        return (y_BH + self.bias_H) * mask_BH


def gradients(
    layer: Perceptron, x_BH: Tensor, b_B: Tensor, step: int, data: Group
) -> list[Tensor]:
    """Of how badly the layer gives back what was put in."""
    mine_BH = x_BH[b_B]
    away_BH = layer(mine_BH, b_B[:, None], step) - mine_BH
    away_BH.square().sum().backward()
    sums = tensor_parallel.gradients(layer.parameters())
    for gradient in sums:
        dist.all_reduce(gradient, group=data)
    return sums


def number(seed: int, *places: int) -> float:
    """The same, one number at a time, in Python's unbounded integers."""
    z, most = seed, 2**64 - 1
    for place in places:
        z = (z + place + 1) * 0x9E3779B97F4A7C15 & most
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & most
        z = (z ^ z >> 27) * 0x94D049BB133111EB & most
        z ^= z >> 31
    return (z >> 11) / 2**53


def table(seed: int, rows: int, columns: int, *what: int) -> Tensor:
    """A number for each row and column."""
    places = product(range(rows), range(columns))
    numbers = [number(seed, *what, *place) for place in places]
    return torch.tensor(numbers, dtype=torch.double).view(rows, columns)


def reference(
    x: Tensor, hidden: int, seed: int, step: int
) -> tuple[list[Tensor], ...]:
    """One process: weights, masks, and gradients."""
    batch, width = x.shape
    up = (2 * table(seed, hidden, width, UP) - 1) / width**0.5
    down = (2 * table(seed, width, hidden, DOWN) - 1) / hidden**0.5
    bias = (2 * table(seed, 1, width, BIAS)[0] - 1) / hidden**0.5
    sizes = {NEURONS: hidden, OUTPUTS: width}
    drawn = [table(seed, batch, n, k, step) for k, n in sizes.items()]
    masks = [(t.to(x) >= DROPPED) / (1 - DROPPED) for t in drawn]
    weights = [t.to(x).requires_grad_() for t in (up, down, bias)]
    up, down, bias = weights
    y = ((x @ up.T).tanh() * masks[0]) @ down.T + bias
    loss = (y * masks[1] - x).square().sum()
    return weights, masks, [*torch.autograd.grad(loss, weights)]


def main(
    w: World,
    *,
    width: int = 6,
    hidden: int = 26,
    batch: int = 10,
    step: int = 3,
    data_ranks: int = 2,
    seed: int = 1,
) -> None:
    tensor, data = axes(w.size, data_ranks)
    n = torch.arange(hidden).tensor_split(tensor.size())[tensor.rank()]
    b = torch.arange(batch).tensor_split(data.size())[data.rank()]
    n, b, h = (t.to(w.device) for t in (n, b, torch.arange(width)))
    x = w.randn(batch, width, seed=seed)
    with meter(shown=False) as agreed:
        layer = Perceptron(n, h, hidden, seed, tensor)
        inner = layer.mask(NEURONS, step, b[:, None], n)
        outer = layer.mask(OUTPUTS, step, b[:, None], h)
    with w.memory(parameters=layer.parameters) as memory, meter():
        sums = gradients(layer, x, b, step, data)
    weights, masks, grads = reference(x, hidden, seed, step)
    slices = [[t[0][n], t[1][:, n], t[2]] for t in (weights, grads)]
    w.check("weights", [*layer.parameters()], lambda: slices[0], slack=0)
    w.check("masks", inner, lambda: masks[0][b][:, n], slack=0)
    w.check("masks", outer, lambda: masks[1][b], slack=0)
    # Sums over neurons and samples, in parts.
    w.check("gradients", sums, lambda: slices[1], slack=16)
    given = {"tensor_ranks": tensor.size(), "itemsize": 8}
    held = memory.live()["parameters"]
    report(w, given=given, held=held, calls=agreed.count)


if __name__ == "__main__":
    with world() as w:
        main(w)
