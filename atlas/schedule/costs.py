"""What a schedule costs: makespan, idle time, and the activations each rank holds.

A rank does one thing at a time and starts it as soon as it can. A message takes
`message` seconds between two ranks and disturbs nobody; on one rank it is free.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from atlas.schedule.actions import Action, Schedule, Work, needs, of_stages
from atlas.schedule.checker import Post, programs
from atlas.timeline import Event, Timeline, virtual


class Placed(NamedTuple):
    """One piece of work and its time."""

    work: Work
    start: float
    end: float


@dataclass(frozen=True)
class Cost:
    """When every rank does what."""

    ranks: tuple[tuple[Placed, ...], ...]

    @property
    def makespan(self) -> float:
        """Seconds from the first work of any rank to the last of any rank."""
        return max((works[-1].end for works in self.ranks if works), default=0.0)

    @property
    def busy(self) -> list[float]:
        """Seconds of work of each rank."""
        return [sum(w.end - w.start for w in works) for works in self.ranks]

    @property
    def idle(self) -> list[float]:
        """Seconds in which each rank does nothing, until the last one is done."""
        return [self.makespan - b for b in self.busy]

    @property
    def own_idle(self) -> list[float]:
        """Seconds in which each rank does nothing between its own first and last work.

        What counts if a rank may begin the next batch before the others have ended.
        """
        pairs = zip(self.ranks, self.busy, strict=True)
        return [x[-1].end - x[0].start - b if x else 0.0 for x, b in pairs]

    @property
    def bubble(self) -> float:
        """Idle share of all the time of all ranks."""
        total = self.makespan * len(self.ranks)
        return sum(self.idle) / total if total else 0.0


def cost(
    schedule: Schedule, seconds: Mapping[str, float], message: float = 0.0
) -> Cost:
    """Every piece of work at its earliest time.

    `seconds` of F, B and W. A backward that is not split takes those of B and W.
    """
    free = [0.0] * len(schedule.ranks)
    end: dict[Work, tuple[float, int]] = {}
    found: list[list[Placed]] = [[] for _ in schedule]
    for r, work in schedule.in_order():
        came = [end[n] for n in needs(work, schedule.stages)]
        times = [t + (message if home != r else 0.0) for t, home in came]
        start = max([free[r], *times])
        free[r] = start + schedule.seconds(work, seconds)
        end[work] = free[r], r
        found[r].append(Placed(work, start, free[r]))
    return Cost(tuple(tuple(works) for works in found))


def peaks(schedule: Schedule) -> list[int]:
    """Most activations that each rank holds at once: one per micro-batch and stage.

    From the forward to the end of the backward: of W, where there is one.
    """
    found = []
    for works in schedule:
        now = most = 0
        for w in works:
            last = "W" if (w.micro, w.stage) in schedule.split else "B"
            now += (w.kind == "F") - (w.kind == last)
            most = max(most, now)
        found.append(most)
    return found


def in_flight(actions: Iterable[Action]) -> int:
    """Most micro-batches that are between their forward and their backward."""
    return peaks(of_stages([actions]))[0]


def simulate(
    stages: Schedule | Sequence[Sequence[Action]], cost: Mapping[str, float]
) -> Timeline:
    """The timeline that such a run would log, with free messages."""
    schedule = stages if isinstance(stages, Schedule) else of_stages(stages)
    lowered = programs(schedule)
    return virtual(_trace(schedule, r, lowered[r], cost) for r in range(len(lowered)))


def _trace(
    schedule: Schedule,
    rank: int,
    program: Iterable[Work | Post],
    cost: Mapping[str, float],
) -> list[Event]:
    """What a rank would log: receives, each waited for before its use, work, sends."""
    events: list[Event] = []
    posted: dict[Work, int] = {}
    for item in program:
        if isinstance(item, Post):
            if item.kind == "recv":
                posted[item.work] = len(events)
            events.append(Event(item.kind, peer=item.peer))
            continue
        for need in needs(item, schedule.stages):
            if need in posted:
                events.append(Event("wait", of=posted[need]))
        seconds = schedule.seconds(item, cost)
        events.append(
            Event("begin", name=item.kind, label=str(item.micro), cost=seconds)
        )
        events.append(Event("end", of=len(events) - 1))
    return events
