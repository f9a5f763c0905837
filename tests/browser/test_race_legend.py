"""The race's legend: a line is hidden and shown, and a link remembers it."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.browser


def hidden(page: Any) -> int:
    """How many lines are not drawn, in all plots."""
    count: int = page.locator("svg.race g.off").count()
    return count


def test_a_name_in_the_legend_hides_its_line(watched: Callable[..., Any]) -> None:
    page = watched("sync-strategy/").page
    plots = page.locator("svg.race").count()
    assert plots == 8  # two tasks, two speeds, two axes
    button = page.locator(".race-key button").nth(2)
    assert hidden(page) == 0
    button.focus()
    page.keyboard.press("Enter")
    assert hidden(page) == plots
    assert button.get_attribute("aria-pressed") == "false"
    assert "hide=2" in page.url
    page.keyboard.press("Enter")
    assert hidden(page) == 0
    assert "hide" not in page.url


def test_a_link_shows_the_same_lines(watched: Callable[..., Any]) -> None:
    page = watched("sync-strategy/?hide=1,3").page
    assert hidden(page) == 2 * page.locator("svg.race").count()
