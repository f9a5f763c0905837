"""The study of the race: what was kept of it, and what its losses say."""

import json
from collections.abc import Sequence

from atlas.record import source_hash
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

#: Lines of one plot: what they are called together, and the families they are from.
GROUPS = (
    (
        "With a server, or a barrier",
        ("synchronous", "bounded-staleness", "asynchronous"),
    ),
    ("Alone for a while, or with neighbors", ("periodic", "consensus")),
    ("In a pipeline", ("pipeline-flush", "pipeline-stale")),
    ("With losses of their own", ("layer-local",)),
)
BASELINE = "bsp-synchronous-sgd"  # is in every plot
#: Which end alike, and why.
TIES = (
    (
        ("bsp-synchronous-sgd", "gpipe", "local-parallelism:backprop"),
        "They make the same updates. What differs is where the layers are, and so the "
        "time: a pipeline of four stages fills and drains at every step.",
    ),
)
#: Exemplars of this axis that train and are not raced.
LEFT_OUT = {
    "adaptive-rerouting": "its workers die",
    "elastic-rescaling": "its workers come and go",
    "quorum-step": "its workers die",
    "federated-averaging": "each client repeats its own samples, not those of the race",
    "hogwild": "it needs shared memory, and its slow motion takes turns",
    "gradient-accumulation": "it is synchronous SGD on the same batch",
    "token-weighted-mean": "with equal numbers of tokens, it is synchronous SGD",
    "bidirectional-pipeline": "it is synchronous SGD in another order, as GPipe is",
    "dualpipe": "it is synchronous SGD in another order, as GPipe is",
    "interleaved-one-f-one-b": "it is synchronous SGD in another order, as GPipe is",
    "message-driven-scheduling": "it is synchronous SGD in another order, as GPipe is",
    "one-f-one-b": "it is synchronous SGD in another order, as GPipe is",
    "schedule-as-data": "it is synchronous SGD in another order, as GPipe is",
    "token-level-pipeline": "it is synchronous SGD in another order, as GPipe is",
    "v-schedule": "it is synchronous SGD in another order, as GPipe is",
    "zero-bubble": "it is synchronous SGD in another order, as GPipe is",
}


def groups(ctx: Context, entries: Json) -> list[tuple[str, list[str]]]:
    """Names by group, the baseline first in each."""
    families = {
        n: ctx.atlas.techniques[e["technique"]].family for n, e in entries.items()
    }
    made = []
    for title, chosen in GROUPS:
        names = [n for n in entries if families[n] in chosen and n != BASELINE]
        if names:
            made.append((title, [n for n in (BASELINE,) if n in entries] + names))
    return made


def tied(entries: Json, names: Sequence[str]) -> bool:
    """Whether they end alike with equal ranks, to what the table shows."""
    ends = [entries[n]["equal"]["curve"][-1][2] for n in names if n in entries]
    return len(ends) > 1 and max(ends) - min(ends) < 0.001


def study(ctx: Context) -> Json | None:
    """The kept study, or None."""
    path = ctx.root / "measurements" / "studies" / "race.json"
    if not path.is_file():
        return None
    found: Json = json.loads(path.read_text(encoding="utf-8"))
    return found


def outdated(ctx: Context, found: Json) -> list[str]:
    """Techniques whose exemplars have changed since they were raced."""
    races, known = found["races"].values(), ctx.atlas.techniques
    ids = {entry["technique"] for entries in races for entry in entries.values()}
    then = found["sources"]
    return sorted(i for i in ids if source_hash(ctx.root, known[i]) != then.get(i))


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
