"""Top-k with error feedback: send the k largest entries, remember the rest.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.sparsification.top_k_error_feedback

Source: Lin et al. 2018, section 3.1; Stich et al. 2018, algorithm 1.

Of its gradient g a rank sends only the k entries that are largest, and adds
what it did not send, the residual e, to its next gradient:

    a = g + e        sent = the k largest of a        e' = a - sent

Nothing is lost, only late: over any number of steps

    sum of sent  +  last residual  =  sum of gradients

which telescopes, since each step's sent + e' = g + e. Drop the residual and
entries that are never among the largest never learn.

Different ranks pick different entries, so their vectors cannot be added on
the way as in an all-reduce: values and places are gathered from everyone. A
rank receives p - 1 times k pairs: it wins while p k stays well below n.
"""

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Step, Task, characters, digits

STEPS, BATCH, RATE = 5, 24, 0.2
KEPT = 50  # k, of some thousands of entries


class TopK:
    """A compressor: picks what is sent, and carries what is not."""

    def __init__(self, like: Tensor) -> None:
        self.residual = torch.zeros_like(like)
        self.seen, self.sent = torch.zeros_like(like), torch.zeros_like(like)

    def compress(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The k largest entries of gradient + residual, and their places."""
        wanted = gradient + self.residual
        places = wanted.abs().topk(KEPT).indices
        values = wanted[places]
        self.residual = wanted.index_fill(0, places, 0.0)
        #: Only to check the identity: all that came in, all that went out.
        self.seen += gradient
        self.sent[places] += values
        #: 32-bit places: half the bytes of torch's own 64-bit ones.
        return values, places.to(torch.int32)


def sum_of_all(values: Tensor, places: Tensor, size: int) -> Tensor:
    """What all ranks sent, added up as one dense vector."""
    p = dist.get_world_size()
    every_value, every_place = (
        values.new_empty(p * KEPT),
        places.new_empty(p * KEPT),
    )
    dist.all_gather_single(every_value, values)
    dist.all_gather_single(every_place, places)
    #: Rank after rank, in the same order everywhere: the same bits.
    total = values.new_zeros(size)
    for v, i in zip(every_value.split(KEPT), every_place.split(KEPT)):
        total[i.long()] += v
    return total


def train(
    w: World, task: Task, model: nn.Module, top_k: TopK
) -> Iterator[Step]:
    """SGD in which only the largest entries travel."""
    parameters = list(model.parameters())
    weights = parameters_to_vector(parameters).detach()
    for step in range(STEPS):
        x, y = task.batch(step * w.size + w.rank, BATCH)
        with span("compute", label=step, cost=3):
            loss = task.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
            grads = torch.autograd.grad(loss, parameters)
        with span("compress", label=step, cost=1):
            sent = top_k.compress(torch.cat([g.view(-1) for g in grads]))
        weights = weights - RATE / w.size * sum_of_all(*sent, len(weights))
        vector_to_parameters(weights, parameters)
        yield Step(samples=BATCH * w.size, loss=loss.item())


def reference(top_k: TopK) -> Tensor:
    """What plain SGD would have sent: every gradient, whole."""
    return top_k.seen


def main(w: World) -> None:
    for task in (digits, characters):
        model = task.model().to(w.device)
        top_k = TopK(parameters_to_vector(model.parameters()).detach())
        with meter() as moved:
            for _ in train(w, task, model, top_k):
                pass
        # STEPS additions on either side, in another order.
        both = top_k.sent + top_k.residual
        w.check(task.name, both, partial(reference, top_k), slack=STEPS)
    w.check_same("same", list(model.parameters()))
    given = {"k": KEPT, "b": 8, "t": STEPS}
    report(w, given=given, calls=moved.count, payload=moved.payload)


if __name__ == "__main__":
    with world() as w:
        main(w)
