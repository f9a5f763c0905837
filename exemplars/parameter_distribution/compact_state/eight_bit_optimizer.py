"""Eight-bit optimizer: Adam's moments in a byte each, and a scale per block.

    torchrun --standalone --nproc-per-node 4 -m exemplars.parameter_distribution.compact_state.eight_bit_optimizer

Between two steps nobody computes with the moments: they are only kept. So
they are kept as codes of 8 bits. A step reads them, updates them and the
weights in float32, and writes them as codes again:

    element = scale of its block * book[code]     scale: largest in the block

    bytes per parameter    2 moments x (1 + 4/block)    instead of 8

The 256 numbers in the book are dense near 0 and reach down to 1e-7 of the
scale, for moments differ by orders of magnitude. And a scale serves a block
of a few elements only: an outlier spoils no other block.

Where blocks begin matters to sharding. An element's code depends on the
largest of its block. If every shard holds whole blocks, its codes are those
of the unsharded optimizer, to the bit. A cut through a block makes two of it,
with other scales, and other weights after the next step.

Source: Dettmers et al. 2021, section 2 (block-wise, dynamic quantization).
"""

from collections.abc import Iterator
from functools import partial, reduce

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Step, Task, random_rows

RATE, BETA1, BETA2, EPS = 0.01, 0.9, 0.999, 1e-8
BATCH, STEPS = 24, 3


def codebook(signed: bool) -> Tensor:
    """What the 256 codes stand for, from the least to 1."""
    values = [0.0, 1.0]
    for decade in range(7):
        #: The larger a number, the more bits for its digits: 64 of the
        #: positive codes, or 128, are between a tenth and 1.
        count = 2**decade if signed else 2 * 2**decade
        digits = 0.1 + 0.9 * (torch.arange(count).double() + 0.5) / count
        values += (digits * 10.0 ** (decade - 6)).tolist()
    below = [-value for value in values[2:] if signed]
    return torch.tensor(sorted(values + below))


class EightBit:
    """A vector that is kept as codes, in blocks with a scale each."""

    def __init__(self, size: int, block: int, book: Tensor) -> None:
        self.size, self.block, self.book = size, block, book
        self.between = (book[1:] + book[:-1]) / 2
        self.write(book.new_zeros(size))

    def write(self, x: Tensor) -> None:
        """Round each element to the nearest number of the book."""
        blocks = F.pad(x, (0, -len(x) % self.block)).view(-1, self.block)
        self.scales = blocks.abs().amax(1)
        #: A block of zeros has the scale 0, and stays what it is.
        unit = blocks / self.scales.clamp_min(1e-38)[:, None]
        self.codes = torch.bucketize(unit, self.between).to(torch.uint8)

    def read(self) -> Tensor:
        """The vector in float32."""
        blocks = self.book[self.codes.long()] * self.scales[:, None]
        return blocks.flatten()[: self.size]


class Adam:
    """Updates a shard of the weights; keeps two bytes for each of them."""

    def __init__(self, size: int, block: int, device: torch.device) -> None:
        books = (codebook(signed).to(device) for signed in (True, False))
        #: The second moment has no sign, and a bit more for its digits.
        self.moments = [EightBit(size, block, book) for book in books]
        self.steps = 0

    def step(self, weights: Tensor, gradient: Tensor) -> None:
        """Read the codes, update in float32, write codes."""
        self.steps += 1
        first, second = self.moments
        m = BETA1 * first.read() + (1 - BETA1) * gradient
        v = BETA2 * second.read() + (1 - BETA2) * gradient.square()
        up = m / (1 - BETA1**self.steps)
        down = (v / (1 - BETA2**self.steps)).sqrt() + EPS
        #: With the moments as computed: what is rounded is only what is kept.
        weights.sub_(RATE * (up / down))
        first.write(m)
        second.write(v)

    def state(self) -> list[Tensor]:
        """What is kept between two steps."""
        return [t for m in self.moments for t in (m.codes, m.scales)]


def share(w: World, elements: int, unit: int) -> int:
    """Elements of a shard, if each has a whole number of units."""
    return -(-elements // (unit * w.size)) * unit


def train(
    w: World, task: Task, *, batch: int, steps: int, adam: Adam
) -> Iterator[Step]:
    """Every rank computes on its samples, and updates its shard."""
    model = task.model().to(w.device).float()
    weights = parameters_to_vector(model.parameters()).detach()
    size, elements = adam.moments[0].size, len(weights)
    weights = F.pad(weights, (0, size * w.size - elements))
    #: A view: where the shard is updated, the weights are.
    own = weights[w.rank * size :][:size]
    for step in range(steps):
        vector_to_parameters(weights[:elements], model.parameters())
        whole = (t.to(w.device) for t in task.batch(step, batch))
        x, y = (t.tensor_split(w.size)[w.rank] for t in whole)
        loss = task.loss(model, x.float(), y) / batch
        slope = torch.autograd.grad(loss, [*model.parameters()])
        mine = F.pad(parameters_to_vector(slope), (0, len(weights) - elements))
        every = mine.new_empty(w.size, len(weights))
        #: Gathered, and added up by all in one order, so that the bits are
        #: those of one process. A reduce-scatter moves 1/p of this.
        dist.all_gather_single(every.view(-1), mine)
        with span("update", cost=1):
            adam.step(own, reduce(torch.add, every)[w.rank * size :][:size])
        dist.all_gather_single(weights, own.clone())
        yield Step(loss.item(), [weights[:elements]])


def rounded(x: Tensor, block: int, signed: bool) -> Tensor:
    """The nearest of all that a code can stand for, by trying each."""
    book = [0.0, 1.0]
    for decade in range(7):
        count = 2 ** (decade + 1 - signed)
        edges = torch.linspace(0.1, 1, count + 1, dtype=torch.double)
        middle = (edges[1:] + edges[:-1]) / 2
        book += (middle * 10.0 ** (decade - 6)).tolist()
    book += [-number for number in book[2:] if signed]
    numbers, parts = torch.tensor(book, device=x.device), list[Tensor]()
    for part in x.split(block):
        scale = part.abs().max()
        off = (part / scale.clamp_min(1e-38))[:, None].double() - numbers
        parts.append(numbers[off.abs().argmin(1)] * scale)
    return torch.cat(parts)


def reference(w: World, task: Task, block: int) -> Tensor:
    """One process with all blocks, on the ranks' samples in turn."""
    model = task.model().to(w.device).float()
    weights = parameters_to_vector(model.parameters()).detach()
    m = v = torch.zeros_like(weights)
    for t in range(1, STEPS + 1):
        vector_to_parameters(weights, model.parameters())
        slopes, batch = list[Tensor](), task.batch(t - 1, BATCH)
        for x, y in zip(*(b.to(w.device).tensor_split(w.size) for b in batch)):
            loss = task.loss(model, x.float(), y) / BATCH
            slope = torch.autograd.grad(loss, [*model.parameters()])
            slopes.append(parameters_to_vector(slope))
        g = reduce(torch.add, slopes)
        m, v = 0.9 * m + (1 - 0.9) * g, 0.999 * v + (1 - 0.999) * g**2
        down = (v / (1 - 0.999**t)).sqrt() + EPS
        weights = weights - RATE * (m / (1 - 0.9**t) / down)
        m, v = rounded(m, block, signed=True), rounded(v, block, signed=False)
    return weights


def main(w: World, *, width: int = 12, scale_block: int = 32) -> None:
    task, elements = random_rows(w, 3, width), 3 * width * (width + 1)
    whole = Adam(share(w, elements, scale_block), scale_block, w.device)
    parts = Adam(share(w, elements, 1), scale_block, w.device)
    memory = w.memory(optimizer=whole.state)
    run = partial(train, w, task, batch=BATCH, steps=STEPS)
    with memory, meter():
        *_, last = run(adam=whole)
    *_, odd = run(adam=parts)
    truth = partial(reference, w, task, scale_block)
    w.check("parameters", last.weights, truth, slack=0)
    differ = int((odd.weights[0] != last.weights[0]).sum())
    found = {"state": memory.live()["optimizer"], "differ": differ}
    report(w, given={"elements": elements}, **found)


if __name__ == "__main__":
    with world() as w:
        main(w)
