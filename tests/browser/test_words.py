"""Terms in a real browser: tips by mouse and keyboard, search by other names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser

ZERO = "parameter-distribution/sharded/zero-3/"
PAGES = ("glossary/", "crosswalk/", "papers/", "surveys/", "surveys/nichols2021/")
# What people type -> the page that must come first.
NAMES = {
    "DDP": "parameter-distribution/replicated/ddp-by-hand/",
    "FSDP": ZERO,
    "tensor slicing": "parameter-distribution/intra-layer/tensor-parallel-column-row/",
    "weight update sharding": "parameter-distribution/sharded/zero-1/",
    "operator parallelism": (
        "parameter-distribution/intra-layer/tensor-parallel-column-row/"
    ),
    "Rabenseifner": "communication-pattern/collective/halving-doubling/",
    "butterfly all-reduce": "communication-pattern/collective/recursive-doubling/",
    "MoE": "parameter-distribution/expert-and-embedding/expert-parallel/",
    "SSP": "sync-strategy/bounded-staleness/stale-synchronous-parallel/",
    "EASGD": "sync-strategy/periodic/elastic-averaging/",
    "1F1B": "sync-strategy/pipeline-flush/one-f-one-b/",
    "DeepSpeed": "systems/deepspeed/",
    "ZeRO": "systems/zero/",
    "Filter parallelism": "parameter-distribution/intra-layer/filter/",
    "busbw": "glossary/",
    "Hockney model": "glossary/",
    "staleness": "glossary/",
}


def search(page: Any, text: str) -> None:
    """Type into the search, and wait until its names and its index are there."""
    box = page.locator(".md-search__input")
    box.focus()
    page.wait_for_function("() => window.atlasNames", timeout=15_000)
    box.fill(text)
    box.press("End")
    page.locator(".md-search-result__link").first.wait_for(timeout=15_000)


def first(page: Any) -> str:
    """Where the first result leads."""
    href: str = page.locator(".md-search-result__link").first.evaluate("a => a.href")
    return href


@pytest.mark.parametrize("name", NAMES)
def test_search_finds_a_page_by_another_name_first(
    name: str, watched: Callable[..., Any], address: str
) -> None:
    page = watched("").page
    search(page, name)
    found = first(page).removeprefix(address)
    assert found.split("?")[0].split("#")[0] == NAMES[name]


def test_the_enter_key_opens_the_exact_name(watched: Callable[..., Any]) -> None:
    page = watched("").page
    search(page, "Horovod")
    page.keyboard.press("Enter")
    page.wait_for_url("**/systems/horovod/*")


def test_other_searches_are_as_the_index_has_them(watched: Callable[..., Any]) -> None:
    page = watched("").page
    search(page, "sum of all gradients")
    assert page.locator(".md-search-result__link").count() > 3
    scores = page.locator(".md-search-result__article[data-md-score]").evaluate_all(
        "all => all.map(e => +e.dataset.mdScore)"
    )
    assert max(scores) < 1e12 - 10


def tip(page: Any) -> Any:
    return page.locator(".md-tooltip2__inner:visible")


def test_a_tip_shows_the_definition_on_pointing(watched: Callable[..., Any]) -> None:
    page = watched(ZERO).page
    word = page.locator(".md-content a.term").first
    word.scroll_into_view_if_needed()
    name = word.inner_text()
    word.hover()
    tip(page).first.wait_for(timeout=5_000)
    assert len(tip(page).first.inner_text()) > 30
    word.click()
    page.wait_for_url("**/glossary/#*")
    heading = page.locator(f"#{page.url.split('#')[1]}")
    assert heading.is_visible()
    assert heading.inner_text().casefold()[:4] == name.casefold()[:4]


def test_a_tip_shows_by_keyboard(watched: Callable[..., Any]) -> None:
    page = watched(ZERO).page
    word = page.locator(".md-content a.term").first
    word.focus()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.classList.contains('term')")
    tip(page).first.wait_for(timeout=5_000)


def test_a_tip_needs_no_script(watched: Callable[..., Any]) -> None:
    page = watched(ZERO, java_script_enabled=False).page
    words = page.locator(".md-content a.term")
    assert words.count() >= 3
    for title in words.evaluate_all("all => all.map(a => a.title)"):
        assert len(title) > 30


def test_no_word_is_explained_twice_or_outside_prose(
    watched: Callable[..., Any],
) -> None:
    page = watched(ZERO).page
    targets = page.locator("a.term").evaluate_all("all => all.map(a => a.hash)")
    assert len(targets) == len(set(targets)) >= 3
    inside = "h1, h2, h3, h4, pre, code, table, svg, .katex, nav, .claim, .badges"
    assert page.locator(inside).locator("a.term").count() == 0


def test_letters_lead_to_words(watched: Callable[..., Any]) -> None:
    page = watched("glossary/").page
    page.locator("nav.letters a", has_text="S").first.click()
    assert page.url.endswith("#letter-s")
    assert page.locator("#straggler").count() == 1
    page.locator("#all-reduce + p a").first.click()
    assert "#" in page.url
    assert page.locator(f"#{page.url.split('#')[1]}").is_visible()


def test_bibtex_unfolds_and_can_be_copied(watched: Callable[..., Any]) -> None:
    page = watched("papers/#rajbhandari2020zero").page
    entry = page.locator(".paper:has(#rajbhandari2020zero)")
    assert not entry.locator("pre").is_visible()
    entry.locator("summary").click()
    assert "@inproceedings{rajbhandari2020zero" in entry.locator("pre").inner_text()
    assert entry.locator("button").count() == 1
    link = page.get_by_role("link", name="papers.bib")
    with page.expect_download() as download:
        link.evaluate("a => { a.download = ''; a.click() }")
    text = Path(download.value.path()).read_text(encoding="utf-8")
    assert "@inproceedings{rajbhandari2020zero" in text


def test_the_crosswalk_is_a_list_on_a_phone(watched: Callable[..., Any]) -> None:
    page = watched("crosswalk/", viewport={"width": 390, "height": 844}).page
    cell = page.locator("table.walk-table td").first
    assert cell.bounding_box()["width"] <= 390
    before = cell.evaluate("e => getComputedStyle(e, '::before').content")
    assert before == '"Langer 2020"'
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_accessibility_findings(
    inaccessible: Callable[..., list[str]], scheme: str
) -> None:
    assert not inaccessible((*PAGES, ZERO), color_scheme=scheme)


def test_a_page_of_terms_weighs_at_most_900_kb(
    weights: Callable[..., dict[str, int]],
) -> None:
    found = weights(PAGES)
    assert not {path: weight for path, weight in found.items() if weight > 900_000}
