"""Lighter drawings: what is drawn stays where it was."""

import pytest

from atlas.svg import corners, lighter


def d(path: str) -> str:
    """A path inside a drawing, after it was made lighter."""
    made = lighter(f'<svg><path d="{path}" style="x"/></svg>')
    return made.removeprefix('<svg><path d="').removesuffix('" style="x"/></svg>')


@pytest.mark.parametrize(
    ("heavy", "light"),
    [
        ("M 0 1.23456\nL 5 1.23456\nL 9.98 1.23456\n", "M0 1.2L10 1.2"),
        ("M 0 0 L 1 1 L 2 2 L 2 0 z", "M0 0L2 2L2 0z"),
        ("M 0 0 L 4 0 L 2 0", "M0 0L4 0L2 0"),  # back again: not on the way
        ("M 0 0 L 1 0 M 2 0 L 3 0", "M0 0L1 0M2 0L3 0"),  # two strokes
        ("M 0.123456 3 C 1.23456 2 0.5 0.25 7 8", "M 0.1 3 C 1.2 2 0.5 0.2 7 8"),
    ],
)
def test_a_path_keeps_its_corners(heavy: str, light: str) -> None:
    assert d(heavy) == light


def test_other_attributes_are_left_alone() -> None:
    kept = '<text x="1.23456" transform="scale(0.015625)" id="1.23456">a</text>'
    assert lighter(kept) == kept


def test_a_line_keeps_its_corners_and_its_ends() -> None:
    assert corners([(0, 5), (1.04, 5), (2, 5.0), (3, 7), (3, 7)]) == "0,5 2,5 3,7"
    assert corners([(1.26, 2)]) == "1.3,2"
