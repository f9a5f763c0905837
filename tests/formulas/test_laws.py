"""A law agrees with its formula: exactly under its condition, within its bound else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlas.formulas import FORMULAS, law
from atlas.formulas.ranges import AtLeast, Below, ranges
from atlas.taxonomy import Claim, load

LAWS = [
    pytest.param(claim, id=f"{technique.id}-{claim.id}")
    for technique in load().techniques.values()
    for claim in technique.claims
    if claim.law is not None
]
DIVIDES_ALL = 8 * 840  # bits, by every number of ranks up to 8, into whole bytes


def agrees(claim: Claim, values: dict[str, int]) -> bool:
    """Whether they agree here; True: exactly."""
    assert claim.law is not None
    assert claim.formula is not None
    exact = FORMULAS[claim.formula](**values)
    remembered = law.value(claim.law.says, values)
    if law.value(claim.law.equal_when, values):
        assert remembered == exact, values
        return True
    assert abs(remembered - exact) <= law.value(claim.law.within, values), values
    return False


def drawn(claim: Claim, data: st.DataObject, factor: int) -> dict[str, int]:
    """Values for the formula's arguments; all but ranks are multiples of a factor."""
    assert claim.formula is not None
    values = {}
    for name, rule in ranges(FORMULAS[claim.formula]).items():
        if isinstance(rule, Below):
            values[name] = data.draw(st.integers(0, values[rule.limit] - 1), name)
        elif name == "ranks":
            values[name] = data.draw(st.integers(1, 8), name)
        else:
            assert isinstance(rule, AtLeast)
            values[name] = factor * data.draw(st.integers(rule.least, 99), name)
    return values


@pytest.mark.parametrize("claim", LAWS)
@settings(max_examples=50)
@given(data=st.data())
def test_a_law_is_within_its_bound(claim: Claim, data: st.DataObject) -> None:
    agrees(claim, drawn(claim, data, 1))


@pytest.mark.parametrize("claim", LAWS)
@settings(max_examples=50)
@given(data=st.data())
def test_a_law_is_exact_where_sizes_divide(claim: Claim, data: st.DataObject) -> None:
    assert agrees(claim, drawn(claim, data, DIVIDES_ALL))


@pytest.mark.parametrize("claim", LAWS)
def test_a_law_uses_the_words_of_its_formula(claim: Claim) -> None:
    assert claim.law is not None
    assert claim.formula is not None
    known = set(ranges(FORMULAS[claim.formula]))
    for text in (claim.law.says, claim.law.equal_when, claim.law.within):
        assert law.words(text) <= known
