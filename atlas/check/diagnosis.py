"""What the evidence says the mistake is: one function each, the most certain first.

A diagnosis looks at captured numbers only, never at the user's code. It returns one
sentence with its evidence, or None. Its id is the bug's in `taxonomy/bugs/`.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from atlas.check.capture import Piece
from atlas.check.compare import (
    Difference,
    Runs,
    common_scale,
    distance,
    norm,
)
from atlas.check.whole import Copies


@dataclass(frozen=True)
class Diagnosis:
    """The bug, and what was seen of it."""

    bug: str
    says: str


@dataclass
class Evidence:
    """The first difference, with the captures around it."""

    runs: Runs
    first: Difference

    @property
    def p(self) -> int:
        """The number of ranks."""
        return len(self.runs.many)

    @property
    def moment(self) -> int:
        """The step whose gradients are looked at: weights come from the one before."""
        return max(0, self.first.step - (self.first.kind == "weights"))

    @cached_property
    def one(self) -> dict[str, Tensor]:
        """The gradients of one process."""
        return self.runs.of_one(self.moment, "gradient")

    @cached_property
    def held(self) -> Copies:
        """The gradients of the ranks."""
        held = self.runs.of_many(self.moment, "gradient")
        return {n: c for n, c in held.items() if n in self.one}

    @cached_property
    def limits(self) -> dict[str, float]:
        """How far each gradient may be off."""
        return self.runs.limits(self.moment, "gradient")

    @cached_property
    def bad(self) -> list[str]:
        """Gradients that differ."""
        return [
            n
            for n, held in self.held.items()
            if any(distance(c.tensor, self.one[n]) > self.limits[n] for c in held)
        ]

    def near(self, name: str, a: Tensor, b: Tensor) -> bool:
        """Equal by the yardstick of this gradient, which has not the length of b."""
        length = norm(self.one[name]) if name in self.one else 0.0
        longer = max(1.0, norm(b) / length) if length else 1.0
        limit = 2 * longer * self.limits.get(name, 0.0)
        return a.shape == b.shape and distance(a, b) <= limit

    @cached_property
    def contributed(self) -> dict[str, list[Tensor]]:
        """What each rank's own backward passes gave, where all ranks have it."""
        return self._per_rank("contributed")

    @cached_property
    def last(self) -> dict[str, list[Tensor]]:
        """What each rank's last backward pass gave."""
        return self._per_rank("last")

    @cached_property
    def unclipped(self) -> dict[str, Tensor]:
        """The gradients of one process as backward gave them."""
        return self.runs.one.steps[self.moment].contributed

    def _per_rank(self, what: str) -> dict[str, list[Tensor]]:
        found: dict[str, list[Tensor]] = {}
        for rank, names in zip(self.runs.many, self.runs.names, strict=True):
            kept: dict[str, Tensor] = getattr(rank.steps[self.moment], what)
            for mine, t in kept.items():
                if mine in names:
                    found.setdefault(names[mine], []).append(t)
        return {n: t for n, t in found.items() if len(t) == self.p}

    @cached_property
    def passes(self) -> int:
        """Backward passes of a rank in this step."""
        counts = [
            m for r in self.runs.many for m in r.steps[self.moment].passes.values()
        ]
        return max(counts, default=1)

    def replicas(self, name: str) -> list[Tensor] | None:
        """Each rank's whole gradient, if each has one."""
        held = self.held[name]
        return [c.tensor for c in held] if len(held) == self.p else None


Finder = Callable[[Evidence], str | None]
FINDERS: dict[str, Finder] = {}


def finds(bug: str) -> Callable[[Finder], Finder]:
    """Register a diagnosis under the bug's id; earlier ones are asked first."""

    def keep(finder: Finder) -> Finder:
        FINDERS[bug] = finder
        return finder

    return keep


def diagnose(evidence: Evidence) -> Diagnosis | None:
    """The first diagnosis that fits."""
    for bug, finder in FINDERS.items():
        says = finder(evidence)
        if says:
            return Diagnosis(bug, says)
    return None


# Before anything was computed


@finds("different-initial-weights")
def started_apart(e: Evidence) -> str | None:
    """Ranks have different weights at the first step."""
    if (e.first.kind, e.first.step) != ("weights", 0):
        return None
    if not e.first.apart and not _some_shards_are_right(e):
        return None
    return (
        "the ranks start from different weights: seed them alike, or broadcast the "
        "weights of rank 0 before the first step"
    )


def _some_shards_are_right(e: Evidence) -> bool:
    """Whether some ranks hold shards of the weights of one process, and others not."""
    right = []
    one = e.runs.of_one(0, "weights")
    for rank, names in zip(e.runs.many, e.runs.names, strict=True):
        pieces = rank.steps[0].weights
        held = [
            (p, one[names[n]]) for n, p in pieces.items() if n in names and p.offset
        ]
        right.append(all(torch.equal(p.local, _cut(t, p)) for p, t in held))
    return any(right) and not all(right)


def _cut(whole: Tensor, p: Piece) -> Tensor:
    for dim, (begin, length) in enumerate(zip(p.offset, p.local.shape, strict=True)):
        whole = whole.narrow(dim, min(begin, whole.shape[dim] - length), length)
    return whole


@finds("other-start-than-one-process")
def other_start(e: Evidence) -> str | None:
    """All ranks agree at the first step, but not with one process."""
    if (e.first.kind, e.first.step) != ("weights", 0):
        return None
    return (
        "the ranks agree with each other but start from other weights than one "
        "process: the initialization depends on the number of ranks"
    )


@finds("same-samples-on-every-rank")
def same_samples(e: Evidence) -> str | None:
    """Every rank is fed the same rows, fewer than one process has."""
    one, ranks = _samples(e)
    if not one or not all(ranks) or e.p == 1:
        return None
    if any(r != ranks[0] for r in ranks) or ranks[0].total() >= one.total():
        return None
    return (
        f"every rank trains on the same {ranks[0].total()} of {one.total()} samples: "
        "the sampler does not know the rank"
    )


@finds("other-samples")
def other_samples(e: Evidence) -> str | None:
    """Together, the ranks are not fed what one process is fed."""
    one, ranks = _samples(e)
    if not one or not all(ranks):
        return None
    together = sum(ranks, Counter[str]())
    if together == one or any(r == one for r in ranks):
        return None
    seen = (together & one).total()
    return (
        f"in step {e.moment} the ranks together see {together.total()} samples; "
        f"{seen} are among the {one.total()} of one process: give both the same data "
        "(--one, --many), or look at the sampler"
    )


def _samples(e: Evidence) -> tuple[Counter[str], list[Counter[str]]]:
    moment = e.moment
    return (
        Counter(e.runs.one.steps[moment].samples),
        [Counter(r.steps[moment].samples) for r in e.runs.many],
    )


@finds("buffers-differ")
def buffers_differ(e: Evidence) -> str | None:
    """Ranks compute with different buffers."""
    first, *others = [r.steps[e.moment].buffers for r in e.runs.many]
    norms = e.runs.many[0].local_norms
    for name, b in first.items():
        if any(name.startswith(f"{n}.") or n == "" for n in norms):
            continue  # running statistics, which training does not read
        apart = [o[name] for o in others if name in o and not torch.equal(o[name], b)]
        if apart:
            return f"buffer {name} differs between the ranks: broadcast it from rank 0"
    return None


@finds("local-batch-norm")
def local_batch_norm(e: Evidence) -> str | None:
    """Batch normalization over each rank's own samples."""
    norms = e.runs.many[0].local_norms
    if not norms or _whole_gradient_is_right(e):
        return None
    return (
        f"{norms[0] or 'the model'} normalizes over the samples of one rank, one "
        "process over all: use SyncBatchNorm if they must agree"
    )


def _whole_gradient_is_right(e: Evidence) -> bool:
    """Whether the ranks' own contributions average to the gradient of one process."""
    known = [n for n in e.contributed if n in e.unclipped]
    return bool(known) and all(
        e.near(n, _mean(e.contributed[n]), e.unclipped[n]) for n in known
    )


@finds("random-layers")
def random_layers(e: Evidence) -> str | None:
    """The forward pass draws random numbers."""
    if not e.runs.one.steps[e.moment].drew:
        return None
    return (
        "the forward pass draws random numbers (dropout?): p ranks cannot draw those "
        "of one process; switch it off for the check"
    )


# The update


@finds("learning-rate-differs")
def learning_rate(e: Evidence) -> str | None:
    """Equal gradients, another learning rate."""
    if e.first.kind != "weights" or e.bad:
        return None
    one = e.runs.one.steps[e.moment].rates
    for rank in e.runs.many:
        many = rank.steps[e.moment].rates
        if len(one) == len(many) and one != many:
            a, b = next((a, b) for a, b in zip(one, many, strict=True) if a != b)
            return (
                f"the gradients agree, but the learning rate is {b:g} on rank "
                f"{rank.rank} and {a:g} on one process"
            )
    return None


@finds("frozen-weight-trained")
def frozen_trained(e: Evidence) -> str | None:
    """A weight that one process keeps is changed by the ranks."""
    if e.first.kind != "weights" or e.first.tensor not in e.runs.one.frozen:
        return None
    return f"{e.first.tensor} is frozen on one process, and the ranks change it"


@finds("tied-weight-untied")
def untied(e: Evidence) -> str | None:
    """Two names of one tensor have become two tensors."""
    group = next((g for g in e.runs.one.tied if e.first.tensor in g), None)
    if group is None:
        return None
    kept = [g for r in e.runs.many for g in r.tied]
    if any(set(group) <= set(g) for g in kept):
        return None
    return f"{' and '.join(group)} are one tensor on one process and two on the ranks"


@finds("gradient-missing")
def gradient_missing(e: Evidence) -> str | None:
    """A weight steps without a gradient."""
    if e.first.kind != "weights" or e.first.step == 0:
        return None
    if e.first.tensor not in e.one or e.first.tensor in e.held:
        return None
    return (
        f"{e.first.tensor} has a gradient on one process and none on the ranks when "
        f"the optimizer makes step {e.moment}: it was never synchronized"
    )


@finds("stale-copy")
def stale_copy(e: Evidence) -> str | None:
    """The optimizer does not update the tensors that the model uses."""
    if e.first.kind != "weights" or e.first.step == 0 or e.bad:
        return None
    before = e.runs.of_many(e.moment, "weights").get(e.first.tensor, [])
    after = e.runs.of_many(e.moment + 1, "weights").get(e.first.tensor, [])
    if not before or len(before) != len(after):
        return None
    pairs = zip(before, after, strict=True)
    still = [c.ranks for c, d in pairs if torch.equal(c.tensor, d.tensor)]
    if not still:
        return None
    ranks = sorted(r for group in still for r in group)
    return (
        f"{e.first.tensor} has a gradient and does not change in step {e.moment} on "
        f"ranks {ranks}: the optimizer updates a copy that the model does not use"
    )


# The reduction


@finds("summed-not-averaged")
def summed(e: Evidence) -> str | None:
    """Gradients are p times too large."""
    return _scaled(e, e.p, "summed over the ranks, not averaged")


@finds("averaged-twice")
def averaged_twice(e: Evidence) -> str | None:
    """Gradients are p times too small."""
    return _scaled(e, 1 / e.p, "averaged twice")


@finds("accumulation-not-divided")
def not_divided(e: Evidence) -> str | None:
    """Gradients are too large by the number of micro-batches."""
    says = f"not divided by the {e.passes} micro-batches of a step"
    return _scaled(e, e.passes, says)


@finds("accumulation-divided-twice")
def divided_twice(e: Evidence) -> str | None:
    """Gradients are too small by the number of micro-batches."""
    says = f"divided twice by the {e.passes} micro-batches of a step"
    return _scaled(e, 1 / e.passes, says)


def _scaled(e: Evidence, factor: float, says: str) -> str | None:
    if factor == 1 or not e.bad:
        return None
    for name in e.bad:
        for c in e.held[name]:
            off = distance(c.tensor, factor * e.one[name].double())
            if off > max(1.0, factor) * 2 * e.limits[name]:
                return None
    return (
        f"{_count(e)} {factor:.3g} times that of one process, to the rounding: {says}"
    )


def _count(e: Evidence) -> str:
    some = f"the {len(e.bad)} gradients that differ are" if len(e.bad) > 1 else ""
    return some or f"the gradient of {e.bad[0]} is"


@finds("norm-of-own-shard")
def norm_of_own_shard(e: Evidence) -> str | None:
    """Each rank clips by the norm of what it holds."""
    lengths = _held_lengths(e)
    whole = math.sqrt(sum(norm(t) ** 2 for t in e.one.values()))
    if not lengths or e.p == 1 or not whole or not e.bad:
        return None
    if any(abs(x - whole) > 1e-3 * whole for x in lengths):
        return None
    return (
        f"each rank's own shards have the norm {whole:.4g}, which all of one process "
        "has: the norm was not summed over the ranks before clipping"
    )


def _held_lengths(e: Evidence) -> list[float]:
    """The norm of what each rank holds of sharded gradients."""
    found = []
    for rank in e.runs.many:
        pieces = rank.steps[e.moment].gradients.values()
        if all(p.shape is None for p in pieces):
            return []
        found.append(math.sqrt(sum(norm(p.local) ** 2 for p in pieces)))
    return found


@finds("norm-counts-shards-wrongly")
def wrong_norm(e: Evidence) -> str | None:
    """One common factor on everything, which no mean explains."""
    factor = common_scale(e.runs, e.moment)
    if factor is None or len(e.held) < 2 or not e.bad:
        return None
    return (
        f"all gradients are {factor:.4g} times those of one process: they are right "
        "but for one common factor, as from a norm that counts tensors twice or not "
        f"at all (the norm used would be {1 / factor:.4g} times the true one)"
    )


@finds("never-reduced")
def never_reduced(e: Evidence) -> str | None:
    """Every rank steps with its own gradient."""
    if not e.bad or not all(_equals_own(e, n) for n in e.bad):
        return None
    if len(e.bad) < len(e.held):
        return None
    return "each rank's gradient is its own: nothing is reduced over the ranks"


@finds("parameter-left-out")
def left_out(e: Evidence) -> str | None:
    """Some gradients are reduced, and these are not."""
    if not e.bad or not all(_equals_own(e, n) for n in e.bad):
        return None
    name = e.bad[0]
    tied = next((g for g in e.runs.one.tied if name in g), None)
    why = ""
    if tied:
        why = f"; it is tied ({' and '.join(tied)})"
    elif any(name in _theirs(e, r) for r in range(e.p)):
        why = "; it was frozen when the model was first seen"
    more = f" and {len(e.bad) - 1} more" if len(e.bad) > 1 else ""
    return (
        f"{name}{more} keeps each rank's own gradient, while the other "
        f"{len(e.held) - len(e.bad)} are reduced: left out of the reduction{why}"
    )


def _theirs(e: Evidence, rank: int) -> list[str]:
    names = e.runs.names[rank]
    return [names[n] for n in e.runs.many[rank].frozen if n in names]


def _equals_own(e: Evidence, name: str) -> bool:
    replicas, own = e.replicas(name), e.contributed.get(name)
    if replicas is None:
        return False
    if own is None:  # frozen when it was first seen: what is left is the average
        apart = not all(e.near(name, r, replicas[0]) for r in replicas)
        return apart and e.near(name, _mean(replicas), e.one[name])
    apart = not all(e.near(name, o, own[0]) for o in own)
    return apart and all(
        e.near(name, a, _clipped_to(b, a)) for a, b in zip(replicas, own, strict=True)
    )


def _clipped_to(own: Tensor, stepped: Tensor) -> Tensor:
    """What a rank computed, shortened as far as clipping would have."""
    share = norm(stepped) / max(norm(own), 1e-300)
    return own if share > 1 - 1e-4 else share * own.double()


@finds("only-last-microbatch-reduced")
def only_last(e: Evidence) -> str | None:
    """What was accumulated before the last backward pass stays local, or is lost."""
    if e.passes < 2 or not e.bad:
        return None
    if all(_last_reduced(e, n) for n in e.bad):
        return (
            f"of {e.passes} micro-batches only the last is reduced; the others keep "
            "each rank's own gradient"
        )
    if all(_last_alone(e, n) for n in e.bad):
        return f"of {e.passes} micro-batches only the last counts: the others are lost"
    return None


def _last_reduced(e: Evidence, name: str) -> bool:
    replicas, own, last = e.replicas(name), e.contributed.get(name), e.last.get(name)
    if replicas is None or own is None or last is None:
        return False
    shared = _mean(last)
    expected = [
        o.double() - x.double() + shared for o, x in zip(own, last, strict=True)
    ]
    return all(e.near(name, a, b) for a, b in zip(replicas, expected, strict=True))


def _last_alone(e: Evidence, name: str) -> bool:
    last = e.last.get(name)
    return last is not None and all(
        e.near(name, c.tensor, _mean(last)) for c in e.held[name]
    )


@finds("unequal-tokens-averaged")
def unequal_tokens(e: Evidence) -> str | None:
    """Means over unequal numbers were averaged as if they were equal."""
    names = [n for n in e.bad if n in e.contributed and n in e.unclipped]
    if not names or len(names) < len(e.bad) or e.p == 1:
        return None
    columns = [
        torch.cat([e.contributed[n][r].double().flatten() for n in names])
        for r in range(e.p)
    ]
    target = torch.cat([e.unclipped[n].double().flatten() for n in names])
    own = torch.stack(columns, dim=1)
    if len(target) <= e.p:
        return None
    share = torch.linalg.lstsq(own, target.unsqueeze(1)).solution.squeeze(1)
    length = math.sqrt(sum(norm(e.one[n]) ** 2 for n in names))
    limit = 2 * math.sqrt(sum(e.limits[n] ** 2 for n in names)) * norm(target) / length
    fits = norm(own @ share - target) <= limit
    plain = bool((share - 1 / e.p).abs().max() < 1e-3)
    if not fits or plain or abs(share.sum().item() - 1) > 1e-2:
        return None
    shares = ", ".join(f"{x:.3g}" for x in share.tolist())
    return (
        f"the ranks' gradients would have to be weighted by {shares}, not by "
        f"{1 / e.p:.3g} each: their means are over unequal numbers of tokens or samples"
    )


@finds("padding-dropped")
def padding_dropped(e: Evidence) -> str | None:
    """Only the end of a tensor is wrong."""
    tails = [_tail(e, n) for n in _wrong(e)]
    if not tails or any(t is None for t in tails):
        return None
    name = next(iter(_wrong(e)))
    begin, whole = tails[0]  # type: ignore[misc]
    return (
        f"{name} differs only from element {begin} of {whole} on: its size does not "
        f"divide by the ranks, and the last shard is cut off"
    )


def _wrong(e: Evidence) -> list[str]:
    if e.bad:
        return e.bad
    found = e.runs.of_many(e.first.step, "weights")
    limits, one = (
        e.runs.limits(e.first.step, "weights"),
        e.runs.of_one(e.first.step, "weights"),
    )
    return [
        n
        for n, held in found.items()
        if n in one and any(distance(c.tensor, one[n]) > limits[n] for c in held)
    ]


def _tail(e: Evidence, name: str) -> tuple[int, int] | None:
    """Where the wrong end begins, if the beginning is right."""
    kind = "gradient" if e.bad else "weights"
    step = e.moment if e.bad else e.first.step
    one = e.runs.of_one(step, kind)[name].double().flatten()
    copy = e.runs.of_many(step, kind)[name][0].tensor.double().flatten()
    limit = e.runs.limits(step, kind)[name]
    wrong = ((one - copy).abs() > limit).nonzero().flatten()
    if not len(wrong):
        return None
    begin, rest = int(wrong[0]), len(one) - int(wrong[0])
    right = norm(one[:begin] - copy[:begin]) <= limit
    return (begin, len(one)) if right and rest < max(2, e.p, len(one) // 4) else None


# What is left


@finds("reduction-wrong")
def reduction(e: Evidence) -> str | None:
    """Each rank computes its part, and they are put together wrongly."""
    if e.first.kind != "gradient" or not _whole_gradient_is_right(e):
        return None
    return (
        "the ranks' own gradients average to that of one process, so each computes its "
        "part; the mistake is in how they are reduced"
    )


@finds("update-differs")
def update(e: Evidence) -> str | None:
    """Equal gradients, other weights."""
    if e.first.kind != "weights" or e.bad or e.first.step == 0:
        return None
    return (
        f"the gradients of step {e.moment} agree, so the mistake is in the update: the "
        "optimizer's state, its options, or how updated weights are shared"
    )


@finds("local-computation-differs")
def computation(e: Evidence) -> str | None:
    """The mistake is before the reduction."""
    if not e.contributed:
        return None
    return (
        "the ranks' own gradients do not average to that of one process: the mistake "
        "is in the forward or backward computation or in the loss, before the reduction"
    )


def _mean(tensors: list[Tensor]) -> Tensor:
    total = torch.zeros_like(tensors[0], dtype=torch.double)
    for t in tensors:
        total += t
    return total / len(tensors)
