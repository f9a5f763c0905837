"""A pipeline as data: who does what, in which order.

A schedule gives every stage the list of its actions. Execution, drawing,
bubble and memory all come from that one list, so they cannot disagree.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from atlas.timeline import Event, Timeline, virtual


class Action(NamedTuple):
    """Forward or backward of one micro-batch."""

    kind: str  # F or B
    micro: int

    def __str__(self) -> str:
        return f"{self.kind}{self.micro}"


def in_flight(actions: Iterable[Action]) -> int:
    """Most micro-batches that are between their forward and their backward."""
    now = most = 0
    for action in actions:
        now += 1 if action.kind == "F" else -1
        most = max(most, now)
    return most


def simulate(stages: Sequence[Sequence[Action]], cost: dict[str, float]) -> Timeline:
    """The schedule's own timeline, with free messages: makespan and bubbles."""
    return virtual(_trace(s, stages, cost) for s in range(len(stages)))


def _trace(
    s: int, stages: Sequence[Sequence[Action]], cost: dict[str, float]
) -> list[Event]:
    """What stage s would log: receive, work, send."""
    last = len(stages) - 1
    events: list[Event] = []
    for a in stages[s]:
        source, target = (s - 1, s + 1) if a.kind == "F" else (s + 1, s - 1)
        if 0 <= source <= last:
            events.append(Event("recv", peer=source))
            events.append(Event("wait", of=len(events) - 1))
        events.append(
            Event("begin", name=a.kind, label=str(a.micro), cost=cost[a.kind])
        )
        events.append(Event("end", of=len(events) - 1))
        if 0 <= target <= last:
            events.append(Event("send", peer=target))
    return events
