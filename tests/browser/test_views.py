"""The views in a browser: filters, cells, questions and sliders, by keyboard too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser

SHARDED = "parameter-distribution/sharded/"
COLLECTIVE = "communication-pattern/collective/"
VIEWS = ("map/", "map/#cell=synchronous.replicated&c=star", "grid/", "choose/")
VIEWS += ("choose/#too-large.dense.state.many-nodes", "coverage/", "changes/")
VIEWS += ("sync-strategy/", SHARDED, "parameter-distribution/")
PHONE = {"width": 390, "height": 844}


def shown(page: Any, selector: str) -> list[str]:
    """The ids of the elements that are to be seen."""
    found: list[str] = page.eval_on_selector_all(
        selector, "all => all.filter(e => e.offsetParent).map(e => e.id)"
    )
    return found


def addressed(page: Any, part: str) -> None:
    """The address has this in it, at once or soon."""
    page.wait_for_function("part => location.href.includes(part)", arg=part)


def asked(page: Any, ident: str) -> None:
    """Of the questions and leaves this one alone is to be seen, at once or soon."""
    page.locator(f"#{ident}").wait_for(state="visible")
    assert shown(page, "section.ask") == [ident]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_has_a_serious_accessibility_finding(
    inaccessible: Callable[..., list[str]], scheme: str
) -> None:
    assert not inaccessible(VIEWS, color_scheme=scheme)


def test_views_fit_a_phone(abreast: Callable[..., Any]) -> None:
    for path, page in abreast(VIEWS, viewport=PHONE):
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 390, path


# The map


def test_a_facet_filters_and_the_address_keeps_it(watched: Callable[..., Any]) -> None:
    page = watched("map/").page
    cell = page.locator('td[data-cell="synchronous.replicated"]')
    before = cell.inner_text()
    page.get_by_label("Sparsification").check()
    page.locator("section.cell li[hidden]").first.wait_for(state="attached")
    addressed(page, "#c=sparsification")
    assert cell.inner_text() != before
    kinds = page.eval_on_selector_all(
        "section.cell li[data-c]",
        "all => all.filter(e => e.offsetParent).map(e => e.dataset.c)",
    )
    assert kinds
    assert all("sparsification" in k.split() for k in kinds)
    page.go_back()
    page.locator("#facets:not(:has(:checked[name=c]))").wait_for()
    assert cell.inner_text() == before


def test_all_of_the_facets_is_narrower_than_any(watched: Callable[..., Any]) -> None:
    def hits(mode: str) -> int:
        page = watched(f"map/#c=collective,scheduling&mode={mode}").page
        said = page.locator(".hits").inner_text()
        return sum(int(word) for word in said.split() if word.isdigit())

    assert 0 < hits("all") < hits("any")


def test_a_permalink_shows_the_one_cell(watched: Callable[..., Any]) -> None:
    page = watched("map/#cell=pipeline-flush.inter-layer&c=neighbor").page
    assert shown(page, "section.cell") == ["pipeline-flush.inter-layer"]
    assert page.get_by_label("Neighbor").is_checked()
    current = page.locator("td a[aria-current]")
    assert current.count() == 1
    page.get_by_role("button", name="Show everything").click()
    page.locator("#facets:not(:has(:checked[name=c]))").wait_for()
    assert len(shown(page, "section.cell")) > 10


def test_the_map_works_with_the_keyboard_alone(watched: Callable[..., Any]) -> None:
    page = watched("map/").page
    page.get_by_label("Star").focus()
    page.keyboard.press("Space")
    addressed(page, "c=star")
    page.locator('td[data-cell="asynchronous.parameter-server"] a').focus()
    page.keyboard.press("Enter")
    addressed(page, "cell=asynchronous.parameter-server")
    focused = "document.activeElement.id"
    page.wait_for_function(f"{focused} === 'asynchronous.parameter-server'")
    page.go_back()
    addressed(page, "#c=star")


def test_the_map_is_whole_without_script(watched: Callable[..., Any]) -> None:
    page = watched("map/", java_script_enabled=False).page
    assert page.locator("table.matrix tbody tr").count() == 9
    assert page.locator("section.cell").first.is_visible()
    assert page.locator("form.facets").is_hidden()
    page.locator('td[data-cell="synchronous.sharded"] a').click()
    page.wait_for_url("**#synchronous.sharded")


def test_on_a_phone_the_map_is_a_list_by_row(watched: Callable[..., Any]) -> None:
    page = watched("map/", viewport=PHONE).page
    assert page.locator(".matrix thead").is_hidden()
    first = page.locator(".matrix tbody tr").nth(1)
    assert "no known system" in first.locator(".missing").inner_text()
    box = first.bounding_box()
    assert box is not None
    assert box["width"] <= 390


# Langer's grid


def test_a_cell_of_the_grid_has_an_address(watched: Callable[..., Any]) -> None:
    page = watched("grid/#per-worker.synchronous").page
    cell = page.locator("td:target")
    assert cell.get_attribute("id") == "per-worker.synchronous"
    assert cell.get_by_role("link", name="Local SGD", exact=True).is_visible()
    assert page.locator("table.six tbody td").count() == 6


# Choose


def test_questions_lead_to_a_leaf_and_back(watched: Callable[..., Any]) -> None:
    page = watched("choose/").page
    asked(page, "question-fits")
    page.get_by_role("link", name="No, memory runs out").click()
    page.get_by_role("link", name="No, every sample uses all of them").click()
    page.get_by_role("link", name="The state", exact=True).click()
    asked(page, "question-links")
    page.get_by_role("link", name="Many nodes").click()
    asked(page, "leaf-three-d")
    addressed(page, "#too-large.dense.state.many-nodes")
    assert page.locator(".trail li").count() == 4
    page.go_back()
    asked(page, "question-links")
    page.go_forward()
    asked(page, "leaf-three-d")
    page.get_by_role("link", name="Back one question").click()
    asked(page, "question-links")


def test_a_permalink_restores_the_answers(watched: Callable[..., Any]) -> None:
    page = watched("choose/#fits.grows").page
    asked(page, "leaf-data")
    assert "atlas plan --model" in page.locator("#leaf-data pre").inner_text()
    page = watched("choose/#fits.nonsense").page
    asked(page, "question-batch")


def test_choose_works_with_the_keyboard_alone(watched: Callable[..., Any]) -> None:
    page = watched("choose/").page
    page.locator("#question-fits a").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_function("document.activeElement.id === 'question-batch'")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_function("document.activeElement.id === 'leaf-data'")


def test_the_tree_is_whole_without_script(watched: Callable[..., Any]) -> None:
    page = watched("choose/", java_script_enabled=False).page
    assert page.locator("section.ask").count() > 15
    assert page.locator("section.ask").last.is_visible()
    assert page.locator("details.tree ul ul ul").first.is_visible()
    page.locator("#question-fits a").first.click()
    page.wait_for_url("**#question-batch")


# Sliders


def numbers(page: Any) -> list[str]:
    found: list[str] = page.locator("output[data-f]").all_inner_texts()
    return found


@pytest.mark.parametrize(
    "path", ["sync-strategy/", "parameter-distribution/", "communication-pattern/"]
)
def test_script_and_build_give_the_same_numbers(
    watched: Callable[..., Any], path: str
) -> None:
    still = numbers(watched(path, java_script_enabled=False).page)
    alive = watched(path).page
    assert alive.locator("form.sliders").is_visible()
    assert numbers(alive) == still
    assert len(still) > 20


def test_sliders_move_the_numbers_and_the_address(watched: Callable[..., Any]) -> None:
    page = watched(SHARDED).page
    row = page.locator("tr", has_text="ZeRO stage 3").first
    assert row.locator("output").inner_text() == "200 MB"
    page.locator("#slide-p").fill("6")
    addressed(page, "#p=64&n=100000000")
    assert row.locator("output").inner_text() == "25 MB"
    page.locator("#slide-n").focus()
    page.keyboard.press("End")
    addressed(page, "#p=64&n=10000000000")
    assert row.locator("output").inner_text() == "2.5 GB"
    page.go_back()
    assert row.locator("output").inner_text() == "25 MB"
    page.get_by_role("button", name="Reset").click()
    assert row.locator("output").inner_text() == "200 MB"


def test_a_permalink_restores_the_sliders(watched: Callable[..., Any]) -> None:
    page = watched(COLLECTIVE + "#p=1024&n=1000000").page
    assert page.locator("#shown-p").inner_text() == "1024"
    row = page.locator("tr", has_text="Ring all-reduce").filter(has_text="rounds")
    assert row.locator("output").inner_text() == "2046"
    assert page.locator("#slide-p").get_attribute("aria-valuetext") == "1024 ranks"


def test_beyond_a_limit_the_page_says_so(watched: Callable[..., Any]) -> None:
    page = watched("parameter-distribution/intra-layer/#p=128&n=100000000").page
    row = page.locator("tr", has_text="Filter parallelism").first
    assert row.locator("output").inner_text() == "at most 64 ranks"
    assert "Error" not in " ".join(numbers(page))


def test_the_offline_views_work_from_files(
    offline: Path, watched: Callable[..., Any]
) -> None:
    home = offline.as_uri() + "/"
    page = watched("map.html", home=home).page
    page.get_by_label("Star").check()
    addressed(page, "map.html#c=star")
    page.goto(home + "choose.html")
    page.get_by_role("link", name="Yes, it fits").click()
    asked(page, "question-batch")
    page.goto(home + "parameter-distribution/sharded/index.html")
    page.locator("#slide-p").fill("6")
    addressed(page, "#p=64")
    page.get_by_role("link", name="ZeRO stage 1").first.click()
    addressed(page, "zero-1.html")
