"""The study of the race: what was kept of it, and what its losses say."""

import json
from collections.abc import Sequence

from atlas.record import source_of
from atlas.views.context import Context, Json

TASKS = ("digits", "characters")
DIVERGED = 100.0  # a loss that no guess of letters or digits has
# What is claimed: (strategy, the one it is held against, who says what)
CLAIMS = (
    (
        "weight-stashing",
        "bsp-synchronous-sgd",
        "Nichols 2021: weight stashing does not cure staleness; it learns less from "
        "the same samples than synchronous training.",
    ),
    (
        "local-parallelism:greedy",
        "local-parallelism:chunked",
        "After Laskin 2020: greedy loses more than chunked.",
    ),
    (
        "local-parallelism:chunked",
        "local-parallelism:backprop",
        "After Laskin 2020: chunked loses something against backprop.",
    ),
    (
        "downpour",
        "bsp-synchronous-sgd",
        "Langer 2020: applying gradients on arrival saves the waiting and pays in "
        "stale gradients.",
    ),
)


def study(ctx: Context) -> Json | None:
    """The kept study, or None."""
    path = ctx.root / "measurements" / "studies" / "race.json"
    if not path.is_file():
        return None
    found: Json = json.loads(path.read_text(encoding="utf-8"))
    return found


def source(ctx: Context, found: Json) -> str:
    """The hash of what would be raced today."""
    races = found["races"].values()
    ids = {entry["technique"] for entries in races for entry in entries.values()}
    return source_of(ctx.root, [ctx.atlas.techniques[id] for id in ids])


def said(loss: float) -> str:
    """A loss; what is beyond all sense has diverged."""
    return f"{loss:.3f}" if loss < DIVERGED else "diverged"


def verdict(worse: Sequence[float], better: Sequence[float]) -> str:
    """Whether the ranges of the seeds are apart, and which way."""
    if worse[3] > better[4]:
        return "yes: every seed is worse"
    if worse[4] < better[3]:
        return "no: every seed is better"
    return "not at this size: the seeds overlap"
