"""The replay plays, steps, scrubs, switches clocks, and shows without script."""

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.browser

RING = "communication-pattern/collective/ring-all-reduce/"
PIPELINE = "sync-strategy/pipeline-flush/one-f-one-b/"
TREES = "communication-pattern/collective/double-binary-tree/"
#: How wide what scrolls is, and how much of it is seen.
INNER = "e => [e.scrollWidth, e.clientWidth]"


def now(figure: Any) -> float:
    return float(figure.get_attribute("data-now"))


def replay(page: Any) -> Any:
    figure = page.locator("figure.replay").first
    figure.scroll_into_view_if_needed()
    return figure


def test_it_begins_with_the_whole_run(watched: Callable[..., Any]) -> None:
    figure = replay(watched(RING).page)
    assert now(figure) == 6
    assert figure.locator("g.future").count() == 0
    sent = figure.locator(".replay-bytes output").all_inner_texts()
    assert [s.replace("\u202f", "") for s in sent] == [
        "1200032",
        "1200040",
        "1200040",
        "1200032",
    ]


def test_it_plays_and_pauses(watched: Callable[..., Any]) -> None:
    page = watched(RING).page
    figure = replay(page)
    figure.locator(".replay-play").click()
    page.wait_for_function(
        "() => { const t = +document.querySelector('figure.replay').dataset.now;"
        " return t > 0.2 && t < 6 }",
        timeout=10_000,
    )
    assert figure.locator("g.present line.message").count() == 4
    figure.locator(".replay-play").click()
    stopped = now(figure)
    page.wait_for_function(
        "() => new Promise(r => requestAnimationFrame(() => r(true)))"
    )
    assert now(figure) == stopped < 6


def test_it_plays_to_the_end(watched: Callable[..., Any]) -> None:
    page = watched(RING).page
    figure = replay(page)
    figure.locator("select").select_option("4")
    figure.locator(".replay-play").click()
    ended = "() => !document.querySelector('figure.replay-playing')"
    page.wait_for_function(ended, timeout=10_000)
    assert now(figure) == 6


def test_the_keyboard_steps(watched: Callable[..., Any]) -> None:
    page = watched(RING).page
    figure = replay(page)
    figure.locator(".replay-scroll").focus()
    page.keyboard.press("Home")
    assert now(figure) == 0
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert now(figure) == 2
    page.keyboard.press("ArrowLeft")
    assert now(figure) == 1
    page.keyboard.press("End")
    assert now(figure) == 6
    page.keyboard.press("Home")
    page.keyboard.press(" ")
    assert figure.locator(".replay-play").get_attribute("aria-label") == "Pause"
    page.keyboard.press(" ")
    assert figure.locator(".replay-play").get_attribute("aria-label") == "Play"


def test_it_scrubs_and_counts_bytes(watched: Callable[..., Any]) -> None:
    figure = replay(watched(RING).page)
    figure.locator("input[type=range]").fill("500")
    assert now(figure) == pytest.approx(3)
    assert figure.locator("g.future").count() == 8  # rounds 5 and 6
    half = figure.locator(".replay-bytes output").first.inner_text()
    assert int(half.replace("\u202f", "")) == pytest.approx(600_016, abs=16)


def test_it_switches_to_the_wall_clock_and_back(watched: Callable[..., Any]) -> None:
    page = watched(PIPELINE).page
    figure = replay(page)
    end = now(figure)
    figure.get_by_role("button", name="Wall clock").click()
    assert figure.locator(".replay-clock").inner_text().endswith(" ms")
    pressed = figure.get_by_role("button", name="Wall clock")
    assert pressed.get_attribute("aria-pressed") == "true"
    figure.get_by_role("button", name="Virtual time").click()
    assert now(figure) == end
    assert figure.locator("rect.span").count() > 20


def test_without_motion_it_goes_step_by_step(watched: Callable[..., Any]) -> None:
    page = watched(RING, reduced_motion="reduce").page
    figure = replay(page)
    figure.locator("select").select_option("4")
    figure.locator(".replay-play").click()
    seen = page.evaluate(
        """() => new Promise(done => {
          const figure = document.querySelector("figure.replay"), seen = new Set()
          const watch = new MutationObserver(() => {
            seen.add(+figure.dataset.now)
            if (+figure.dataset.now >= 6) { watch.disconnect(); done([...seen]) }
          })
          watch.observe(figure, { attributes: true, attributeFilter: ["data-now"] })
        })"""
    )
    assert all(t == int(t) for t in seen)


def drawn(figure: Any, kind: str) -> int:
    """How many of a kind a picture shows, drawn by the script or at the build."""
    count = """(figure, kind) => {
      const shape = use => document.querySelector(use.getAttribute("href"))
      const used = [...figure.querySelectorAll("use")].map(shape)
      const parts = [figure.querySelector("svg"), ...used]
      const found = what => parts.flatMap(part => [...part.querySelectorAll(what)])
      const strokes = path => path.getAttribute("d").split("M").length - 1
      return found(`rect.${kind}, .${kind} > rect, line.${kind}`).length +
        found(`path.${kind}`).map(strokes).reduce((a, b) => a + b, 0)
    }"""
    return int(figure.evaluate(count, kind))


def test_the_picture_shows_without_script(watched: Callable[..., Any]) -> None:
    page = watched(RING, java_script_enabled=False).page
    figure = page.locator("figure.replay").first
    assert figure.locator("svg").is_visible()
    assert drawn(figure, "message") == drawn(figure, "chip") == 24
    assert figure.locator(".replay-controls").count() == 0
    assert figure.locator(".replay-bytes output").first.is_visible()


def test_script_and_build_draw_the_same(watched: Callable[..., Any]) -> None:
    """What the page shows before and after the script took over agrees."""
    still = watched(PIPELINE, java_script_enabled=False).page
    alive = watched(PIPELINE).page
    for kind in ("span", "wait", "message", "lane"):
        figures = [p.locator("figure.replay").first for p in (still, alive)]
        counts = [drawn(figure, kind) for figure in figures]
        assert counts[0] == counts[1] > 0, kind


def test_a_picture_that_refers_to_another_looks_like_it(
    watched: Callable[..., Any],
) -> None:
    """A shape has its size where it is referred to: the style sheet reaches it."""
    page = watched(PIPELINE, java_script_enabled=False).page
    pictures = page.locator("figure.replay svg:has(use)")
    boxes = """svg => [...svg.querySelectorAll("use")].map(use => {
      const shape = document.querySelector(use.getAttribute("href"))
      return [use, shape].map(e => e.getBBox()).map(b => [b.width, b.height])
    })"""
    pairs = [
        pair
        for i in range(pictures.count())
        for pair in pictures.nth(i).evaluate(boxes)
    ]
    assert pairs
    assert all(used == shape and shape[1] > 0 for used, shape in pairs)


def test_on_a_phone_only_the_picture_scrolls(watched: Callable[..., Any]) -> None:
    page = watched(PIPELINE, viewport={"width": 390, "height": 844}).page
    figure = replay(page)
    box = figure.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    figure.get_by_role("button", name="Zoom in").click()
    wide, room = figure.locator(".replay-scroll").evaluate(INNER)
    assert wide > room
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_whole_run_fits_until_one_zooms_in(watched: Callable[..., Any]) -> None:
    figure = replay(watched(TREES, viewport={"width": 1180, "height": 900}).page)
    picture = figure.locator(".replay-scroll")
    wide, room = picture.evaluate(INNER)
    assert wide <= room
    zoom = figure.get_by_role("button", name="Zoom in")
    zoom.click()
    wide, room = picture.evaluate(INNER)
    assert wide > room
    assert zoom.get_attribute("aria-pressed") == "true"
    zoom.click()
    wide, room = picture.evaluate(INNER)
    assert wide <= room
