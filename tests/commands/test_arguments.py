"""Sizes from the command line: what main takes, and one line for anything else."""

import pytest

from atlas import taxonomy
from atlas.arguments import Argument, ArgumentError, arguments, parsed

RING = taxonomy.load().techniques["ring-all-reduce"]


def test_the_sizes_are_the_keywords_of_main() -> None:
    assert arguments(RING) == {"elements": Argument("elements", "int", "100_003")}


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("int", "1_000", 1000),
        ("int", " 7 ", 7),
        ("float", "0.5", 0.5),
        ("float", "1e-3", 0.001),
        ("bool", "true", True),
        ("bool", "False", False),
        ("str", "ring", "ring"),
    ],
)
def test_a_value_becomes_what_main_wants(kind: str, text: str, value: object) -> None:
    assert Argument("x", kind, "").value(text) == value


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("elements", "elements: expected NAME=VALUE; ring-all-reduce has elements="),
        ("element=3", "element=3: no such size; did you mean elements?"),
        ("zzz=3", "zzz=3: no such size; ring-all-reduce has elements=100_003"),
        ("elements=many", "elements=many: expected a whole number"),
        ("elements=-1", "elements=-1: expected a whole number, 0 or more"),
        ("elements=1.5", "elements=1.5: expected a whole number"),
    ],
)
def test_a_wrong_size_is_one_line_that_says_what_is_legal(word: str, said: str) -> None:
    with pytest.raises(ArgumentError) as refusal:
        parsed(RING, [word])
    assert str(refusal.value).startswith(said)
    assert "\n" not in str(refusal.value)


def test_a_size_is_given_once() -> None:
    with pytest.raises(ArgumentError, match="is given twice"):
        parsed(RING, ["elements=1", "elements=2"])
