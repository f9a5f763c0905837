"""What the bubble playground shows: every named schedule, what it costs, what it holds.

Seconds are those of a rank's whole share of the network for one micro-batch, so that
schedules compare: where a rank has two stages, a pass through one of them takes half.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from atlas.schedule import GENERATORS, Cost, Schedule, cost, generate, peaks
from atlas.views.context import Context

RANKS = tuple(range(2, 9))
MICROBATCHES = (*range(1, 17), 20, 24, 32)
#: Stages of a rank that interleaving may have.
CHUNKS = (2, 3, 4)
#: The schedule's exemplar, which ran it.
EXEMPLARS = {
    "gpipe": "gpipe",
    "1f1b": "one-f-one-b",
    "interleaved-1f1b": "interleaved-one-f-one-b",
    "zb-h1": "zero-bubble",
    "zb-h2": "zero-bubble",
    "zb-v": "v-schedule",
    "v-half": "v-schedule",
    "v-min": "v-schedule",
    "chimera": "bidirectional-pipeline",
    "dualpipe": "dualpipe",
    "dualpipe-v": "dualpipe",
}
#: With which sizes an exemplar of several schedules runs this one.
RAN: Mapping[str, Mapping[str, int]] = {
    "zb-h1": {"depth": 1},
    "zb-h2": {"depth": 2},
    "zb-v": {"slope": 4},
    "v-half": {"slope": 2},
    "v-min": {"slope": 1},
    "dualpipe": {"copies": 2},
    "dualpipe-v": {"copies": 1},
}
NAMES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved-1f1b": "Interleaved 1F1B",
    "zb-h1": "ZB-H1",
    "zb-h2": "ZB-H2",
    "zb-v": "ZB-V",
    "v-half": "V-Half",
    "v-min": "V-Min",
    "chimera": "Chimera",
    "dualpipe": "DualPipe",
    "dualpipe-v": "DualPipeV",
}
#: What the page shows first, and where there are no scripts.
FIRST: Mapping[str, float] = {"p": 4, "m": 8, "F": 1, "B": 1, "W": 1, "message": 0}
#: Message costs of the table, in forward passes.
MESSAGES = (0.0, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Figures:
    """A schedule at one cost."""

    name: str
    cost: Cost
    #: Micro-batches of a whole share that the fullest rank holds at once.
    held: float
    #: Copies of a rank's share of the weights.
    weights: float

    @property
    def makespan(self) -> float:
        """Seconds of one batch."""
        return self.cost.makespan


def share(schedule: Schedule) -> float:
    """The part of a rank's share that one stage is."""
    return len(schedule.ranks) / schedule.stages


def figures(
    schedule: Schedule, seconds: Mapping[str, float], message: float
) -> Figures:
    """What a schedule costs if a rank's share takes these seconds."""
    part = share(schedule)
    stage = {kind: part * t for kind, t in seconds.items()}
    weights = max(len(schedule.held(r)) for r in range(len(schedule.ranks)))
    return Figures(
        schedule.name,
        cost(schedule, stage, message),
        part * max(peaks(schedule)),
        part * weights,
    )


@dataclass(frozen=True)
class Row:
    """A schedule in the table: makespan by message cost, and its place among all."""

    name: str
    held: float
    weights: float
    cells: tuple[tuple[float, int], ...]


def ranking(ranks: int, microbatches: int, seconds: Mapping[str, float]) -> list[Row]:
    """All schedules that these ranks and micro-batches allow, fastest first."""
    rows = {
        s.name: [figures(s, seconds, message) for message in MESSAGES]
        for s in schedules(ranks, microbatches)
    }
    places = [
        sorted(found[i].makespan for found in rows.values())
        for i in range(len(MESSAGES))
    ]
    made = [
        Row(
            name,
            found[0].held,
            found[0].weights,
            tuple(
                (f.makespan, places[i].index(f.makespan) + 1)
                for i, f in enumerate(found)
            ),
        )
        for name, found in rows.items()
    ]
    return sorted(made, key=lambda row: (row.cells[0], row.held, row.name))


def schedules(ranks: int, microbatches: int) -> Iterator[Schedule]:
    """Every named schedule that is legal here."""
    for name in GENERATORS:
        try:
            yield generate(name, ranks, microbatches)
        except ValueError:
            continue


def recorded(ctx: Context, name: str) -> list[tuple[int, int]]:
    """(ranks, micro-batches) with which the schedule's exemplar really ran."""
    found = []
    for run in ctx.runs(EXEMPLARS[name], "gloo"):
        given = run["given"]
        if "microbatches" in given and _is(given, RAN.get(name, {})):
            found.append((int(run["p"]), int(given["microbatches"])))
    return found


def _is(given: Mapping[str, float], sizes: Mapping[str, int]) -> bool:
    return all(given.get(word) == size for word, size in sizes.items())


# What the page's script reads


@cache
def packed(name: str) -> dict[str, list[str]]:
    """Every schedule of that name in few letters: "p,m,v" -> stages, then each rank.

    The stages that a rank holds are numbers joined by commas; its work is two letters
    each: the kind (FBW for its first stage, GCX for its second, and so on), and the
    micro-batch in base 32.
    """
    made: dict[str, list[str]] = {}
    chunks = CHUNKS if GENERATORS[name].free else (GENERATORS[name].chunks,)
    for p in RANKS:
        for m in MICROBATCHES:
            for v in chunks:
                try:
                    schedule = generate(name, p, m, v)
                except ValueError:
                    continue
                made[f"{p},{m},{v}"] = [_rank(schedule, r) for r in range(p)]
    return made


#: Kinds by place of the stage on its rank, and micro-batches, as single letters.
KINDS = ("FBW", "GCX", "HDY", "IEZ")
MICRO = "0123456789abcdefghijklmnopqrstuv"


def _rank(schedule: Schedule, rank: int) -> str:
    held = schedule.held(rank)
    work = (
        KINDS[held.index(w.stage)]["FBW".index(w.kind)] + MICRO[w.micro]
        for w in schedule.ranks[rank]
    )
    return ",".join(map(str, held)) + ":" + "".join(work)
