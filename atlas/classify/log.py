"""What one rank did, as far as the classification asks: messages and updates."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any


@dataclass(frozen=True)
class Entry:
    """A message, a collective, or weights that are read or updated in a training.

    `what` is a digest: of what was sent, of the weights that a forward pass read, or
    of those after an update.
    """

    kind: str  # one of KINDS
    peer: int = -1
    group: tuple[int, ...] = ()
    what: str = ""
    bytes: int = 0


KINDS = ("send", "recv", "collective", "start", "stop", "read", "update")


def entries(events: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """The entries of a rank's trace, in program order."""
    return [
        Entry(
            e["kind"],
            e.get("peer", -1),
            tuple(e.get("group", ())),
            e.get("what", ""),
            e.get("bytes", 0),
        )
        for e in events
        if e["kind"] in KINDS
    ]


@dataclass(frozen=True)
class Logs:
    """The entries of every rank, and which send each receive belongs to."""

    ranks: tuple[tuple[Entry, ...], ...]

    @property
    def size(self) -> int:
        return len(self.ranks)

    @cached_property
    def origin(self) -> dict[tuple[int, int], tuple[int, int]]:
        """(rank, place) of a receive -> (rank, place) of its send.

        The k-th message from one rank to another is the k-th that the other receives.
        """
        sent: dict[tuple[int, int], list[int]] = defaultdict(list)
        for rank, log in enumerate(self.ranks):
            for place, entry in enumerate(log):
                if entry.kind == "send":
                    sent[rank, entry.peer].append(place)
        found: dict[tuple[int, int], tuple[int, int]] = {}
        seen: dict[tuple[int, int], int] = defaultdict(int)
        for rank, log in enumerate(self.ranks):
            for place, entry in enumerate(log):
                if entry.kind != "recv" or entry.peer < 0:
                    continue
                k, line = seen[entry.peer, rank], sent[entry.peer, rank]
                seen[entry.peer, rank] += 1
                if k < len(line):
                    found[rank, place] = (entry.peer, line[k])
        return found

    def reads(self, rank: int) -> list[str]:
        """The weights with which a rank computed, one after the other."""
        found = [e.what for e in self.ranks[rank] if e.kind == "read" and e.what]
        return [what for what, _ in groupby(found)]

    def updates(self, rank: int) -> list[int]:
        """The places at which a rank changed weights of its own."""
        log = enumerate(self.ranks[rank])
        return [i for i, entry in log if entry.kind == "update" and entry.what]


def trainings(ranks: Sequence[Sequence[Entry]]) -> list[Logs]:
    """The trainings of a run, one after the other; the whole run if none is marked."""
    parts = [_split(log) for log in ranks]
    count = min(map(len, parts))
    if not count:
        return [Logs(tuple(tuple(log) for log in ranks))]
    return [Logs(tuple(tuple(part[i]) for part in parts)) for i in range(count)]


def _split(log: Sequence[Entry]) -> list[list[Entry]]:
    parts: list[list[Entry]] = []
    inside = False
    for entry in log:
        if entry.kind in ("start", "stop"):
            inside = entry.kind == "start"
            parts += [[]] if inside else []
        elif inside:
            parts[-1].append(entry)
    return [_in_order(part) for part in parts]


def _in_order(log: list[Entry]) -> list[Entry]:
    """With each update before the first message that carries what it made.

    A training tells of an update when its step is over, and has often sent the new
    weights by then.
    """
    made: list[Entry] = []
    last = 0  # where the entries since the last update begin
    for entry in log:
        place = len(made)
        if entry.kind == "update" and entry.what:
            new = content(entry.what)
            carrying = (
                i
                for i, e in enumerate(made[last:], last)
                if e.kind == "send" and content(e.what) == new
            )
            place = next(carrying, place)
            last = place + 1
        made.insert(place, entry)
    return made


def content(what: str) -> str:
    """The part of a digest that tells values apart; the other tells shapes."""
    return what.partition(":")[2]
