"""From what each rank did to when it could have happened: rounds, waits, bubbles.

A trace is the list of events one rank logged, in program order. A timeline
gives every event of every rank its earliest time, under three costs: of a
span, of a message, of a collective.

    rounds         spans cost 0, messages 1
    virtual time   spans cost what they declare, messages 0

The machine: a rank does one thing at a time; it sends one message at a time
and receives one at a time, and the two do not disturb each other. A message
leaves when it is posted and the sender's port is free; the k-th message from
one rank to another is the k-th that the other receives from it. A collective
starts when the last of its group has come and the group's previous one is over.

Wall time on a machine with fewer cores than ranks never equals such a figure;
this does, exactly, and on every backend.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any


class TimelineError(Exception):
    """The traces do not fit together: a receive has no send, or ranks disagree."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing a rank did; `at` and `until` are wall seconds since the start."""

    # begin, end, send, recv, wait, collective; start, stop, read, update;
    # started, killed
    kind: str
    at: float = 0.0
    until: float = 0.0
    name: str = ""
    label: str = ""
    cost: float = 0.0
    peer: int = -1
    bytes: int = 0
    of: int = -1  # the event that is ended, or waited for
    group: tuple[int, ...] = ()
    what: str = ""  # a digest of what was sent or updated, where asked for

    def as_dict(self) -> dict[str, Any]:
        """The fields that say something, for a record."""
        return {k: v for k, v in asdict(self).items() if v != _DEFAULTS[k]}


_DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(Event)}

Trace = Sequence["Event | Mapping[str, Any]"]
Cost = Callable[[Event], float]


@dataclass(frozen=True, slots=True)
class Span:
    """A named piece of work on one rank."""

    rank: int
    name: str
    label: str
    start: float
    end: float
    wall: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank stood still, for a message or for the others of a collective."""

    rank: int
    start: float
    end: float
    wall: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Message:
    """One message, from the moment it left to the moment it was taken."""

    src: int
    dst: int
    sent: float
    arrived: float
    bytes: int
    label: str
    wall: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Collective:
    """One call of a whole group."""

    name: str
    group: tuple[int, ...]
    start: float
    end: float
    bytes: int
    wall: tuple[float, float]


@dataclass(slots=True)
class Timeline:
    """What happened when, over all ranks."""

    ranks: int
    spans: list[Span] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    finish: list[float] = field(default_factory=list)

    @property
    def makespan(self) -> float:
        """When the last rank was done."""
        return max(self.finish, default=0.0)

    @property
    def busy(self) -> list[float]:
        """Time each rank spent in spans; a span within a span counts once."""
        total, until = [0.0] * self.ranks, [0.0] * self.ranks
        for s in sorted(self.spans, key=lambda s: s.start):
            total[s.rank] += max(0.0, s.end - max(s.start, until[s.rank]))
            until[s.rank] = max(s.end, until[s.rank])
        return total

    @property
    def exposed(self) -> list[float]:
        """Time each rank stood still: communication not hidden by compute."""
        total = [0.0] * self.ranks
        for w in self.waits:
            total[w.rank] += w.end - w.start
        return total

    @property
    def idle(self) -> list[float]:
        """Time each rank did not spend in spans, until the last one was done."""
        return [self.makespan - b for b in self.busy]


def declared(event: Event) -> float:
    """The cost a span declares for itself."""
    return event.cost


def nothing(event: Event) -> float:
    """Free."""
    return 0.0


def one(event: Event) -> float:
    """One round."""
    return 1.0


def rounds(traces: Iterable[Trace]) -> Timeline:
    """Count messages: spans are free, a message takes one round."""
    return timeline(traces, span_cost=nothing, message_cost=one)


def virtual(traces: Iterable[Trace]) -> Timeline:
    """Count work: spans take what they declare, messages are free."""
    return timeline(traces, span_cost=declared, message_cost=nothing)


def overlapped(traces: Iterable[Trace]) -> Timeline:
    """Spans take what they declare; a message or a collective takes one second."""
    return timeline(traces, message_cost=one, collective_cost=_shared)


def alike(trace: Trace) -> Timeline:
    """The same of one rank's trace alone, if all ranks do the same at the same time.

    Every rank then sends as it receives: the k-th message that it waits for left
    another rank when its own k-th message left.
    """
    events = [_event(e) for e in trace]
    alone = [replace(e, cost=_shared(e), group=(0,)) if e.group else e for e in events]
    own = [replace(e, peer=0) if e.peer >= 0 else e for e in alone]
    return timeline([own], message_cost=one, collective_cost=declared)


def _shared(event: Event) -> float:
    """One second, unless there is nobody to talk to."""
    return float(len(event.group) > 1)


def timeline(
    traces: Iterable[Trace],
    span_cost: Cost = declared,
    message_cost: Cost = nothing,
    collective_cost: Cost = nothing,
) -> Timeline:
    """Give every event of every rank its earliest time."""
    machine = _Machine(
        [[_event(e) for e in trace] for trace in traces],
        span_cost,
        message_cost,
        collective_cost,
    )
    return machine.run()


def _event(e: "Event | Mapping[str, Any]") -> Event:
    if isinstance(e, Event):
        return e
    return Event(**{**e, "group": tuple(e.get("group", ()))})


@dataclass(slots=True)
class _Flight:
    """A message on its way: when it is through, and what is drawn of it."""

    left: float
    through: float
    event: Event


class _Machine:
    """Runs the traces: each rank goes on until it must wait for another."""

    def __init__(
        self, traces: list[list[Event]], span: Cost, message: Cost, collective: Cost
    ):
        p = len(traces)
        self.traces, self.span, self.message, self.collective = (
            traces,
            span,
            message,
            collective,
        )
        self.now = [0.0] * p
        self.next = [0] * p
        self.send_port = [0.0] * p
        self.recv_port = [0.0] * p
        self.flights: dict[tuple[int, int], deque[_Flight]] = defaultdict(deque)
        self.matched: dict[tuple[int, int], _Flight] = {}
        self.unmatched: dict[tuple[int, int], deque[int]] = defaultdict(deque)
        self.done: dict[tuple[int, int], float] = {}
        self.began: dict[tuple[int, int], float] = {}
        self.turn: dict[tuple[int, tuple[int, ...]], int] = defaultdict(int)
        self.key: dict[tuple[int, int], tuple[tuple[int, ...], int]] = {}
        self.met: dict[tuple[tuple[int, ...], int], dict[int, int]] = defaultdict(dict)
        self.over: dict[tuple[int, ...], float] = defaultdict(float)
        self.result = Timeline(p)

    def run(self) -> Timeline:
        p = len(self.traces)
        ready = deque(range(p))
        stuck: set[int] = set()
        while ready:
            r = ready.popleft()
            moved = False
            while self.next[r] < len(self.traces[r]) and self.step(r):
                self.next[r] += 1
                moved = True
            if self.next[r] < len(self.traces[r]):
                stuck.add(r)
            if moved:
                ready.extend(sorted(stuck - {r}))
                stuck &= {r}
        if stuck:
            raise TimelineError(self.complaint(min(stuck)))
        self.result.finish = self.now
        return self.result

    def complaint(self, r: int) -> str:
        e = self.traces[r][self.next[r]]
        of = self.traces[r][e.of] if e.kind == "wait" else e
        if of.kind == "recv":
            return f"rank {r} waits for a message that rank {of.peer} never sent"
        return f"rank {r} waits in {of.name} for ranks that never came"

    def step(self, r: int) -> bool:
        """Do rank r's next event; False if it must wait for another rank."""
        i = self.next[r]
        e = self.traces[r][i]
        match e.kind:
            case "begin":
                self.began[r, i] = self.now[r]
            case "end":
                self.end_span(r, e)
            case "send":
                self.post_send(r, i, e)
            case "recv":
                self.post_recv(r, i, e)
            case "collective":
                self.join(r, i, e)
            case "wait":
                return self.wait(r, e)
            case "start" | "stop" | "read" | "update":
                pass  # what a classifier notes beside a run takes no time
            case "started" | "killed":
                pass  # of a worker: takes no time
            case _:
                raise TimelineError(f"rank {r}: unknown event {e.kind!r}")
        return True

    def end_span(self, r: int, e: Event) -> None:
        begin = self.traces[r][e.of]
        self.now[r] += self.span(begin)
        self.result.spans.append(
            Span(
                r,
                begin.name,
                begin.label,
                self.began[r, e.of],
                self.now[r],
                (begin.at, e.at),
            )
        )

    def post_send(self, r: int, i: int, e: Event) -> None:
        left = max(self.now[r], self.send_port[r])
        through = self.send_port[r] = left + self.message(e)
        self.done[r, i] = through
        flight = _Flight(left, through, e)
        waiting = self.unmatched[r, e.peer]
        if waiting:
            self.matched[e.peer, waiting.popleft()] = flight
        else:
            self.flights[r, e.peer].append(flight)

    def post_recv(self, r: int, i: int, e: Event) -> None:
        coming = self.flights[e.peer, r]
        if coming:
            self.matched[r, i] = coming.popleft()
        else:
            self.unmatched[e.peer, r].append(i)

    def join(self, r: int, i: int, e: Event) -> None:
        turn = self.turn[r, e.group]
        self.turn[r, e.group] += 1
        self.key[r, i] = (e.group, turn)
        self.met[e.group, turn][r] = i
        self.began[r, i] = self.now[r]
        if len(self.met[e.group, turn]) == len(e.group):
            self.gather(e, self.met[e.group, turn])

    def gather(self, e: Event, members: dict[int, int]) -> None:
        came = max(self.began[r, i] for r, i in members.items())
        start = max(came, self.over[e.group])
        end = self.over[e.group] = start + self.collective(e)
        logged = [self.traces[r][i] for r, i in members.items()]
        if len({x.name for x in logged}) > 1:
            names = sorted({x.name for x in logged})
            raise TimelineError(f"ranks {e.group} disagree: {' against '.join(names)}")
        for r, i in members.items():
            self.done[r, i] = end
        wall = (min(x.at for x in logged), max(x.until for x in logged))
        self.result.collectives.append(
            Collective(e.name, e.group, start, end, e.bytes, wall)
        )

    def wait(self, r: int, e: Event) -> bool:
        of = self.traces[r][e.of]
        if (r, e.of) not in self.done and not (
            of.kind == "recv" and self.arrive(r, e.of)
        ):
            return False
        until = self.done[r, e.of]
        if until > self.now[r]:
            self.result.waits.append(Wait(r, self.now[r], until, (e.at, e.until)))
            self.now[r] = until
        return True

    def arrive(self, r: int, i: int) -> bool:
        flight = self.matched.get((r, i))
        if flight is None:
            return False
        cost = self.message(flight.event)
        arrived = max(flight.through, self.recv_port[r] + cost)
        self.done[r, i] = self.recv_port[r] = arrived
        recv = self.traces[r][i]
        self.result.messages.append(
            Message(
                recv.peer,
                r,
                flight.left,
                arrived,
                flight.event.bytes,
                flight.event.label or recv.label,
                (flight.event.at, max(recv.until, flight.event.at)),
            )
        )
        return True
