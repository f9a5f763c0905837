"""The checker names what is wrong, and NCCL's pairing is what it says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atlas.schedule import (
    GENERATORS,
    Action,
    Post,
    Schedule,
    Work,
    cost,
    generate,
    of_stages,
    peaks,
    plain_programs,
    problems,
    programs,
    simulate,
    stuck,
)

SECONDS = {"F": 1, "B": 2, "W": 1}


def changed(schedule: Schedule, rank: int, works: list[Work]) -> Schedule:
    rows = list(schedule.ranks)
    rows[rank] = tuple(works)
    return Schedule(tuple(rows))


def test_work_that_is_missing_double_or_elsewhere_is_named() -> None:
    good = generate("1f1b", 2, 2)
    first, last = list(good.ranks[0]), list(good.ranks[1])
    assert problems(changed(good, 1, last[:-1])) == ["B1@1 is missing"]
    assert "F0@0 is done 2 times" in problems(changed(good, 0, [first[0], *first]))
    away = changed(good, 0, [w for w in first if w != Work("B", 1, 0)])
    away = changed(away, 1, [*last, Work("B", 1, 0)])
    assert problems(away) == ["B1@0 is on rank 1, its forward on rank 0"]


def test_an_order_that_waits_for_itself_is_named() -> None:
    good = generate("1f1b", 2, 2)
    last = list(reversed(good.ranks[1]))
    assert problems(changed(good, 1, last)) == [
        "rank 0 waits in B0@0 for B0@1",
        "rank 1 waits in B1@1 for F1@1",
    ]


def test_weights_before_their_input_gradient_are_named() -> None:
    backwards = Schedule(((Work("F", 0, 0), Work("W", 0, 0), Work("B", 0, 0)),))
    assert problems(backwards) == ["rank 0 waits in W0@0 for B0@0"]


def test_two_that_send_first_wait_for_each_other() -> None:
    """As NCCL: a send ends when its receive is posted; a batch would pass."""
    one, other = Work("F", 0, 0), Work("B", 0, 1)
    programs = [
        [Post("send", 1, one), Post("recv", 1, other)],
        [Post("send", 0, other), Post("recv", 0, one)],
    ]
    assert len(stuck(programs)) == 2
    programs[1].reverse()
    assert stuck(programs) == []


def test_messages_that_overtake_one_another_are_seen() -> None:
    """NCCL has no tags: the first receive takes the first send."""
    one, other = Work("F", 0, 0), Work("F", 1, 0)
    programs = [
        [Post("send", 1, one), Post("send", 1, other)],
        [Post("recv", 0, other), Post("recv", 0, one)],
    ]
    assert "meets" in stuck(programs)[0]


@pytest.mark.parametrize("name", list(GENERATORS))
def test_only_gpipe_survives_messages_posted_where_they_are_used(name: str) -> None:
    schedule = generate(name, 4, 8)
    deadlocks = bool(stuck(plain_programs(schedule), blocking=True))
    assert deadlocks == (name != "gpipe")
    assert stuck(programs(schedule)) == []


@given(st.sampled_from(list(GENERATORS)), st.integers(1, 3), st.integers(1, 3))
def test_times_are_those_of_the_timeline(name: str, half: int, rounds: int) -> None:
    """Two witnesses: the costs, and the machine that runs recorded traces."""
    p = 2 * half
    schedule = generate(name, p, 2 * p * rounds)
    found, drawn = cost(schedule, SECONDS), simulate(schedule, SECONDS)
    assert found.makespan == drawn.makespan
    assert found.idle == drawn.idle
    for r, works in enumerate(found.ranks):
        spans = [(s.start, s.end) for s in drawn.spans if s.rank == r]
        assert spans == [(w.start, w.end) for w in works]


def test_a_message_that_costs_something_delays_the_next_rank() -> None:
    schedule = generate("gpipe", 3, 1)
    assert cost(schedule, {"F": 1, "B": 2}).makespan == 9
    assert cost(schedule, {"F": 1, "B": 2}, message=0.5).makespan == 11
    turn = generate("zb-v", 1, 1)  # both stages on one rank: no message
    assert cost(turn, SECONDS, message=9).makespan == cost(turn, SECONDS).makespan


def test_a_dearer_message_changes_the_ranking() -> None:
    """Interleaving crosses more cuts: it wins only where messages are cheap."""
    plain, many = generate("1f1b", 4, 4), generate("interleaved-1f1b", 4, 4, 4)
    whole, quarter = {"F": 4, "B": 8}, {"F": 1, "B": 2}
    assert cost(many, quarter).makespan < cost(plain, whole).makespan
    dear = cost(many, quarter, message=2).makespan
    assert dear > cost(plain, whole, message=2).makespan


def test_plain_actions_are_a_schedule_of_one_stage_per_rank() -> None:
    stages = [[Action("F", 0), Action("B", 0)]] * 2
    schedule = of_stages(stages)
    assert schedule.ranks[1] == (Work("F", 0, 1), Work("B", 0, 1))
    assert peaks(schedule) == [1, 1]
    assert problems(schedule) == []
