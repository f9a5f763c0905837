"""Strategy search: its optimum for any costs, and its bytes for any sizes."""

from itertools import count, pairwise, product
from random import Random

import torch
from hypothesis import given
from hypothesis import strategies as st

from atlas.launch import launch
from atlas.oracle import formulas as f
from exemplars.parameter_distribution.hybrid import strategy_search as exemplar
from exemplars.parameter_distribution.hybrid.strategy_search import search
from exemplars.runtime import World, meter

ranks, parts = st.integers(1, 24), st.integers(1, 12)
units, elements = st.integers(0, 9), st.integers(0, 10**6)
seeds = st.integers(0, 10**9)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=5), seeds)
def test_the_search_finds_the_best_plan_of_any_chain(
    counts: list[int], seed: int
) -> None:
    random, costs = Random(seed), dict[tuple[int, str, str], int]()

    def cost(i: int, before: str, way: str) -> int:
        return costs.setdefault((i, before, way), random.randrange(5))

    def of(plan: tuple[str, ...]) -> int:
        return sum(map(cost, range(len(plan)), ("input", *plan), plan))

    choice = [list("abc"[:n]) for n in counts]
    least, plan = search(choice, cost)
    assert least == of(tuple(plan)) == min(map(of, product(*choice)))


def test_the_cost_is_an_argument() -> None:
    ways = [["a", "b"]] * 3
    dear = {"input": 0, "a": 1, "b": 2}
    assert search(ways, lambda i, before, way: dear[way]) == (3, ["a"] * 3)
    assert search(ways, lambda i, before, way: -dear[way]) == (-6, ["b"] * 3)
    assert search(ways, lambda i, before, way: before == way)[0] == 0


def try_plan(w: World, plan: list[str]) -> tuple[int, int]:
    """What this rank sent, and what the cost model says of all ranks."""
    x, *whole = [w.randn(*s, of_rank=0) / 5 for s in pairwise(exemplar.SIZES)]
    held = zip(whole, plan[:-1], strict=True)
    mine = [exemplar.split(t, exemplar.HOLDS[k])[w.rank] for t, k in held]
    with meter() as moved:
        start = exemplar.split(x, exemplar.TAKES[plan[0]])[w.rank]
        found = exemplar.step(plan, [t.clone() for t in mine], start)
    for ours, theirs in zip(found, exemplar.reference(plan, whole, x), strict=True):
        torch.testing.assert_close(ours, theirs)
    layers = map(exemplar.traffic, count(), ["input", *plan], plan)
    return moved.bytes_sent, sum(cost for cost, _, _ in layers)


def test_the_cost_of_any_plan_is_what_its_run_sends() -> None:
    """All ways after all ways, on uneven parts."""
    ways = [*product(exemplar.MAKES, repeat=3)]
    plans = [[a, b, c, a, "loss"] for a, b, c in ways]
    found = launch(lambda w: [try_plan(w, plan) for plan in plans], 3)
    for plan, said in zip(plans, zip(*found, strict=True), strict=True):
        sent, cost = zip(*said, strict=True)
        assert {sum(sent)} == set(cost), plan


def cut(n: int, p: int) -> list[torch.Tensor]:
    return list(torch.arange(n).tensor_split(p))


@given(ranks, parts, units, units)
def test_a_turn_sends_what_a_rank_has_in_one_layout_only(
    p: int, c: int, rows: int, columns: int
) -> None:
    """Every block of the matrix, on its way from one owner to the other."""
    shares = [len(h) for h in cut(c, p)]
    blocks = product(enumerate(shares), repeat=2)
    sent = [0] * p
    for (owner, height), (wanted, width) in blocks:
        sent[owner] += height * rows * width * columns * (owner != wanted)
    t = c * rows * c * columns
    assert [f.search_sent(p, r, 0, t, c, 8) for r in range(p)] == [8 * n for n in sent]
    assert f.turn_total(p, t, c, 8) == 8 * sum(sent)


@given(ranks, parts, units, units)
def test_what_each_rank_sends_adds_up_to_the_total(
    p: int, c: int, s: int, t: int
) -> None:
    s, t = s * c, t * c**2
    sent = sum(f.search_sent(p, r, s, t, c, 8) for r in range(p))
    assert sent == f.search_total(p, s, t, c, 8)


@given(ranks, parts, elements, elements, elements)
def test_a_single_way_is_data_or_filters_whichever_sends_less(
    p: int, c: int, n: int, a: int, y: int
) -> None:
    least = f.search_single(p, n, 0, a, y, c, 8)
    assert least <= f.ring_all_reduce_total(p, n, 8)
    assert f.search_single(p, n, 0, n, 0, c, 8) == f.ring_all_reduce_total(p, n, 8)
    assert f.search_single(1, n, 0, a, y, c, 8) == 0


def test_the_search_asks_for_fewer_costs_than_there_are_plans() -> None:
    assert f.search_asked(k=3, l=4) == 33
    assert f.search_plans(k=3, l=4) == 81
    assert f.search_asked(k=3, l=10) - f.search_asked(k=3, l=9) == 9
