"""The same step on one process: plain torch, whole batch, no part of anything."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import AdamW

from atlas.compose.model import IGNORED, TOKENS_WHOLE, VOCABULARY, whole
from atlas.views.composition import MODEL

BATCH = MODEL.batch
SCALE = 2.0**8  # of the loss in mixed precision
MOST = 0.5  # the norm that clipping leaves
#: A large eps: where a gradient is all rounding, Adam would blow it up to a step.
RATE, EPS = 0.1, 0.05

NEAR = 1 / 8  # of the smallest entry that compression sends

#: A vector that is compressed by itself: where its elements lie in the whole, -1 for
#: padding, and how many are kept.
Vector = tuple[Tensor, int]


@dataclass(frozen=True)
class Truth:
    """One step: gradient, norm and weights, flat; and the size of numbers near each."""

    gradient: Tensor
    norm: Tensor
    weights: Tensor
    gradient_scale: Tensor
    weight_scale: Tensor


def batch(*, weighted: bool) -> tuple[Tensor, Tensor]:
    """Tokens and targets; weighted, a part of the targets is ignored."""
    source = torch.Generator().manual_seed(7)
    shape = BATCH, TOKENS_WHOLE + 1
    text = torch.randint(VOCABULARY, shape, generator=source)
    x, y = text[:, :-1], text[:, 1:]
    if not weighted:
        return x, y
    lengths = torch.randint(1, TOKENS_WHOLE + 1, (BATCH, 1), generator=source)
    return x, y.masked_fill(torch.arange(TOKENS_WHOLE) >= lengths, IGNORED)


@cache
def slopes(
    parts: int, ranks: int, *, experts: bool, tied: bool, half: bool, weighted: bool
) -> list[Tensor]:
    """The gradients of these parts of the batch, as of losses times the ranks."""
    model = whole(experts=experts, tied=tied, half=half)
    x, y = batch(weighted=weighted)
    factor = (SCALE if half else 1) * ranks / int((y != IGNORED).sum())
    found = []
    for own, labels in zip(x.tensor_split(parts), y.tensor_split(parts), strict=True):
        logits = model(own).flatten(0, 1)
        each = F.cross_entropy(
            logits, labels.flatten(), reduction="none", ignore_index=IGNORED
        )
        grads = torch.autograd.grad(each.sum() * factor, [*model.parameters()])
        found.append(torch.cat([g.flatten() for g in grads]))
    return found


def truth(has: set[str], ranks: int, replicas: int, vectors: Sequence[Vector]) -> Truth:
    """What all ranks together must come to."""
    half = "mixed" in has
    same = {"experts": "expert" in has, "tied": "tied" in has, "half": half}
    parts = replicas if "compression" in has else 1
    each = slopes(parts, ranks, weighted="weighting" in has, **same)
    total, unsure = each[0], torch.zeros_like(each[0], dtype=torch.bool)
    if "compression" in has:
        total, unsure = compressed(each, vectors)
    wide = torch.float if half else torch.double
    gradient = (total / ranks).to(wide) / (SCALE if half else 1)
    norm = gradient.double().norm()
    model = whole(**same)
    start = torch.cat([p.detach().flatten() for p in model.parameters()]).to(wide)
    weights = start.clone().requires_grad_()
    weights.grad = gradient.clone()
    if "clipping" in has:
        weights.grad *= (MOST / (norm + 1e-6)).clamp(max=1)
    AdamW([weights], lr=RATE, eps=EPS).step()
    sizes = [p.numel() for p in model.parameters()]
    #: Of what is compressed, all entries of a parameter may be too small to be sent.
    scale = torch.stack(each).sum(0).to(wide) / ranks / (SCALE if half else 1)
    largest = [_largest(t, sizes) for t in (scale, weights.detach())]
    largest[1].clamp_(min=RATE)  # of weights that are all zero, a step
    if half:
        #: Which of two entries is sent, rounding to 16 bits decides if they are near.
        largest = [torch.where(unsure, torch.inf, t) for t in largest]
    return Truth(gradient, norm, weights.detach(), *largest)


def _largest(flat: Tensor, sizes: list[int]) -> Tensor:
    """For each element, the largest of its parameter."""
    return torch.cat([p.abs().max().expand(len(p)) for p in flat.split(sizes)])


def compressed(
    each: Sequence[Tensor], vectors: Sequence[Vector]
) -> tuple[Tensor, Tensor]:
    """What the replicas send of their gradients, vector by vector, added up.

    And which entries are so near the smallest that is sent that they might not have
    been, or might.
    """
    total = torch.zeros_like(each[0])
    unsure = torch.zeros_like(total, dtype=torch.bool)
    for places, kept in vectors:
        mine = torch.zeros(len(places), dtype=total.dtype)
        real = places >= 0
        near = torch.zeros_like(real)
        for gradient in each:
            vector = torch.where(real, gradient[places.clamp(min=0)], 0)
            size = vector.abs()
            largest = size.topk(kept)
            mine[largest.indices] += vector[largest.indices]
            least = largest.values[-1]
            near |= (size - least).abs() < NEAR * least
        total[places[real]], unsure[places[real]] = mine[real], near[real]
    return total, unsure
