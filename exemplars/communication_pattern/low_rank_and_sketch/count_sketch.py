"""Count sketch: sums of small random tables tell which entries are largest.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.low_rank_and_sketch.count_sketch

Each row of a small table has a hash function. It puts every entry of the
gradient into one of the row's columns, with a random sign, where entries that
meet are added up. To read an entry back, look it up in every row, undo the
sign, and take the median: large entries are seen through the noise of the
small ones that they met.

    table[j, h_j(i)] += s_j(i) x[i]
    x[i] is about the median over j of s_j(i) table[j, h_j(i)]

A sketch is linear, so the sum of the ranks' tables is the table of their sum:
a plain all-reduce adds them up, and the message is as large for 4 ranks as
for 4000. It finds entries that are large in the sum, even if they are
among the largest of no rank. Then all ranks know where to look, and a second,
short all-reduce brings the exact values:

    a = g + e        sent = a at the k places        e' = a - sent

Nothing is lost, only delayed, as in top-k with error feedback.

Source: Ivkin et al. 2019, algorithm 1; Charikar et al. 2002.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Step, Task, digits


class CountSketch:
    """A compressor: sketches what has not been sent yet."""

    def __init__(self, random: Tensor, *, columns: int, kept: int) -> None:
        self.residual = torch.zeros_like(random[0])
        self.columns, self.kept = columns, kept
        #: A hash function per row, drawn in advance: which column an entry
        #: is added to, and with which sign.
        self.column = (random.abs() * 2**20).long() % columns
        self.sign = random.sign()

    def compress(self, gradient: Tensor) -> Tensor:
        """The table of the gradient and of what earlier steps still owe."""
        self.residual += gradient
        table = gradient.new_zeros(len(self.sign), self.columns)
        return table.scatter_add(1, self.column, self.sign * self.residual)

    def largest(self, table: Tensor) -> Tensor:
        """Where the largest entries of the sketched vector seem to be."""
        #: The median: an entry that met a large one in some rows is still
        #: seen in the others. A mean would be spoiled by one of them.
        seen = (self.sign * table.gather(1, self.column)).median(0).values
        #: Entries that share a cell seem equal: of those, the first.
        return seen.abs().argsort(descending=True, stable=True)[: self.kept]


def sum_of_all(sketch: CountSketch, table: Tensor) -> Tensor:
    """The largest entries of what all ranks want, summed; zeros elsewhere."""
    #: Added up on the way: no rank sees another's table.
    dist.all_reduce(table)
    #: All ranks have the same table now, so they choose the same places.
    places = sketch.largest(table)
    values = sketch.residual[places]
    #: What is sent is no longer owed; the rest waits for the next step.
    sketch.residual[places] = 0.0
    #: Values without places: k numbers, in an order that all know.
    dist.all_reduce(values)
    return torch.zeros_like(sketch.residual).index_copy(0, places, values)


def sketch_of(w: World, like: Tensor, rows: int, **size: int) -> CountSketch:
    """With the same hash functions on every rank, or sums mean nothing."""
    return CountSketch(w.randn(rows, len(like), seed=0).to(like), **size)


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    local_batch: int,
    rate: float,
    rows: int,
    columns: int,
    kept: int,
) -> Iterator[Step]:
    """SGD in which a sketch travels, and then its largest entries."""
    model = task.model().to(w.device)
    parameters = list(model.parameters())
    weights = parameters_to_vector(parameters).detach()
    sketch = sketch_of(w, weights, rows, columns=columns, kept=kept)
    for step in range(steps):
        x, y = task.batch(step * w.size + w.rank, local_batch)
        with span("compute", label=step, cost=4):
            loss = task.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
            grads = torch.autograd.grad(loss, parameters)
            sent = sketch.compress(parameters_to_vector(grads))
        weights = weights - rate / w.size * sum_of_all(sketch, sent)
        vector_to_parameters(weights, parameters)
        yield Step(loss.item(), parameters)


def reference(w: World, sizes: dict[str, Any]) -> list[Tensor]:
    """One process that adds up what all ranks want, then sketches the sum."""
    model = digits.model().to(w.device)
    weights = list(model.parameters())
    vector = parameters_to_vector(weights).detach()
    vector_to_parameters(vector, weights)  # views of it
    hashes = dense(w, len(vector), sizes["rows"], sizes["columns"])
    unsent = torch.zeros(w.size, len(vector)).to(vector)
    for step in range(sizes["steps"]):
        for r in range(w.size):
            x, y = digits.batch(step * w.size + r, sizes["local_batch"])
            loss = digits.loss(model, x.to(w.device), y.to(w.device))
            slopes = torch.autograd.grad(loss / y.numel(), weights)
            unsent[r] += parameters_to_vector(slopes)
        total = unsent.sum(0)
        seen = torch.einsum("rnc,rmc,m->rn", hashes, hashes, total)
        middle = seen.sort(0).values[(len(seen) - 1) // 2]
        order = middle.abs().sort(descending=True, stable=True)
        chosen = order.indices[: sizes["kept"]]
        vector[chosen] -= sizes["rate"] / w.size * total[chosen]
        unsent[:, chosen] = 0.0
    return [*weights]


def dense(w: World, entries: int, rows: int, columns: int) -> Tensor:
    """All hash functions as ones with signs: by row, entry and column."""
    random = w.randn(rows, entries, seed=0)
    cell = (random.abs() * 2**20).long() % columns
    return nn.functional.one_hot(cell, columns) * random.sign().unsqueeze(2)


def check_sketch(w: World, steps: int, rows: int, **size: int) -> None:
    """Tables add up, and what is not sent is not lost."""
    every = torch.stack([w.randn(steps, 1000, seed=r) for r in range(w.size)])
    table = sketch_of(w, every[0, 0], rows, **size).compress(every[w.rank, 0])
    dist.all_reduce(table)
    spread = dense(w, 1000, rows, size["columns"])
    truth = torch.einsum("rnc,pn->rc", spread, every[:, 0])
    # A cell adds up the entries that fall into it, in another order.
    w.check("linear", table, lambda: truth, slack=1000)
    sketch = sketch_of(w, every[0, 0], rows, **size)
    sent = [sum_of_all(sketch, sketch.compress(g)) for g in every[w.rank]]
    dist.all_reduce(sketch.residual)
    account = torch.stack([*sent, sketch.residual]).sum(0)
    w.check("identity", account, lambda: every.sum((0, 1)), slack=steps)


def found(w: World, kept: int) -> int:
    """Of k large entries of a sum, how many a sketch finds."""
    n, large = 400 * kept, torch.arange(kept) * 400
    x = w.randn(n, seed=0) / w.size
    x[large] += 100 / w.size
    #: On each rank they drown in noise, which cancels in the sum.
    x += 100 * (w.randn(n) - w.randn(n, seed=(w.rank + 1) % w.size))
    sketch = sketch_of(w, x, rows=7, columns=40 * kept, kept=kept)
    total = sum_of_all(sketch, sketch.compress(x))
    return int(total[large].count_nonzero())


def main(
    w: World,
    *,
    steps: int = 4,
    rows: int = 5,
    columns: int = 100,
    kept: int = 50,
) -> None:
    table = {"rows": rows, "columns": columns, "kept": kept}
    sizes: Any = {"steps": steps, "local_batch": 24, "rate": 0.2, **table}
    with meter() as moved:
        *_, last = train(w, digits, **sizes)
    # Sums over ranks and steps, in another order.
    w.check("digits", last.weights, lambda: reference(w, sizes), slack=8)
    w.check_same("same", last.weights)
    check_sketch(w, steps, **table)
    hits = {} if w.dry else {"found": found(w, kept)}
    given = {"itemsize": last.weights[0].element_size()}
    report(w, given=given, calls=moved.count, payload=moved.payload, **hits)


if __name__ == "__main__":
    with world() as w:
        main(w)
