"""Every named schedule is legal wherever it is made, and as good as its formula."""

from contextlib import suppress
from itertools import product

import pytest
from by_name import f
from hypothesis import given
from hypothesis import strategies as st

from atlas.schedule import GENERATORS, cost, generate, peaks, problems

EQUAL = {"F": 1, "B": 1, "W": 1}
ranks = st.integers(1, 7)
microbatches = st.integers(1, 17)
seconds = st.fixed_dictionaries({kind: st.integers(1, 4) for kind in "FBW"})
each = pytest.mark.parametrize("name", list(GENERATORS))


def legal(name: str) -> list[tuple[int, int, int | None]]:
    """All ranks, micro-batches and chunks that a generator accepts, up to a size."""
    chunks: list[int | None] = [1, 2, 3] if GENERATORS[name].free else [None]
    found = []
    for p, m, v in product(range(1, 7), range(1, 15), chunks):
        with suppress(ValueError):
            generate(name, p, m, v)
            found.append((p, m, v))
    return found


@each
def test_what_a_generator_accepts_is_legal_and_cannot_deadlock(name: str) -> None:
    for p, m, v in legal(name):
        is_legal(name, p, m, v)


def is_legal(name: str, p: int, m: int, v: int | None) -> None:
    one, schedule = GENERATORS[name], generate(name, p, m, v)
    assert problems(schedule) == []
    assert len(schedule.ranks) == p
    assert schedule.microbatches == m
    copies = 2 if name in {"chimera", "dualpipe"} else 1
    chunks = v or one.chunks
    assert schedule.stages * copies == p * chunks
    assert all(len(schedule.held(r)) <= chunks for r in range(p))
    assert one.split or not schedule.split
    for r, works in enumerate(schedule):
        # The middle one of an odd number has a stage in both directions.
        middle = name == "chimera" and 2 * r == p - 1
        for stage in {w.stage for w in works}:
            for kind in "" if middle else "F" if name == "gpipe" else "FBW":
                order = [w.micro for w in works if (w.kind, w.stage) == (kind, stage)]
                assert order == sorted(order), f"{kind} at {stage}"


@given(ranks, microbatches, seconds)
def test_gpipe_and_1f1b_idle_alike(p: int, m: int, t: dict[str, float]) -> None:
    for name in ("gpipe", "1f1b"):
        found = cost(generate(name, p, m), t)
        assert found.makespan == f.pipeline_makespan(p, m, t["F"], t["B"] + t["W"])
        assert found.idle == [f.pipeline_idle(p, t["F"], t["B"] + t["W"])] * p
    assert peaks(generate("gpipe", p, m)) == [m] * p
    held = [f.one_f_one_b_in_flight(p, r, m) for r in range(p)]
    assert peaks(generate("1f1b", p, m)) == held


@given(ranks, st.integers(1, 4), st.integers(1, 4), seconds)
def test_interleaved_idles_v_times_less(
    p: int, rounds: int, v: int, t: dict[str, float]
) -> None:
    """One chunk's idle time; whole rounds of p, as Megatron asks for."""
    m, whole = p * rounds, t["B"] + t["W"]
    schedule = generate("interleaved-1f1b", p, m, v)
    assert cost(schedule, t).idle == [(p - 1) * (t["F"] + whole)] * p
    most = [min(v * m, 2 * (p - r - 1) + (v - 1) * p + 1) for r in range(p)]
    assert peaks(schedule) == most


@given(ranks, microbatches, seconds)
def test_zb_h1_puts_weight_gradients_into_the_bubble(
    p: int, m: int, t: dict[str, float]
) -> None:
    """(p-1)(F+B-W), once there are p micro-batches and if W is the shortest."""
    schedule = generate("zb-h1", p, m)
    filled = min(m - 1, p - 1) * min(t.values())
    assert cost(schedule, t).idle == [(p - 1) * (t["F"] + t["B"]) - filled] * p
    assert (
        peaks(schedule) == [min(m, p)] * p
    )  # on every rank what 1F1B has on the first


@given(ranks, microbatches)
def test_zb_h2_has_no_bubble_but_the_flush(p: int, m: int) -> None:
    schedule = generate("zb-h2", p, m)
    found = cost(schedule, EQUAL)
    assert peaks(schedule) == [min(m, 2 * p - 1)] * p
    if m >= 2 * p - 1:
        assert found.own_idle == [0] * p
        assert found.idle == [p - 1] * p  # a rank begins as late as it ends


@given(ranks, microbatches)
def test_zb_v_has_no_bubble_at_the_memory_of_1f1b(p: int, m: int) -> None:
    schedule = generate("zb-v", p, m)
    assert max(peaks(schedule)) == 2 * min(m, p)
    if m >= 2 * p - 1:
        assert cost(schedule, EQUAL).own_idle == [0] * p


@given(ranks, microbatches)
def test_v_half_and_v_min_hold_a_half_and_a_third(p: int, m: int) -> None:
    for name, most in (("v-half", (p + 2) // 2), ("v-min", (p + 4) // 3)):
        schedule = generate(name, p, m)
        assert max(peaks(schedule)) <= 2 * min(m, most)
        if m >= p > 1:
            assert max(peaks(schedule)) == 2 * most


@given(ranks, st.integers(1, 8))
def test_chimera_idles_least_where_p_divides_m(p: int, pairs: int) -> None:
    """Of slots of equal passes p-2; a last block that is not full leaves more."""
    last = (pairs - 1) % ((p + 1) // 2) + 1  # pairs of micro-batches in the last block
    idle = cost(generate("chimera", p, 2 * pairs), {"F": 1, "B": 1}).idle
    odd = (p % 2) * (1 + (2 * last == p + 1))
    assert idle == [2 * p - 2 - 2 * last + odd] * p
    if p % 2 == 0 and 2 * pairs % p == 0:
        assert idle == [p - 2] * p


def test_what_cannot_be_made_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="even"):
        generate("dualpipe", 3, 12)
    with pytest.raises(ValueError, match="no such schedule; there are gpipe"):
        generate("2f2b", 3, 4)
    with pytest.raises(ValueError, match="8 or more"):
        generate("dualpipe", 4, 6)
    with pytest.raises(ValueError, match="has 2 chunks"):
        generate("zb-v", 4, 6, 3)
    with pytest.raises(ValueError, match="no 2 equal rounds"):
        generate("interleaved-1f1b", 4, 9)
    with pytest.raises(ValueError, match="1 or more"):
        generate("gpipe", 4, 0)
