"""The timeline: rounds, makespans and bubbles equal their closed forms."""

import json
from collections.abc import Sequence
from math import ceil, log2
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlas.schedule import Action, in_flight, simulate
from atlas.timeline import (
    Event,
    Timeline,
    TimelineError,
    alike,
    declared,
    overlapped,
    rounds,
    timeline,
    virtual,
)

ROOT = Path(__file__).resolve().parents[2]
P = pytest.mark.parametrize("p", [2, 3, 4, 5, 8])


class Tape:
    """A trace made by hand."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def post(self, kind: str, peer: int, size: int = 8) -> int:
        self.events.append(Event(kind, name=kind, peer=peer, bytes=size))
        return len(self.events) - 1

    def wait(self, *posted: int) -> None:
        self.events += [Event("wait", of=i) for i in posted]

    def send(self, peer: int) -> None:
        self.wait(self.post("send", peer))

    def recv(self, peer: int) -> None:
        self.wait(self.post("recv", peer))

    def work(self, cost: float, name: str = "work") -> None:
        self.events.append(Event("begin", name=name, cost=cost))
        self.events.append(Event("end", of=len(self.events) - 1))

    def collective(self, name: str, *group: int) -> None:
        self.wait(self.start(name, *group))

    def start(self, name: str, *group: int) -> int:
        self.events.append(Event("collective", name=name, group=group))
        return len(self.events) - 1


def tapes(p: int) -> list[Tape]:
    return [Tape() for _ in range(p)]


def traces(all_tapes: Sequence[Tape]) -> list[list[Event]]:
    return [t.events for t in all_tapes]


def ring(p: int) -> list[list[Event]]:
    """All-reduce: 2(p-1) times, send right while receiving from the left."""
    ranks = tapes(p)
    for _ in range(2 * (p - 1)):
        for r, tape in enumerate(ranks):
            out = tape.post("send", (r + 1) % p)
            tape.wait(out, tape.post("recv", (r - 1) % p))
    return traces(ranks)


def tree(p: int) -> list[list[Event]]:
    """Broadcast from 0: whoever has it passes it on, at doubling distance."""
    ranks = tapes(p)
    distance = 1
    while distance < p:
        for r in range(min(distance, p - distance)):
            ranks[r].send(r + distance)
            ranks[r + distance].recv(r)
        distance *= 2
    return traces(ranks)


def star(p: int) -> list[list[Event]]:
    """All send to 0 at once, and 0 answers all at once: its one port is the limit."""
    ranks = tapes(p)
    ranks[0].wait(*[ranks[0].post("recv", r) for r in range(1, p)])
    ranks[0].wait(*[ranks[0].post("send", r) for r in range(1, p)])
    for r in range(1, p):
        ranks[r].send(0)
        ranks[r].recv(0)
    return traces(ranks)


@P
def test_a_ring_takes_two_rounds_for_each_other_rank(p: int) -> None:
    found = rounds(ring(p))
    assert found.makespan == 2 * (p - 1)
    assert found.finish == [2 * (p - 1)] * p
    assert len(found.messages) == 2 * (p - 1) * p


@P
def test_a_binomial_tree_takes_log2_rounds(p: int) -> None:
    found = rounds(tree(p))
    assert found.makespan == ceil(log2(p))
    assert len(found.messages) == p - 1


@P
def test_a_star_takes_a_round_for_each_message_through_its_port(p: int) -> None:
    assert rounds(star(p)).makespan == 2 * (p - 1)


def test_a_rank_sends_and_receives_at_once_but_only_one_each_way() -> None:
    a, b, c = tapes(3)
    a.wait(a.post("send", 1), a.post("recv", 1))
    b.wait(b.post("send", 0), b.post("recv", 0))
    assert rounds([a.events, b.events]).makespan == 1
    a, b, c = tapes(3)
    a.wait(a.post("send", 1), a.post("send", 2))
    b.recv(0)
    c.recv(0)
    assert rounds(traces([a, b, c])).finish == [2, 1, 2]


def gpipe(s: int, p: int, m: int) -> list[Action]:
    """All forwards, then all backwards."""
    return [Action("F", i) for i in range(m)] + [Action("B", i) for i in range(m)]


def one_f_one_b(s: int, p: int, m: int) -> list[Action]:
    """p-s-1 forwards ahead, then one forward and one backward in turn."""
    ahead = min(p - s - 1, m)
    actions = [Action("F", i) for i in range(ahead)]
    for i in range(m - ahead):
        actions += [Action("F", ahead + i), Action("B", i)]
    return actions + [Action("B", i) for i in range(m - ahead, m)]


@P
@pytest.mark.parametrize("m", [1, 4, 9])
@pytest.mark.parametrize("schedule", [gpipe, one_f_one_b])
def test_a_flushed_pipeline_has_p_minus_1_bubbles(schedule, p: int, m: int) -> None:  # type: ignore[no-untyped-def]
    stages = [schedule(s, p, m) for s in range(p)]
    found = simulate(stages, {"F": 1, "B": 2})
    assert found.makespan == (m + p - 1) * 3
    assert found.idle == [(p - 1) * 3] * p
    assert found.busy == [m * 3] * p


@P
def test_one_f_one_b_holds_fewer_micro_batches_than_gpipe(p: int) -> None:
    m = 9
    held = [in_flight(one_f_one_b(s, p, m)) for s in range(p)]
    assert held == [min(m, p - s) for s in range(p)]
    assert in_flight(gpipe(0, p, m)) == m


def test_a_collective_starts_when_the_last_of_its_group_has_come() -> None:
    a, b, c = tapes(3)
    a.work(1)
    b.work(5)
    for tape in (a, b):
        tape.collective("all_reduce", 0, 1)
    c.work(2)
    found = timeline(traces([a, b, c]), collective_cost=lambda e: 3)
    assert found.finish == [8, 8, 2]
    assert [(x.start, x.end) for x in found.collectives] == [(5, 8)]
    waits = sorted((w.rank, w.start, w.end) for w in found.waits)
    assert waits == [(0, 1, 8), (1, 5, 8)]


def test_time_in_a_span_within_a_span_counts_once() -> None:
    inner = [Event("begin", cost=2), Event("end", of=1)]
    nested = [Event("begin", cost=3), *inner, Event("end", of=0)]
    found = virtual([nested])
    assert (found.busy, found.idle, found.makespan) == ([5], [0], 5)


def test_messages_between_two_ranks_keep_their_order() -> None:
    a, b = tapes(2)
    for size in (1, 2, 3):
        a.wait(a.post("send", 1, size))
        b.wait(b.post("recv", 0, size))
    found = rounds(traces([a, b]))
    assert [m.bytes for m in found.messages] == [1, 2, 3]
    assert [(m.sent, m.arrived) for m in found.messages] == [(0, 1), (1, 2), (2, 3)]


def test_a_receive_without_a_send_names_both_ranks() -> None:
    a, b = tapes(2)
    b.recv(0)
    says = "rank 1 waits for a message that rank 0 never sent"
    with pytest.raises(TimelineError, match=says):
        rounds(traces([a, b]))


def test_ranks_that_wait_for_each_other_are_found() -> None:
    a, b = tapes(2)
    for tape, peer in ((a, 1), (b, 0)):
        tape.recv(peer)
        tape.send(peer)
    with pytest.raises(TimelineError, match="rank 0 waits for a message that rank 1"):
        rounds(traces([a, b]))


def test_disagreeing_collectives_name_the_ranks_and_both_operations() -> None:
    a, b = tapes(2)
    a.collective("all_reduce", 0, 1)
    b.collective("all_gather", 0, 1)
    says = r"ranks \(0, 1\) disagree: all_gather against all_reduce"
    with pytest.raises(TimelineError, match=says):
        rounds(traces([a, b]))


def test_a_collective_that_one_rank_never_joins_names_who_waits() -> None:
    a, b = tapes(2)
    a.collective("all_reduce", 0, 1)
    says = "rank 0 waits in all_reduce for ranks that never came"
    with pytest.raises(TimelineError, match=says):
        rounds(traces([a, b]))


def test_an_unknown_event_is_refused() -> None:
    with pytest.raises(TimelineError, match="rank 0: unknown event 'levitate'"):
        rounds([[Event("levitate")]])


@P
def test_dicts_events_and_json_give_one_timeline(p: int) -> None:
    made = [*ring(p)]
    for r, trace in enumerate(made):
        trace.append(Event("begin", 1.5, name="w", label="x", cost=r))
        trace.append(Event("end", 2.5, of=len(trace) - 1))
        trace.append(Event("collective", name="barrier", group=tuple(range(p))))
        trace.append(Event("wait", of=len(trace) - 1))
    dicts = [[e.as_dict() for e in trace] for trace in made]
    assert timeline(dicts) == timeline(made) == timeline(json.loads(json.dumps(dicts)))


def test_a_dict_holds_only_what_differs_from_the_default() -> None:
    assert Event("send", peer=0, bytes=8).as_dict() == {
        "kind": "send", "peer": 0, "bytes": 8,
    }  # fmt: skip


@st.composite
def programs(draw: st.DrawFn) -> list[list[Event]]:
    """Random programs that cannot deadlock: one global order of actions."""
    p = draw(st.integers(2, 5))
    ranks = tapes(p)
    for _ in range(draw(st.integers(0, 25))):
        a, b = draw(st.permutations(range(p)))[:2]
        match draw(st.sampled_from(["work", "message", "collective"])):
            case "work":
                ranks[a].work(draw(st.integers(0, 9)))
            case "message":
                ranks[a].send(b)
                ranks[b].recv(a)
            case _:
                for tape in ranks:
                    tape.collective("barrier", *range(p))
    return traces(ranks)


@given(programs())
def test_nobody_is_done_before_its_work_nor_idle_for_less_than_nothing(
    made: list[list[Event]],
) -> None:
    found = virtual(made)
    assert all(f >= b for f, b in zip(found.finish, found.busy, strict=True))
    assert all(i >= 0 for i in found.idle)
    assert all(m.arrived >= m.sent for m in found.messages)
    standing = [sum(w.end - w.start for w in found.waits if w.rank == r)
                for r in range(found.ranks)]  # fmt: skip
    total = [b + s for b, s in zip(found.busy, standing, strict=True)]
    assert total == found.finish  # a rank works or waits, and nothing else


@given(programs(), st.integers(0, 3), st.integers(0, 3))
def test_dearer_spans_and_messages_never_end_sooner(
    made: list[list[Event]], span: int, message: int
) -> None:
    def run(s: int, m: int) -> Timeline:
        return timeline(made, lambda e: declared(e) * s, lambda e: float(m))

    base = run(span, message).finish
    for dearer in (run(span + 1, message), run(span, message + 1)):
        assert all(d >= b for d, b in zip(dearer.finish, base, strict=True))


@given(programs(), st.randoms())
def test_the_ranks_names_do_not_matter(made: list[list[Event]], source) -> None:  # type: ignore[no-untyped-def]
    p = len(made)
    to = list(range(p))
    source.shuffle(to)
    renamed: list[list[Event]] = [[] for _ in range(p)]
    for r, trace in enumerate(made):
        renamed[to[r]] = [rename(e, to) for e in trace]
    found, again = rounds(made), rounds(renamed)
    assert [again.finish[to[r]] for r in range(p)] == found.finish


def rename(e: Event, to: list[int]) -> Event:
    peer = to[e.peer] if e.peer >= 0 else -1
    group = tuple(sorted(to[r] for r in e.group))
    return Event(
        e.kind, e.at, e.until, e.name, e.label, e.cost, peer, e.bytes, e.of, group
    )


def test_collectives_of_a_group_run_one_after_another() -> None:
    ranks = tapes(2)
    for tape in ranks:
        posted = [tape.start("all_reduce", 0, 1) for _ in range(3)]
        tape.work(2)
        tape.wait(posted[-1])
    found = overlapped(traces(ranks))
    assert [(x.start, x.end) for x in found.collectives] == [(0, 1), (1, 2), (2, 3)]
    assert found.exposed == [1, 1]


def test_nobody_waits_for_a_collective_of_one_rank() -> None:
    (alone,) = tapes(1)
    alone.collective("all_reduce", 0)
    assert overlapped([alone.events]).exposed == alike(alone.events).exposed == [0]


@P
@pytest.mark.parametrize("cost", [0.25, 1, 3])
def test_one_trace_tells_the_pauses_of_ranks_that_do_the_same(
    p: int, cost: float
) -> None:
    ranks = tapes(p)
    for r, tape in enumerate(ranks):
        for _ in range(3):
            out = tape.post("send", (r + 1) % p)
            into = tape.post("recv", (r - 1) % p)
            tape.work(cost)
            tape.wait(out, into)
        tape.collective("all_reduce", *range(p))
    whole = overlapped(traces(ranks))
    assert whole.exposed == [3 * max(0, 1 - cost) + 1] * p
    for tape in ranks:
        assert alike(tape.events).exposed == whole.exposed[:1]


def test_a_rank_that_does_as_the_others_tells_of_all_in_the_records() -> None:
    """Each rank computed its pauses from its own trace; here are all traces."""
    seen = set()
    for path in sorted((ROOT / "measurements" / "gloo").glob("*.json")):
        for run in json.loads(path.read_text())["runs"]:
            told = [rank["measured"].get("exposed") for rank in run["ranks"]]
            if run.get("shown") and None not in told:
                found = overlapped([rank["events"] for rank in run["ranks"]])
                assert found.exposed == told, path.stem
                seen.add(path.stem)
    assert "priority-scheduling" in seen
