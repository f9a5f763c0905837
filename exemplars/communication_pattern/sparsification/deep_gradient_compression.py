"""Deep gradient compression: top-k whose residual adds up velocities.

    torchrun --standalone --nproc-per-node 4 -m exemplars.communication_pattern.sparsification.deep_gradient_compression

Momentum behind top-k begins when an entry arrives. Here it begins when the
gradient is computed. Each rank keeps a velocity u and what it has not sent, v:

    u = m u + g        v = v + u        sent = the k largest of v

where m is the momentum, and v is set to 0 where it was sent. With that come

    momentum correction   u is added up, not g, so waiting costs no momentum
    factor masking        u, too, is set to 0 where v was sent
    local clipping        each rank cuts its share g / p to 1 / sqrt(p) of the
                          threshold: so long are p independent parts of a sum
    warm-up               n/4, n/16, n/64, n/256 entries, and then k

With factor masking, u and v both start anew after each send. A gradient that
is sent in the a-th step after it was computed arrives with the factor

    1 + m + ... + m^a  =  (1 - m^(a+1)) / (1 - m)

and pushes no more: it counts once if it is sent at once, and as often as with
momentum if it waits long. If all entries are sent, what is left is SGD without
momentum. Without factor masking it is SGD with momentum, since u is linear in
g; so the masking, not the sparsity, is what takes the momentum away.

Source: Lin et al. 2018, section 3; the factor is derived here.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from exemplars.communication_pattern.sparsification import top_k_error_feedback
from exemplars.runtime import World, meter, report, span, world
from exemplars.workload import Step, Task, digits

MOMENTUM = 0.9
CLIP = 0.3  # the norm that a whole gradient should not exceed
STAGES = 4  # of warm-up; each sends a quarter of what the one before sent


class DeepGradientCompression(top_k_error_feedback.TopK):
    """Top-k with error feedback, of velocities instead of gradients."""

    def __init__(self, like: Tensor, *, kept: int, masked: bool) -> None:
        super().__init__(like, kept=kept)
        #: A second state beside the residual: the momentum of an optimizer,
        #: but of this rank alone.
        self.velocity = torch.zeros_like(like)
        self.masked = masked

    def compress(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The largest entries of what is unsent, and their places."""
        self.velocity = MOMENTUM * self.velocity + gradient
        #: Momentum correction: velocities add up in the residual. What waits
        #: is sent with the velocity that it had in every step of waiting.
        values, places = super().compress(self.velocity)
        if self.masked:
            #: Factor masking: otherwise gradients that are late already would
            #: go on pushing the weight after they have moved it.
            self.velocity = self.velocity.index_fill(0, places.long(), 0.0)
        return values, places


def entries(size: int, kept: int, warmup: int, step: int) -> int:
    """How many are sent in a step; a stage of warm-up has `warmup` steps."""
    if step >= STAGES * warmup:
        return kept
    #: A quarter of the entries, gathered from everyone with their places, is
    #: more than a dense all-reduce sends on more than four or five ranks.
    return max(kept, size // 4 ** (step // warmup + 1))


def train(
    w: World,
    task: Task,
    *,
    steps: int,
    local_batch: int,
    rate: float,
    kept: int,
    warmup: int,
    clip: float = CLIP,
    masked: bool = True,
) -> Iterator[Step]:
    """SGD in which the largest velocities travel."""
    model = task.model().to(w.device)
    parameters = list(model.parameters())
    weights = parameters_to_vector(parameters).detach()
    dgc = DeepGradientCompression(weights, kept=kept, masked=masked)
    for step in range(steps):
        x, y = task.batch(step * w.size + w.rank, local_batch)
        with span("compute", label=step, cost=3):
            loss = task.loss(model, x.to(w.device), y.to(w.device)) / y.numel()
            grads = torch.autograd.grad(loss, parameters)
        share = parameters_to_vector(grads) / w.size
        #: Clipped before anything is added to it, and without a message: the
        #: norm of the whole gradient is known to nobody.
        share *= (clip / w.size**0.5 / share.norm()).clamp(max=1.0)
        dgc.kept = entries(len(weights), kept, warmup, step)
        sent = dgc.compress(share)
        update = top_k_error_feedback.sum_of_all(*sent, len(weights))
        weights = weights - rate * update
        vector_to_parameters(weights, parameters)
        yield Step(loss.item(), parameters)


def reference(
    w: World, steps: int, batch: int, rate: float, kept: int, warmup: int
) -> list[Tensor]:
    """One process, without velocities: gradients by how long they wait."""
    model = digits.model().to(w.device)
    weights = parameters_to_vector(model.parameters()).detach()
    n, most = len(weights), CLIP * w.size**0.5
    #: By rank, the gradients of all steps; 0 where they have been sent.
    waiting = weights.new_zeros(w.size, steps, n)
    factors = (MOMENTUM ** torch.arange(steps).to(weights)).cumsum(0)
    for step in range(steps):
        count = max(kept, n >> 2 * (step // max(1, warmup) + 1))
        update = torch.zeros_like(weights)
        for r, gradients in enumerate(waiting):
            number = step * w.size + r
            whole = top_k_error_feedback.slope(digits, model, number, batch)
            gradients[step] = whole * min(1.0, most / float(whole.norm()))
            late = factors[: step + 1].flip(0) @ gradients[: step + 1]
            largest = late.abs().topk(count if step < 4 * warmup else kept)
            update[largest.indices] += late[largest.indices]
            gradients[:, largest.indices] = 0.0
        weights = weights - rate / w.size * update
        vector_to_parameters(weights, model.parameters())
    return list(model.parameters())


def sgd(
    w: World, steps: int, batch: int, rate: float, momentum: float
) -> list[Tensor]:
    """torch's own, on one process."""
    model = digits.model().to(w.device)
    weights = parameters_to_vector(model.parameters()).detach()
    vector_to_parameters(weights, model.parameters())  # as views of it
    optimizer = torch.optim.SGD([weights], lr=rate, momentum=momentum)
    slope = partial(top_k_error_feedback.slope, digits, model)
    for step in range(steps):
        numbers = range(step * w.size, (step + 1) * w.size)
        slopes = [slope(number, batch) for number in numbers]
        weights.grad = torch.stack(slopes).mean(0)
        optimizer.step()
    return list(model.parameters())


def main(
    w: World,
    *,
    steps: int = 9,
    local_batch: int = 24,
    rate: float = 0.2,
    kept: int = 5,
    warmup: int = 2,
) -> None:
    sizes = (steps, local_batch, rate)
    run = partial(train, steps=steps, local_batch=local_batch, rate=rate)
    with meter() as moved:
        *_, last = run(w, digits, kept=kept, warmup=warmup)
    truth = partial(reference, w, *sizes, kept, warmup)
    # Sums over ranks and steps, in another order.
    w.check("digits", last.weights, truth, slack=8)
    w.check_same("same", last.weights)
    elements = sum(p.numel() for p in last.weights)
    #: Every entry, whole gradients: what is left of the momentum?
    run = partial(run, w, digits, kept=elements, warmup=0, clip=float("inf"))
    *_, all_sent = run()
    w.check("plain", all_sent.weights, lambda: sgd(w, *sizes, 0.0), slack=8)
    *_, unmasked = run(masked=False)
    dense = partial(sgd, w, *sizes, MOMENTUM)
    w.check("dense", unmasked.weights, dense, slack=8)
    given = {"elements": elements, "itemsize": last.weights[0].element_size()}
    report(w, given=given, calls=moved.count, payload=moved.payload)


if __name__ == "__main__":
    with world() as w:
        main(w)
