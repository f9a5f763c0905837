"""Clocks: pure functions of rank and step, the same in every process."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripts import run

from atlas.clock import Clock, constant, jitter, one_pauses, one_slow

WHERE = [(rank, step) for rank in range(4) for step in range(6)]


def test_constant_is_the_same_everywhere() -> None:
    assert {constant(2.5)(r, s) for r, s in WHERE} == {2.5}


def test_one_slow_slows_one_rank_always() -> None:
    clock = one_slow(rank=1, factor=3, seconds=2)
    assert all(clock(r, s) == (6 if r == 1 else 2) for r, s in WHERE)


def test_one_pauses_stops_one_rank_once() -> None:
    clock = one_pauses(rank=2, step=4, pause=10)
    assert all(clock(r, s) == (11 if (r, s) == (2, 4) else 1) for r, s in WHERE)


def test_jitter_stays_in_its_range_and_depends_on_all_it_is_given() -> None:
    clock = jitter(spread=0.5, seed=7, seconds=2)
    found = [clock(r, s) for r, s in WHERE]
    assert all(2 <= t < 3 for t in found)
    assert len(set(found)) == len(WHERE)
    assert found != [jitter(spread=0.5, seed=8, seconds=2)(r, s) for r, s in WHERE]


def test_jitter_spreads_evenly() -> None:
    clock = jitter(spread=1)
    found = [clock(r, s) - 1 for r in range(64) for s in range(64)]
    assert sum(found) / len(found) == pytest.approx(0.5, abs=0.02)
    assert all(
        400 < sum(k / 8 <= t < (k + 1) / 8 for t in found) < 624 for k in range(8)
    )


@given(st.integers(0, 2**20), st.integers(0, 2**20), st.integers())
def test_asking_in_any_order_and_again_changes_nothing(
    r: int, s: int, seed: int
) -> None:
    for clock in clocks(seed):
        first = clock(r, s)
        clock(s, r), clock(r, s + 1)
        assert clock(r, s) == first > 0


def clocks(seed: int) -> list[Clock]:
    return [
        constant(),
        one_slow(rank=1, factor=3),
        one_pauses(rank=1, step=1, pause=3),
        jitter(spread=0.3, seed=seed),
    ]


def test_another_process_reads_the_same_times(tmp_path: Path) -> None:
    source = """
        from atlas.clock import jitter
        clock = jitter(spread=0.3, seed=5)
        print([clock(r, s) for r in range(4) for s in range(6)])
    """
    here = jitter(spread=0.3, seed=5)
    for seed in ("1", "2"):
        code, out, _ = run(tmp_path, source, PYTHONHASHSEED=seed)
        assert (code, out.strip()) == (0, str([here(r, s) for r, s in WHERE]))
