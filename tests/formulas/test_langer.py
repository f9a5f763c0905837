"""Langer's least delays: the printed expressions, exactly, and what they imply."""

import math
from fractions import Fraction

import pytest
from by_name import f
from hypothesis import given
from hypothesis import strategies as st

workers = st.integers(1, 200)
T, R, U = Fraction(7, 3), Fraction(2, 5), Fraction(11, 13)


@given(workers)
def test_the_printed_expressions_are_computed_exactly(n: int) -> None:
    share = Fraction(n - 1, n)
    assert f.langer_naive_seconds(n, T, R, U) == 2 * n * T + (n - 1) * R + U
    assert f.langer_scatter_seconds(n, T, R, U) == (2 + 2 * share) * T + share * R + U
    assert f.langer_requests_seconds(n, T, U) == n * T + U
    assert f.langer_shared_server_seconds(n, T, R, U) == (
        2 * share * T + share * R + U / n
    )
    assert f.langer_ring_seconds(n, T, R, U) == 2 * share * T + share * R + U
    up, down = math.ceil(math.log2(n + 1)), math.ceil(math.log2(n))
    assert f.langer_tree_seconds(n, T, R, U) == 2 * up * T + down * R + U
    assert f.langer_doubling_seconds(n, T, R, U) == down * (T + R) + U


@given(st.integers(1, 10**12))
def test_the_logarithm_is_rounded_up(p: int) -> None:
    assert 2 ** f.ceil_log2(p) >= p
    assert p == 1 or 2 ** (f.ceil_log2(p) - 1) < p


@given(workers)
def test_a_ring_costs_a_shared_server_and_the_rest_of_the_update(n: int) -> None:
    ring = f.langer_ring_seconds(n, T, R, U)
    assert ring - f.langer_shared_server_seconds(n, T, R, U) == U - U / n


def test_one_overlapped_request_would_be_less_than_one_request() -> None:
    """Why the expression is said of two workers or more."""
    assert f.langer_requests_seconds(1, T, U) < f.langer_one_request_seconds(T, U)
    assert f.langer_requests_seconds(2, T, U) == f.langer_one_request_seconds(T, U)


#: Of the binomial tree as Fig. 14 draws it: transmissions and reductions from n on.
DRAWN = {1: (1, 0), 2: (2, 1), 3: (3, 2), 4: (3, 3), 7: (4, 3), 8: (4, 4), 15: (5, 4)}


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 14, 15])
def test_the_drawn_tree_is_higher_where_the_file_says(n: int) -> None:
    up, down = DRAWN[max(k for k in DRAWN if k <= n)]
    over = 2 * up * T + down * R + U - f.langer_tree_seconds(n, T, R, U)
    assert over == (2 * T if n in (3, 7, 15) else R if n in (4, 8) else 0)
