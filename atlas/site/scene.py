"""From a recorded trace to what the replay draws: a scene, as plain data.

A scene has one list of spans, messages and collectives, and every one of them
has its place in each *mode* of time: logical time first (rounds, virtual time
or steps, computed by atlas.timeline), then the wall clock of that run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from atlas.timeline import (
    Collective,
    Event,
    Message,
    Span,
    Timeline,
    TimelineError,
    declared,
    nothing,
    one,
    overlapped,
    timeline,
)

COLOURS = 8  # c0 to c7 in the style sheet; the one after them is gray
#: Things drawn of the run, and of a mutant's: what a page of 900 KB can carry. A
#: longer trace is cut, and the caption says so.
LIMIT, LIMIT_OF_MUTANT = 450, 60
Json = dict[str, Any]
Block = tuple[int, float, float]  # rank, start, end


@dataclass(frozen=True, slots=True)
class Mode:
    """One way of telling time."""

    id: str
    name: str
    unit: str


ROUNDS = Mode("rounds", "Rounds", "round")
VIRTUAL = Mode("virtual", "Virtual time", "")
OVERLAPPED = Mode("virtual", "Virtual time", "")  # in which messages take time too
STEPS = Mode("steps", "Steps", "step")
WALL = Mode("wall", "Wall clock", "ms")


def traces(run: Mapping[str, Any]) -> list[list[Json]] | None:
    """Every rank's events, or None if the run did not keep them."""
    ranks = sorted(run.get("ranks", ()), key=lambda r: int(r["rank"]))
    if len(ranks) != run.get("p") or not all(r.get("events") for r in ranks):
        return None
    return [list(r["events"]) for r in ranks]


def scene(
    run: Mapping[str, Any],
    predicted: Sequence[float] | None = None,
    limit: int = LIMIT,
) -> Json | None:
    """What the replay draws of a run; None if there is nothing to draw."""
    events = traces(run)
    if events is None:
        return None
    overlaps = any("exposed" in rank.get("measured", ()) for rank in run["ranks"])
    mode = OVERLAPPED if overlaps else choose(events)
    try:
        logical = place(events, mode)
    except TimelineError:
        return None  # a broken run may not fit together
    return _cut(_Scene(events, mode, logical).data(predicted), limit)


def choose(events: Sequence[Sequence[Mapping[str, Any]]]) -> Mode:
    """Virtual time where spans declare costs, else rounds, else plain steps."""
    flat = [e for trace in events for e in trace]
    if any(e.get("cost") for e in flat):
        return VIRTUAL
    if any(e["kind"] == "send" for e in flat):
        return ROUNDS
    return STEPS


def place(events: Sequence[Sequence[Mapping[str, Any]]], mode: Mode) -> Timeline:
    """The earliest time of everything, in this mode."""
    if mode is OVERLAPPED:
        return overlapped(events)
    if mode is VIRTUAL:
        return timeline(events, span_cost=declared, message_cost=nothing)
    if mode is ROUNDS:
        return timeline(events, nothing, message_cost=one, collective_cost=one)
    return timeline(events, span_cost=_leaf(events), collective_cost=one)


def _leaf(events: Sequence[Sequence[Mapping[str, Any]]]) -> Any:
    """One step for a span with nothing inside it; an outer span adds nothing."""
    leaves: set[tuple[str, str, float]] = set()
    for trace in events:
        for i, e in enumerate(trace):
            if e["kind"] == "end" and e.get("of", -1) == i - 1:
                b = trace[i - 1]
                leaves.add((b.get("name", ""), b.get("label", ""), b.get("at", 0.0)))

    def cost(e: Event) -> float:
        return float((e.name, e.label, e.at) in leaves)

    return cost


def merged(calls: Sequence[Collective]) -> list[tuple[Collective, int]]:
    """Calls of one moment as one, with how many they were."""
    out: dict[Any, tuple[Collective, int]] = {}
    for c in calls:
        key = (c.name, c.group, c.start, c.end)
        if key in out:
            old, n = out[key]
            wall = (min(old.wall[0], c.wall[0]), max(old.wall[1], c.wall[1]))
            both = replace(old, bytes=old.bytes + c.bytes, wall=wall)
            out[key] = (both, n + 1)
        else:
            out[key] = (c, 1)
    return list(out.values())


class _Scene:
    """Collects the drawn things of one run."""

    def __init__(self, events: list[list[Json]], mode: Mode, logical: Timeline) -> None:
        self.events, self.mode, self.logical = events, mode, logical
        self.palette: dict[str, int] = {}
        walls = [e.get("at", 0.0) for t in events for e in t]
        self.zero = min(walls, default=0.0)

    def data(self, predicted: Sequence[float] | None) -> Json:
        log, ranks = self.logical, len(self.events)
        # first those that logical time shows: they get the first colors
        seen = sorted(log.spans, key=lambda s: (s.end <= s.start, s.start, s.rank))
        for s in seen:
            self.color(self.key(s))
        spans = [self.span(s) for s in self.nested(log.spans)]
        messages = [self.message(m) for m in log.messages]
        groups = [self.collective(c) for c in merged(log.collectives)]
        # zero-length waits are nothing to look at
        waits = [[w.rank, _r(w.start), _r(w.end)] for w in log.waits if w.end > w.start]
        end = max([log.makespan, *(m.arrived for m in log.messages)], default=0.0)
        waits = _seen(waits, [(s[0], s[5], s[6]) for s in spans])
        walls = _seen(self.wall_waits(), [(s[0], s[7], s[8]) for s in spans])
        out: Json = {
            "p": ranks,
            "modes": [
                self.describe(self.mode, end),
                self.describe(WALL, self.wall_end()),
            ],
            "spans": spans,
            "messages": messages,
            "collectives": groups,
            "waits": [waits, walls],
            "phases": self.phases(log.spans),
            "moved": "bytes sent" if messages else "bytes handed to collectives",
        }
        if predicted is not None:
            out["predicted"] = list(predicted)
        return out

    def describe(self, mode: Mode, end: float) -> Json:
        return {"id": mode.id, "name": mode.name, "unit": mode.unit, "end": _r(end)}

    def color(self, key: str) -> int:
        return self.palette.setdefault(key, len(self.palette) % COLOURS)

    def ms(self, seconds: float) -> float:
        return round((seconds - self.zero) * 1e3, 3)

    def nested(self, spans: list[Span]) -> list[tuple[Span, int]]:
        """Each span with how many others of its rank surround it."""
        out: list[tuple[Span, int]] = []
        for rank in range(len(self.events)):
            mine = [s for s in spans if s.rank == rank]
            mine.sort(key=lambda s: (s.wall[0], -s.wall[1]))
            open_: list[Span] = []
            for s in mine:
                while open_ and open_[-1].wall[1] <= s.wall[0]:
                    open_.pop()
                out.append((s, len(open_)))
                open_.append(s)
        return out

    def span(self, item: tuple[Span, int]) -> list[Any]:
        s, depth = item
        wall = [self.ms(s.wall[0]), self.ms(s.wall[1])]
        c = self.color(self.key(s))
        return [s.rank, s.name, s.label, c, depth, _r(s.start), _r(s.end), *wall]

    def key(self, s: Span) -> str:
        """In rounds the color follows what travels, else the kind of work."""
        return s.label or s.name if self.mode is ROUNDS else s.name or s.label

    def message(self, m: Message) -> list[Any]:
        c = self.color(m.label or "message") if self.mode is ROUNDS else COLOURS
        times = [_r(m.sent), _r(m.arrived), self.ms(m.wall[0]), self.ms(m.wall[1])]
        return [m.src, m.dst, m.label, c, m.bytes, *times]

    def phases(self, spans: list[Span]) -> list[list[Any]]:
        """Names written above the rounds, where they follow one another."""
        if self.mode is not ROUNDS:
            return []
        extent: dict[str, tuple[float, float]] = {}
        for s in spans:
            low, high = extent.get(s.name, (s.start, s.end))
            extent[s.name] = (min(low, s.start), max(high, s.end))
        placed = sorted((a, b, name) for name, (a, b) in extent.items() if b > a)
        if any(x[1] > y[0] for x, y in pairwise(placed)):
            return []
        return [[name, _r(a), _r(b)] for a, b, name in placed]

    def collective(self, item: tuple[Collective, int]) -> list[Any]:
        c, calls = item
        times = [_r(c.start), _r(c.end), self.ms(c.wall[0]), self.ms(c.wall[1])]
        name = f"{calls} × {c.name}" if calls > 1 else c.name
        return [list(c.group), name, self.color(c.name), c.bytes, *times]

    def wall_waits(self) -> list[list[float]]:
        """Waits as the clock saw them, but for those too short to draw."""
        least = self.wall_end() / 500
        out: list[list[float]] = []
        for rank, trace in enumerate(self.events):
            for e in trace:
                a, b = self.ms(e.get("at", 0.0)), self.ms(e.get("until", 0.0))
                if e["kind"] == "wait" and b - a > least:
                    out.append([rank, a, b])
        return out

    def wall_end(self) -> float:
        flat = [e for t in self.events for e in t]
        last = max((max(e.get("at", 0), e.get("until", 0)) for e in flat), default=0)
        return self.ms(last)


def _seen(waits: list[list[float]], spans: list[Block]) -> list[list[float]]:
    """The waits that are not drawn behind a span of their rank."""
    return [
        [rank, start, end]
        for rank, start, end in waits
        if not any(r == rank and a <= start and end <= b for r, a, b in spans)
    ]


def _cut(scene: Json, limit: int) -> Json:
    """Keep the first things, by logical time, and say how many there were."""
    starts = sorted(
        [s[5] for s in scene["spans"]]
        + [m[5] for m in scene["messages"]]
        + [c[4] for c in scene["collectives"]]
    )
    if len(starts) <= limit:
        return scene
    edge = next((t for t in starts if t >= starts[limit] and t > starts[0]), None)
    if edge is None:  # all at once: nothing can be told apart
        return scene
    scene["of"] = len(starts)
    kept = {
        "spans": [s for s in scene["spans"] if s[5] < edge],
        "messages": [m for m in scene["messages"] if m[5] < edge],
        "collectives": [c for c in scene["collectives"] if c[4] < edge],
    }
    scene.update(kept)
    scene["shown"] = sum(map(len, kept.values()))
    wall = max(x[-1] for xs in kept.values() for x in xs)
    scene["waits"] = [
        [w for w in scene["waits"][0] if w[1] < edge],
        [w for w in scene["waits"][1] if w[1] < wall],
    ]
    scene["modes"][0]["end"], scene["modes"][1]["end"] = edge, wall
    return scene


def _r(x: float) -> float:
    """Six decimals are enough to draw, and short."""
    x = round(x, 6)
    return int(x) if x == int(x) else x
