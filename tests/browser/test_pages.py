"""Every page in a real browser: no errors, nothing from outside, fits a phone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser

RING = "communication-pattern/collective/ring-all-reduce/"
SAMPLE = ("", RING, "sync-strategy/pipeline-flush/one-f-one-b/", "systems/horovod/")
SAMPLE += ("communication-pattern/collective/", "papers/", "coverage/", "systems/")
SAMPLE += ("surveys/", "reference/atlas.timeline/")
LIGHT = 900_000


def addresses(site: Path) -> list[str]:
    found = sorted(p.relative_to(site).as_posix() for p in site.rglob("index.html"))
    return [f.removesuffix("index.html") for f in found]


def test_every_page_is_clean_and_fits_a_phone(
    site: Path, abreast: Callable[..., Any]
) -> None:
    seen, wide, bad_math = [], [], []
    for path, page in abreast(addresses(site), viewport={"width": 390, "height": 844}):
        seen.append(path)
        if page.evaluate("document.documentElement.scrollWidth") > 390:
            wide.append(path)
        if page.locator(".katex-error").count():
            bad_math.append(path)
    assert seen == addresses(site)
    assert len(seen) > 40
    assert not wide
    assert not bad_math


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_accessibility_findings(
    inaccessible: Callable[..., list[str]], scheme: str
) -> None:
    assert not inaccessible(SAMPLE, color_scheme=scheme)


@pytest.mark.parametrize(("scheme", "named"), [("light", "default"), ("dark", "slate")])
def test_pages_begin_in_the_colors_of_the_system(
    abreast: Callable[..., Any], scheme: str, named: str
) -> None:
    for path, page in abreast(SAMPLE, color_scheme=scheme):
        assert page.get_attribute("body", "data-md-color-scheme") == named, path


def test_formulas_are_drawn(watched: Callable[..., Any]) -> None:
    page = watched(RING).page
    assert page.locator(".claim .katex").count() >= 2


def test_search_finds_a_technique_by_another_name(watched: Callable[..., Any]) -> None:
    page = watched("").page
    page.locator(
        "label.md-header__button[for=__search], .md-search__input"
    ).last.click()
    page.locator(".md-search__input").press_sequentially("bandwidth-optimal")
    link = page.locator(".md-search-result__link").first
    link.wait_for(timeout=15_000)
    assert "ring-all-reduce" in (link.get_attribute("href") or "")


def test_colors_can_be_switched_and_begin_as_the_system_has_them(
    watched: Callable[..., Any],
) -> None:
    page = watched("", color_scheme="dark").page
    body = page.locator("body")
    assert body.get_attribute("data-md-color-scheme") == "slate"
    page.locator(".md-header__option label:visible").click()
    assert body.get_attribute("data-md-color-scheme") == "default"


def test_mutants_are_chosen_from_a_list(watched: Callable[..., Any]) -> None:
    page = watched(RING).page
    pick = page.locator(".choices-pick select")
    options = pick.locator("option").count()
    assert options == page.locator(".choice").count() >= 2
    pick.select_option("1")
    assert page.locator(".choice").nth(1).is_visible()
    assert page.locator(".choice").nth(0).is_hidden()


def test_a_technique_page_weighs_at_most_900_kb(
    site: Path, weights: Callable[..., dict[str, int]]
) -> None:
    found = weights(path for path in addresses(site) if path.count("/") >= 3)
    assert len(found) > 40
    heavy = {path: weight for path, weight in found.items() if weight > LIGHT}
    assert not heavy


def test_the_offline_site_works_from_files(
    offline: Path, watched: Callable[..., Any]
) -> None:
    home = offline.as_uri() + "/"
    page = watched(RING.rstrip("/") + ".html", home=home).page
    assert page.locator(".claim .katex").count() >= 2
    assert page.locator("figure.replay-live").count() >= 1
    page.locator(".md-search__input").press_sequentially("bandwidth-optimal")
    link = page.locator(".md-search-result__link").first
    link.wait_for(timeout=15_000)
    assert "ring-all-reduce" in (link.get_attribute("href") or "")
    page.goto(home + "index.html")
    page.get_by_role("link", name="Ring all-reduce").first.click()
    assert page.url.endswith("ring-all-reduce.html")
