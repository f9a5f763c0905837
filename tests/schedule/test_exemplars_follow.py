"""What an exemplar draws and runs is what the atlas generates by that name."""

from collections.abc import Iterable
from random import Random
from types import ModuleType

import pytest
from by_name import f
from hypothesis import given
from hypothesis import strategies as st

from atlas.schedule import Schedule, Work, cost, generate, peaks, problems
from atlas.schedule.shaped import block, filled
from exemplars.sync_strategy.elastic import adaptive_rerouting
from exemplars.sync_strategy.pipeline_flush import (
    bidirectional_pipeline,
    dualpipe,
    gpipe,
    interleaved_one_f_one_b,
    one_f_one_b,
    schedule_as_data,
    v_schedule,
    zero_bubble,
)

EQUAL = {"F": 1, "B": 1, "W": 1}
ranks = st.integers(1, 6)
microbatches = st.integers(1, 13)


@given(ranks, microbatches)
def test_gpipe_and_1f1b_are_the_generated_ones(p: int, m: int) -> None:
    ours: list[Iterable[tuple[str, int]]] = [gpipe.gpipe(m) for _ in range(p)]
    assert works(ours) == generate("gpipe", p, m).ranks
    ours = [one_f_one_b.one_f_one_b(s, p, m) for s in range(p)]
    assert works(ours) == generate("1f1b", p, m).ranks


def works(stages: list[Iterable[tuple[str, int]]]) -> tuple[tuple[Work, ...], ...]:
    """Of plain actions, with the stage that is the rank's number."""
    pairs = enumerate(stages)
    return tuple(tuple(Work(k, i, s) for k, i in actions) for s, actions in pairs)


@given(ranks, st.integers(1, 4), st.integers(1, 3))
def test_interleaved_is_the_generated_one(p: int, rounds: int, v: int) -> None:
    ours = interleaved_one_f_one_b.plan(p, p * rounds, v)
    assert ours.ranks == generate("interleaved-1f1b", p, p * rounds, v).ranks


@given(ranks, microbatches)
def test_zero_bubble_is_the_generated_one(p: int, m: int) -> None:
    for depth, name in ((1, "zb-h1"), (2, "zb-h2")):
        ours, theirs = zero_bubble.plan(p, m, depth), generate(name, p, m)
        assert ours.ranks == theirs.ranks
        assert peaks(ours) == [f.zero_bubble_in_flight(p, m, depth)] * p
        found = cost(ours, EQUAL)
        if depth == 2 and m < 2 * p - 1:
            continue
        assert found.idle == [f.zero_bubble_idle(p, m, 1, 1, 1)] * p
        assert found.makespan == f.zero_bubble_makespan(p, m, 1, 1, 1)


@given(ranks, microbatches)
def test_the_blocks_of_a_v_are_those_that_the_search_starts_from(
    p: int, m: int
) -> None:
    for slope, name in ((1, "v-min"), (2, "v-half")):
        ours = v_schedule.plan(p, m, slope)
        for r in range(p):
            slots = filled(block(name, r, p, m))
            assert list(ours.ranks[r]) == [slots[t] for t in sorted(slots)]
        assert problems(ours) == []
        assert max(peaks(ours)) <= f.v_shape_in_flight(p, slope)
        searched = cost(generate(name, p, m), EQUAL)
        assert searched.makespan <= cost(ours, EQUAL).makespan
        if m >= p:
            assert cost(ours, EQUAL).idle == [f.v_shape_idle(p, slope)] * p


@given(ranks, st.integers(0, 6))
def test_zb_v_is_the_generated_one_and_no_rank_pauses(p: int, more: int) -> None:
    m = 2 * p - 1 + more
    ours = v_schedule.plan(p, m, 4)
    assert ours.ranks == generate("zb-v", p, m).ranks
    assert peaks(ours) == [f.v_shape_in_flight(p, 4)] * p
    assert cost(ours, EQUAL).own_idle == [0] * p
    assert cost(ours, EQUAL).idle == [f.v_shape_idle(p, 4)] * p


@given(ranks, microbatches)
def test_two_directions_are_the_generated_ones(p: int, pairs: int) -> None:
    m = 2 * pairs
    ours = bidirectional_pipeline.plan(p, m)
    assert ours.ranks == generate("chimera", p, m).ranks
    assert peaks(ours) == [f.bidirectional_in_flight(p, r, m) for r in range(p)]
    idle = cost(ours, {"F": 1, "B": 1}).idle
    assert idle == [f.bidirectional_idle(p, m)] * p


@given(st.integers(1, 2), st.integers(1, 4), st.integers(0, 5))
def test_dualpipe_and_its_half_are_the_generated_ones(
    copies: int, half: int, more: int
) -> None:
    p = copies * half
    m = 2 * p + copies * more
    ours = dualpipe.plan(p, m, copies)
    name = "dualpipe" if copies == 2 else "dualpipe-v"
    assert ours.ranks == generate(name, p, m).ranks
    assert peaks(ours) == [f.dualpipe_in_flight(p, copies)] * p
    assert cost(ours, EQUAL).idle == [f.dualpipe_idle(p, copies)] * p


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(0, 3))
def test_a_longer_backward_idles_two_directions_in_every_block(
    half: int, blocks: int, forward: int, longer: int
) -> None:
    p = 2 * half
    ours = bidirectional_pipeline.plan(p, p * blocks)
    idle = cost(ours, {"F": forward, "B": forward + longer}).idle
    assert idle == [(p - 2) * (forward + longer * blocks)] * p


def test_the_table_in_the_docstring_of_two_directions_is_the_schedule() -> None:
    drawn = cost(bidirectional_pipeline.plan(4, 4), {"F": 1, "B": 1})
    for r, placed in enumerate(drawn.ranks):
        cells = [". "] * int(drawn.makespan)
        for work, start, _ in placed:
            cells[int(start)] = f"{work.kind}{work.micro}"
        row = f"    rank {r}  {' '.join(cells).rstrip()}\n"
        assert row in (bidirectional_pipeline.__doc__ or "")


@given(ranks, st.integers(1, 3), microbatches, st.integers(0, 9))
def test_a_schedule_drawn_at_random_is_legal(p: int, v: int, m: int, seed: int) -> None:
    drawn = Schedule.of(schedule_as_data.at_random(p, p * v, m, seed))
    assert problems(drawn) == []


@pytest.mark.parametrize(
    ("module", "schedule", "name"),
    [
        (interleaved_one_f_one_b, generate("interleaved-1f1b", 2, 4, 2), "rank"),
        (zero_bubble, generate("zb-h1", 3, 4), "stage"),
    ],
    ids=["interleaved", "zero-bubble"],
)
def test_the_table_in_the_docstring_is_the_schedule(
    module: ModuleType, schedule: Schedule, name: str
) -> None:
    drawn = cost(schedule, EQUAL if schedule.split else {"F": 1, "B": 1})
    for r, placed in enumerate(drawn.ranks):
        cells = [". "] * int(drawn.makespan)
        for work, start, _ in placed:
            later = schedule.held(r).index(work.stage) > 0
            kind = work.kind.lower() if later else work.kind
            cells[int(start)] = f"{kind}{work.micro}"
        row = " ".join(cells).rstrip()
        assert f"    {name} {r}  {row}\n" in (module.__doc__ or "")


def test_the_block_in_the_docstring_is_that_of_v_min() -> None:
    for r in range(3):
        slots = block("v-min", r, 3, 1)
        cells = [". "] * 14
        for t, work in slots.items():
            up = work.stage != r
            cells[t] = (work.kind.lower() if up else work.kind) + "0"
        row = f"    rank {r}  {' '.join(cells).rstrip()}\n"
        assert row in (v_schedule.__doc__ or "")


pipelines, stages = st.integers(2, 4), st.integers(1, 4)


@given(pipelines, stages, st.integers(1, 8), st.randoms(use_true_random=False))
def test_any_deaths_that_leave_a_peer_leave_a_legal_schedule(
    d: int, s: int, m: int, random: Random
) -> None:
    kept = {random.randrange(d) * s + stage for stage in range(s)}
    living = [r for r in range(d * s) if r in kept or random.random() < 0.5]
    schedule = adaptive_rerouting.rerouted(living, d, s, m)
    assert problems(schedule) == []
    assert (schedule.stages, schedule.microbatches) == (s, d * m)


@given(pipelines, stages, st.integers(1, 8), st.integers(1, 3))
def test_a_dead_last_stage_costs_what_its_busiest_peer_has_to_do(
    d: int, s: int, m: int, backward: int
) -> None:
    """As long as whole pipelines that take over the micro-batches of one."""
    p, seconds = d * s, {"F": 1, "B": backward}
    deaths = [p - 1, p - 2 - s] if d == 2 < s + 1 else [p - 1]
    for count in range(1, len(deaths) + 1):
        living = [r for r in range(p) if r not in deaths[:count]]
        found = cost(adaptive_rerouting.rerouted(living, d, s, m), seconds)
        assert found.makespan == f.rerouting_makespan(p, d, m, 1, 0, 1, backward)
    most = m + -(-m // (d - 1))
    assert found.makespan == cost(generate("1f1b", s, most), seconds).makespan
