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
    # Two tasks, two speeds, two axes: so many plots of each of the four groups.
    plots = 8
    assert page.locator("svg.race").count() == 4 * plots
    button = page.locator(".race-key button").nth(2)
    line = button.get_attribute("data-line")
    assert hidden(page) == 0
    button.focus()
    page.keyboard.press("Enter")
    assert hidden(page) == plots
    assert button.get_attribute("aria-pressed") == "false"
    assert f"hide={line}" in page.url
    page.keyboard.press("Enter")
    assert hidden(page) == 0
    assert "hide" not in page.url


def test_a_link_shows_the_same_lines(watched: Callable[..., Any]) -> None:
    """The first of a legend is the baseline, which is in the plots of all groups."""
    page = watched("sync-strategy/").page
    keys = page.locator(".race-key button")
    first, other = (keys.nth(i).get_attribute("data-line") for i in (0, 1))
    page = watched(f"sync-strategy/?hide={first},{other}").page
    assert hidden(page) == page.locator("svg.race").count() + 8
