"""Contracts of what is data: pipeline schedules, mixing matrices, compressors."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from atlas.check.contracts.base import Broken, Case, Contract, Options

if TYPE_CHECKING:
    from exemplars.runtime import World

#: (stages, micro-batches)
PIPELINES = [(1, 1), (2, 1), (2, 2), (2, 5), (3, 3), (4, 2), (4, 4), (4, 9)]

# Schedules


def schedule(
    w: "World", part: Any, options: Options, *, stages: int, microbatches: int
) -> None:
    """Every micro-batch goes forward and back once on every stage, and none waits."""
    table = [_actions(part, s, stages, microbatches, options) for s in range(stages)]
    for s, actions in enumerate(table):
        _complete(s, actions, microbatches)
    _runs_to_its_end(table)


def _actions(
    part: Any, stage: int, stages: int, microbatches: int, options: Options
) -> list[tuple[str, int]]:
    known = {"stage": stage, "rank": stage, "stages": stages, "num_stages": stages}
    known |= {"microbatches": microbatches, "num_microbatches": microbatches}
    asked = [n for n in inspect.signature(part).parameters if n in known]
    given = {n: known[n] for n in asked}
    if not given:
        made = part(stage, stages, microbatches, **options)
    else:
        made = part(**given, **options)
    return [_action(a) for a in made]


def _action(a: Any) -> tuple[str, int]:
    """F3, ("F", 3), or an object with a kind and a micro-batch."""
    if isinstance(a, str):
        kind = a.rstrip("0123456789")
        return kind.upper(), int(a[len(kind) :])
    kind, micro = tuple(a)[:2]
    return str(getattr(kind, "name", kind))[:1].upper(), int(micro)


def _complete(s: int, actions: Sequence[tuple[str, int]], microbatches: int) -> None:
    for i in range(microbatches):
        for kind in "FB":
            times = actions.count((kind, i))
            if times != 1:
                raise Broken(f"stage {s} does {kind}{i} {times} times, not once")
        if actions.index(("F", i)) > actions.index(("B", i)):
            raise Broken(f"stage {s} does B{i} before F{i}")
    extra = [a for a in actions if a[0] in "FB" and a[1] >= microbatches]
    if extra:
        kind, micro = extra[0]
        raise Broken(f"stage {s} does {kind}{micro}, and there are {microbatches}")


def _runs_to_its_end(table: Sequence[Sequence[tuple[str, int]]]) -> None:
    """Each stage does its next action when what it needs is there."""
    done: set[tuple[str, int, int]] = set()
    at = [0] * len(table)
    last = len(table) - 1
    while any(at[s] < len(actions) for s, actions in enumerate(table)):
        moved = False
        for s, actions in enumerate(table):
            while at[s] < len(actions):
                kind, i = actions[at[s]]
                before = ("F", s - 1, i) if kind == "F" else ("B", s + 1, i)
                first = s == 0 if kind == "F" else s == last
                if kind in "FB" and not first and before not in done:
                    break
                done.add((kind, s, i))
                at[s] += 1
                moved = True
        if not moved:
            waiting = [
                f"stage {s} for {actions[at[s]][0]}{actions[at[s]][1]}"
                for s, actions in enumerate(table)
                if at[s] < len(actions)
            ]
            raise Broken(f"deadlock: {', '.join(waiting)} wait for each other")


# Mixing matrices


def mixing(w: "World", part: Any, options: Options, *, ranks: int) -> None:
    """Rows and columns sum to 1, nothing is negative, and repeated mixing agrees."""
    m = torch.as_tensor(part(ranks, **options), dtype=torch.double)
    if m.shape != (ranks, ranks):
        raise Broken(f"for {ranks} ranks the matrix is {tuple(m.shape)}")
    for name, sums in (("row", m.sum(1)), ("column", m.sum(0))):
        worst = int((sums - 1).abs().argmax())
        if abs(sums[worst].item() - 1) > 1e-9:
            raise Broken(f"{name} {worst} of {ranks} sums to {sums[worst].item():.6g}")
    if m.min().item() < 0:
        raise Broken(f"for {ranks} ranks an entry is {m.min().item():.6g}")
    rest = torch.linalg.matrix_norm(m - 1 / ranks, 2).item()
    power = torch.linalg.matrix_power(m, 64 * ranks) - 1 / ranks
    if power.abs().max().item() > max(1e-6, rest ** (64 * ranks) * ranks):
        raise Broken(f"for {ranks} ranks repeated mixing does not reach the average")


# Compressors


def _vectors(w: "World") -> dict[str, Tensor]:
    return {
        "random": w.randn(257, seed=1),
        #: Ten times the others: much larger, and a fair coin needs more than 400 draws
        #: to say whether the small ones are unbiased.
        "one large entry": torch.cat([10 * w.randn(1, seed=2), w.randn(63, seed=3)]),
        "ones": torch.ones(64, dtype=torch.double, device=w.device),
        "negative": -w.randn(64, seed=4).abs(),
    }


def compressor(w: "World", part: Any, options: Options, *, name: str) -> None:
    """What is left out, carried or averaged, comes out right in the long run.

    Fed the same vector again and again, the mean of what is restored must come near
    it: by error feedback for what drops, by being unbiased for what draws.
    """
    v = _vectors(w)[name]
    both = _pair(part, v, options)
    restored = [both(v, step) for step in range(400)]
    for x in restored[:1]:
        if x.shape != v.shape or x.dtype != v.dtype:
            raise Broken(
                f"{name}: restored {tuple(x.shape)} {x.dtype}, not "
                f"{tuple(v.shape)} {v.dtype}"
            )
    off = [(torch.stack(restored[:n]).mean(0) - v).norm().item() for n in (25, 400)]
    if not all(x < float("inf") for x in off):
        raise Broken(f"{name}: what is restored is not finite")
    #: Error feedback is off by a bounded residual over n, an unbiased draw by one over
    #: the root of n: 16 times the steps, at least half the error.
    if off[1] > max(off[0] / 2, 1e-9 * v.norm().item()):
        raise Broken(
            f"{name}: after 25 steps the mean is off by {off[0]:.3g}, after 400 still "
            f"by {off[1]:.3g}: it is biased, and nothing carries the error"
        )


def _pair(part: Any, like: Tensor, options: Options) -> Callable[[Tensor, int], Tensor]:
    """Compress and restore, whatever the methods are called."""
    made: Any = part
    if inspect.isclass(part):
        asks = inspect.signature(part).parameters
        first = next(iter(asks.values()), None)
        wants = first is not None and first.kind is not first.KEYWORD_ONLY
        made = made(like, **options) if wants else made(**options)
    into = _method(made, ("compress", "quantize", "encode"))
    back = _method(made, ("decompress", "restore", "dequantize", "decode"))
    if into is None or back is None:
        if callable(made) and into is None:
            return lambda v, step: made(v)
        raise Broken("it has no pair of methods such as compress and decompress")
    seeded = "seed" in inspect.signature(into).parameters

    def both(v: Tensor, step: int) -> Tensor:
        sent = into(v, seed=step) if seeded else into(v)
        takes = len(inspect.signature(back).parameters)
        packed = sent if isinstance(sent, tuple) and takes == len(sent) else (sent,)
        found: Tensor = back(*packed)
        return found

    return both


def _method(made: Any, names: Sequence[str]) -> Any:
    return next((getattr(made, n) for n in names if hasattr(made, n)), None)


# The cases


def _of_schedules() -> Iterator[Case]:
    for stages, microbatches in PIPELINES:
        run = partial(schedule, stages=stages, microbatches=microbatches)
        yield Case(f"{stages} stages, {microbatches} micro-batches", run)


CONTRACTS = (
    Contract(
        "pipeline-schedule",
        "every micro-batch goes forward and back once on every stage, without deadlock",
        "a function of (stage, stages, microbatches) that gives F and B actions",
        list(_of_schedules()),
        ranks=(1,),
    ),
    Contract(
        "mixing-matrix",
        "a doubly stochastic matrix whose powers reach the average",
        "a function of the number of ranks that gives a square matrix",
        [Case(f"{p} ranks", partial(mixing, ranks=p)) for p in (1, 2, 3, 4, 5, 8)],
        ranks=(1,),
    ),
    Contract(
        "compressor",
        "unbiased, or with error feedback: on average, what is sent is what was given",
        "a class or object with compress and decompress, or a function of a tensor",
        [
            Case(name, partial(compressor, name=name))
            for name in ("ones", "negative", "random", "one large entry")
        ],
        ranks=(1,),
        called=False,
    ),
)
