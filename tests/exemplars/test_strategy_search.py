"""Strategy search: its optimum for any costs, and its bytes for any plan."""

from itertools import count, pairwise, product
from random import Random

import torch
from by_name import f
from hypothesis import given
from hypothesis import strategies as st

from atlas.launch import launch
from exemplars.parameter_distribution.hybrid import strategy_search as exemplar
from exemplars.parameter_distribution.hybrid.strategy_search import search
from exemplars.runtime import World, meter

SIZES = [12, 6, 18, 6, 12]  # samples, and widths
ranks, elements = st.integers(1, 24), st.integers(0, 10**6)
seeds = st.integers(0, 10**9)


@given(st.integers(1, 5), seeds)
def test_the_search_finds_the_best_plan_of_any_chain(layers: int, seed: int) -> None:
    random, costs = Random(seed), dict[tuple[int, str, str], int]()

    def cost(i: int, before: str, way: str) -> int:
        return costs.setdefault((i, before, way), random.randrange(5))

    least, plan = search(layers, cost)
    every = exemplar.prices(product(*[exemplar.MAKES] * layers, ["loss"]), cost)
    assert least == min(every)
    assert [least] == exemplar.prices([plan], cost)


def test_the_cost_is_an_argument() -> None:
    dear = {"input": 0, "data": 1, "filter": 2, "channel": 3, "loss": 0}
    assert search(3, lambda i, before, way: dear[way]) == (3, ["data"] * 3 + ["loss"])
    most = ["channel"] * 3 + ["loss"]
    assert search(3, lambda i, before, way: -dear[way]) == (-9, most)
    assert search(3, lambda i, before, way: before == way)[0] == 0


def try_plan(w: World, plan: list[str]) -> tuple[float, float]:
    """What this rank sent, and what the cost model says."""
    batch, *widths = SIZES
    whole = [w.randn(*shape, seed=i) / 5 for i, shape in enumerate(pairwise(widths))]
    x = w.randn(batch, widths[0], seed=9) / 5
    layouts = [*(exemplar.HOLDS[way] for way in plan), "rows"]
    mine = [exemplar.own_part(t, at) for t, at in zip(whole, layouts, strict=False)]
    with meter() as moved:
        start = exemplar.own_part(x, exemplar.TAKES[plan[0]])
        parts = exemplar.step(plan, mine, start)
    truth = exemplar.reference(x, whole)
    for part, at, theirs in zip(parts, layouts, truth, strict=True):
        torch.testing.assert_close(exemplar.move(part, at, "whole"), theirs)
    ended = [*plan, "loss"]
    costs = map(exemplar.traffic, [SIZES] * 4, count(), ["input", *ended], ended)
    return moved.wire, sum(costs)


def test_the_cost_of_any_plan_is_what_its_run_sends() -> None:
    """All ways after all ways."""
    plans = [list(plan) for plan in product(exemplar.MAKES, repeat=3)]
    for every in launch(lambda w: [try_plan(w, plan) for plan in plans], 3):
        for plan, (sent, cost) in zip(plans, every, strict=True):
            assert sent == cost, plan


@given(ranks, elements, elements, elements, elements)
def test_a_single_way_is_data_or_filters_whichever_sends_less(
    p: int, n: int, batch: int, x: int, y: int
) -> None:
    least = f.search_single(p, n, batch, x, y, 8)
    assert least <= f.search_single(p, n, batch, x + 1, y, 8)
    assert least <= f.search_single(p, n + 1, batch, x, y, 8)
    assert f.search_single(p, n, n, 1, 0, 8) == 2 * (p - 1) * n * 8 / p
    assert f.search_single(1, n, batch, x, y, 8) == 0


def test_the_search_asks_for_a_few_costs_more_per_layer() -> None:
    assert f.search_asked(ways=3, layers=4) == 33
    assert f.search_asked(ways=3, layers=10) - f.search_asked(ways=3, layers=9) == 9
