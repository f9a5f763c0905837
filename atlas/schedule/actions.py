"""What a schedule is made of: forward, backward or weight gradient of a micro-batch."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


class Action(NamedTuple):
    """Forward or backward of one micro-batch, where a rank has one stage."""

    kind: str  # F or B
    micro: int

    def __str__(self) -> str:
        return f"{self.kind}{self.micro}"


class Work(NamedTuple):
    """One piece of work on one micro-batch at one stage of the network.

    F is the forward pass. B is the backward pass: the whole of it, unless the schedule
    has a W of the same micro-batch and stage. Then B is the gradient of the stage's
    input, which the previous stage waits for, and W that of its weights.
    """

    kind: str  # F, B or W
    micro: int
    stage: int  # counted from 0 through the network, not on the rank

    def __str__(self) -> str:
        return f"{self.kind}{self.micro}@{self.stage}"


@dataclass(frozen=True)
class Schedule:
    """The work of every rank, in order.

    A rank may have several stages, and two ranks may each have a copy of a stage: a
    micro-batch then belongs to one of the copies.
    """

    ranks: tuple[tuple[Work, ...], ...]
    name: str = ""

    @classmethod
    def of(cls, ranks: Iterable[Iterable[tuple[str, int, int]]]) -> "Schedule":
        """Of each rank's list of (kind, micro-batch, stage)."""
        return cls(tuple(tuple(Work(*work) for work in works) for works in ranks))

    def __iter__(self) -> Iterator[tuple[Work, ...]]:
        return iter(self.ranks)

    @cached_property
    def stages(self) -> int:
        """Stages of the network."""
        return 1 + max((w.stage for works in self.ranks for w in works), default=-1)

    @cached_property
    def microbatches(self) -> int:
        """Micro-batches of a batch."""
        return 1 + max((w.micro for works in self.ranks for w in works), default=-1)

    @cached_property
    def place(self) -> dict[tuple[int, int], int]:
        """The rank that takes a micro-batch through a stage, by (micro, stage)."""
        return {
            (w.micro, w.stage): r
            for r, works in enumerate(self.ranks)
            for w in works
            if w.kind == "F"
        }

    @cached_property
    def split(self) -> frozenset[tuple[int, int]]:
        """The (micro, stage) whose backward is in two parts, B and W."""
        works = (w for works in self.ranks for w in works)
        return frozenset((w.micro, w.stage) for w in works if w.kind == "W")

    def in_order(self) -> Iterator[tuple[int, Work]]:
        """All work of all ranks, in one order that respects what each needs.

        In rounds: in each, every rank that can does its next piece of work. It ends
        early if all ranks wait.
        """
        todo = [deque(works) for works in self.ranks]
        done: set[Work] = set()
        while any(todo):
            ready = [
                (r, works[0])
                for r, works in enumerate(todo)
                if works and done.issuperset(needs(works[0], self.stages))
            ]
            if not ready:
                return
            for r, work in ready:
                todo[r].popleft()
                done.add(work)
                yield r, work

    def taker(self, work: Work) -> tuple[Work, int] | None:
        """The work that takes what this one makes, and its rank, if there is any."""
        kind, i, s = work
        after = {"F": s + 1, "B": s - 1}.get(kind, -1)
        if not 0 <= after < self.stages:
            return None
        return Work(kind, i, after), self.place[i, after]

    def seconds(self, work: Work, each: Mapping[str, float]) -> float:
        """Of one piece of work; a backward that is not split takes B and W."""
        whole = work.kind == "B" and (work.micro, work.stage) not in self.split
        return each[work.kind] + (each.get("W", 0) if whole else 0)

    def held(self, rank: int) -> list[int]:
        """The stages whose weights a rank holds."""
        return sorted({w.stage for w in self.ranks[rank]})


def schedule_of(ranks: Iterable[Iterable[Work]], name: str = "") -> Schedule:
    """A schedule of any lists of work."""
    return Schedule(tuple(tuple(works) for works in ranks), name)


def of_stages(stages: Sequence[Iterable[Action]], name: str = "") -> Schedule:
    """A schedule of plain actions: rank s has stage s and no other."""
    return schedule_of(
        ([Work(kind, i, s) for kind, i in actions] for s, actions in enumerate(stages)),
        name,
    )


def needs(work: Work, stages: int) -> list[Work]:
    """What must be done before: on this rank, or on the one before or behind it."""
    kind, i, s = work
    match kind:
        case "F":
            return [Work("F", i, s - 1)] if s > 0 else []
        case "B":
            behind = [Work("B", i, s + 1)] if s < stages - 1 else []
            return [Work("F", i, s), *behind]
    return [Work("B", i, s)]
