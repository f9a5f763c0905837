"""The table of systems, the comparison and the timeline, in a real browser."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atlas.site.systems import tokens
from atlas.views.context import Context, read

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parent.parent.parent
PHONE = {"width": 390, "height": 844}
WIDE = {"width": 1440, "height": 900}
PAIR = "compare/?a=horovod&b=pytorch-ddp"
VIEWS = (
    "systems/?sync=asynchronous&find=a",
    "systems/horovod/",
    PAIR,
    "compare/",
    "timeline/?axis=parameter-distribution&family=sharded",
    "timeline/",
)


@pytest.fixture(scope="module")
def ctx() -> Context:
    return read(ROOT)


def having(ctx: Context, *wanted: str, sure: bool = False) -> set[str]:
    """The systems whose rows carry every one of these tokens."""
    out = set()
    for s in ctx.atlas.systems.values():
        mine = set(tokens(ctx, s))
        known = {t for t in mine if not t.endswith("?")}
        found = known if sure else {t.rstrip("?") for t in mine}
        if found >= set(wanted):
            out.add(s.id)
    return out


def shown(page: Any) -> set[str]:
    rows = "rows => rows.filter(r => !r.hidden).map(r => r.dataset.id)"
    return set(page.locator("table.systems tbody tr").evaluate_all(rows))


def option(page: Any, facet: str, value: str) -> Any:
    fold = page.locator("details.facet", has=page.locator(f"summary:text('{facet}')"))
    if fold.get_attribute("open") is None:
        fold.locator("summary").click()
    return fold.locator(f"label.option:has(input[value='{value}'])")


def search_of(page: Any) -> str:
    return str(page.evaluate("decodeURIComponent(location.search)"))


# The table


def test_facets_match_any_or_all_and_count(
    watched: Callable[..., Any], ctx: Context
) -> None:
    page = watched("systems/", viewport=WIDE).page
    both = ("sync:synchronous", "sync:asynchronous")
    option(page, "Sync strategy", "synchronous").click()
    assert shown(page) == having(ctx, both[0])
    option(page, "Sync strategy", "asynchronous").click()
    assert shown(page) == having(ctx, both[0]) | having(ctx, both[1])
    page.locator("input[name=mode-sync][value=all]").check()
    assert shown(page) == having(ctx, *both)
    hits = page.locator(".hits").inner_text()
    assert hits == f"{len(having(ctx, *both))} of {len(ctx.atlas.systems)} systems"
    count = option(page, "Parameter distribution", "sharded").locator(".count")
    want = having(ctx, *both, "dist:sharded")
    assert count.inner_text() == str(len(want))
    assert search_of(page) == "?sync=synchronous,asynchronous&all=sync"


def test_a_count_is_what_the_click_would_give(
    watched: Callable[..., Any], ctx: Context
) -> None:
    page = watched("systems/?sync=synchronous&from=2016&to=2021", viewport=WIDE).page
    before = shown(page)
    wanted = {"Sync strategy": "sync:periodic", "Topology": "topo:ring"}
    for facet, token in wanted.items():
        line = option(page, facet, token.partition(":")[2])
        promised = int(line.locator(".count").inner_text())
        line.click()
        assert len(shown(page) & having(ctx, token)) == promised > 0
        line.click()
        assert shown(page) == before


def test_only_verified_cells_count_when_asked(
    watched: Callable[..., Any], ctx: Context
) -> None:
    page = watched("systems/?topo=star&verified=1", viewport=WIDE).page
    assert shown(page) == having(ctx, "topo:star", sure=True)
    assert shown(page) != having(ctx, "topo:star")
    assert page.locator("table.systems .doubt:visible").count() == 0


def test_the_filter_knows_other_names(
    watched: Callable[..., Any], ctx: Context
) -> None:
    page = watched("systems/").page
    one = next(
        s
        for s in ctx.atlas.systems.values()
        for name in s.also_called
        if name.lower() not in f"{s.name} {s.id} {s.made_by} {s.summary}".lower()
    )
    word = next(
        n
        for n in one.also_called
        if n.lower() not in f"{one.name} {one.id} {one.made_by} {one.summary}".lower()
    )
    page.get_by_label("Filter systems by text").fill(word)
    assert one.id in shown(page)
    assert page.locator(f"tr[data-id='{one.id}'] .aka").is_visible()
    assert len(shown(page)) < len(ctx.atlas.systems) / 4


def test_columns_sort_both_ways_and_say_so(watched: Callable[..., Any]) -> None:
    page = watched("systems/").page
    names = "rows => rows.map(r => r.cells[0].querySelector('a').textContent)"
    rows = page.locator("table.systems tbody tr")
    head = page.locator("th[data-key=name]")
    head.get_by_role("button").click()
    up = rows.evaluate_all(names)
    assert up == sorted(up, key=str.lower)
    assert head.get_attribute("aria-sort") == "ascending"
    head.get_by_role("button").click()
    assert rows.evaluate_all(names) == sorted(up, key=str.lower, reverse=True)
    assert head.get_attribute("aria-sort") == "descending"
    assert page.locator("th[data-key=year][aria-sort]").count() == 0
    assert search_of(page) == "?sort=-name"


def test_the_back_button_undoes_and_a_link_restores(
    watched: Callable[..., Any], ctx: Context
) -> None:
    page = watched("systems/", viewport=WIDE).page
    everything = shown(page)
    option(page, "Status", "research").click()
    option(page, "Sync strategy", "periodic").click()
    page.get_by_label("Filter systems by text").press_sequentially("sgd")
    here, found = page.url, shown(page)
    again = watched(here.split("/", 3)[3]).page
    assert shown(again) == found
    assert again.get_by_label("Filter systems by text").input_value() == "sgd"
    assert again.locator(".md-search__input").input_value() == ""
    page.go_back()
    assert shown(page) == having(ctx, "status:research", "sync:periodic")
    page.go_back()
    assert shown(page) == having(ctx, "status:research")
    page.go_forward()
    assert shown(page) == having(ctx, "status:research", "sync:periodic")
    page.get_by_role("button", name="Reset").click()
    assert shown(page) == everything
    assert search_of(page) == ""


def test_the_link_can_be_copied(watched: Callable[..., Any]) -> None:
    granted = ["clipboard-read", "clipboard-write"]
    page = watched("systems/?sync=periodic", permissions=granted).page
    page.get_by_role("button", name="Copy link").click()
    page.get_by_text("Copied.").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == page.url


def test_the_table_is_filtered_with_the_keyboard_alone(
    watched: Callable[..., Any], ctx: Context
) -> None:
    page = watched("systems/", viewport=WIDE).page
    page.locator("details.facets > summary").focus()
    for _ in range(40):
        page.keyboard.press("Tab")
        at = page.evaluate("document.activeElement.value")
        if at == "periodic":
            break
    page.keyboard.press(" ")
    assert shown(page) == having(ctx, "sync:periodic")
    page.locator("th[data-key=year] button").focus()
    page.keyboard.press("Enter")
    year = page.locator("th[data-key=year]")
    assert year.get_attribute("aria-sort") == "descending"


def test_rows_are_chosen_for_a_comparison(watched: Callable[..., Any]) -> None:
    page = watched("systems/?pick=horovod").page
    page.get_by_label("Compare PyTorch DDP", exact=True).check()
    page.locator(".picked a").click()
    page.locator("table.compare").wait_for()
    assert search_of(page) == "?a=horovod&b=pytorch-ddp"


def test_without_script_the_table_is_whole(
    watched: Callable[..., Any], ctx: Context
) -> None:
    page = watched("systems/", java_script_enabled=False).page
    rows = page.locator("table.systems tbody tr")
    assert rows.count() == len(ctx.atlas.systems)
    assert rows.last.is_visible()
    assert page.locator(".facets, .bar").count() == 0


# The comparison


def test_differences_come_first_and_equal_rows_fold(
    watched: Callable[..., Any],
) -> None:
    page = watched(PAIR).page
    first, second = page.locator("table.compare tbody").all()
    assert re.match(r"\d+ differences", first.locator(".band").inner_text())
    rows = "rows => rows.map(r => [...r.cells].slice(1).map(c => c.innerText.trim()))"
    unlike = first.locator("tr:not(.band)").evaluate_all(rows)
    alike = second.locator("tr:not(.band)").evaluate_all(rows)
    assert unlike
    assert alike
    assert all(len(set(texts)) > 1 for texts in unlike)
    bare = [[t.replace("?", "") for t in texts] for texts in alike]
    assert all(len(set(texts)) == 1 for texts in bare)
    page.get_by_role("button", name="Hide").click()
    assert page.locator("table.compare tbody").last.locator("tr").count() == 1
    assert search_of(page).endswith("&equal=0")


def side_by_side(page: Any, count: int) -> None:
    """So many things are compared, at once or when their data has come."""
    page.wait_for_function(
        "n => document.querySelectorAll('table.compare thead th').length === n",
        arg=count,
    )


def test_things_are_chosen_with_the_keyboard_alone(
    watched: Callable[..., Any],
) -> None:
    page = watched("compare/").page
    page.get_by_label("First", exact=True).focus()
    page.keyboard.type("horovod")
    page.get_by_role("listbox", name="First").get_by_role("option").first.wait_for()
    page.keyboard.press("Enter")
    assert search_of(page) == "?a=horovod"
    focused = "document.activeElement.id"
    assert page.evaluate(focused) == "box-b"
    page.keyboard.type("ring all-red")
    page.keyboard.press("Enter")
    page.locator("table.compare").wait_for()
    assert search_of(page) == "?a=horovod&b=ring-all-reduce"
    page.get_by_label("Third", exact=True).focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    chosen = page.locator("[aria-selected=true]").inner_text()
    page.keyboard.press("Enter")
    side_by_side(page, 3)
    assert page.locator("thead th a").last.inner_text() in chosen
    page.keyboard.type("zzz")
    assert page.get_by_text('Nothing is called "zzz".').is_visible()
    page.keyboard.press("Escape")
    assert page.get_by_role("listbox").count() == 0
    page.go_back()
    side_by_side(page, 2)


def test_a_search_box_knows_other_names(
    watched: Callable[..., Any], ctx: Context
) -> None:
    one = next(t for t in ctx.atlas.techniques.values() if t.also_called)
    page = watched("compare/").page
    page.get_by_label("First", exact=True).fill(one.also_called[0])
    option = page.get_by_role("option").first
    assert one.name in option.inner_text()
    option.click()
    assert search_of(page) == f"?a={one.id}"


def test_techniques_are_compared_with_their_formulas(
    watched: Callable[..., Any],
) -> None:
    page = watched("compare/?a=ring-all-reduce&b=tree-all-reduce").page
    assert page.locator("table.compare .tex .katex").count() >= 2
    assert page.locator(".katex-error").count() == 0


def test_an_unknown_name_is_shown_with_what_is_near(
    watched: Callable[..., Any],
) -> None:
    page = watched("compare/?a=horovod&b=horovodd").page
    assert (
        page.get_by_role("alert")
        .inner_text()
        .startswith('No system or technique has the id "horovodd".')
    )
    assert page.get_by_text("Choose one more.").is_visible()


def test_without_script_the_comparison_says_so(watched: Callable[..., Any]) -> None:
    page = watched(PAIR, java_script_enabled=False).page
    assert page.get_by_text("Choosing needs JavaScript").is_visible()
    assert page.get_by_text("atlas compare horovod pytorch-ddp").is_visible()
    assert page.get_by_role("link", name="taxonomy.json").is_visible()


# The timeline


def test_the_timeline_shows_one_axis_and_some_families(
    watched: Callable[..., Any],
) -> None:
    page = watched("timeline/").page
    page.get_by_role("button", name="Parameter distribution").click()
    assert page.locator(".t-axis:visible").count() == 1
    page.get_by_role("button", name=re.compile("^Sharded")).click()
    page.get_by_role("button", name=re.compile("^Memory tiers")).click()
    want = "?axis=parameter-distribution&family=sharded,memory-tiers"
    assert search_of(page) == want
    families = "c => [...new Set(c.map(x => x.dataset.family))].sort()"
    cells = page.locator(".t-cell:visible")
    assert cells.evaluate_all(families) == ["memory-tiers", "sharded"]
    again = watched(f"timeline/{want}").page
    assert again.locator(".t-cell:visible").count() == cells.count()
    page.go_back()
    assert cells.evaluate_all(families) == ["sharded"]
    page.get_by_label("Show").select_option("technique")
    assert page.locator(".t-cell li.system:visible").count() == 0
    assert page.locator(".t-cell li.technique:visible").count() > 0


def test_arrows_walk_the_timeline(watched: Callable[..., Any]) -> None:
    page = watched("timeline/", viewport=WIDE).page
    here = (
        "(() => { const a = document.activeElement, c = a.closest('.t-cell');"
        " return [c.dataset.family, +a.closest('[data-year]').dataset.year] })()"
    )
    row = page.locator(".t-axis:visible [data-year='2014']")
    row.locator(".t-cell a").first.focus()
    family, year = page.evaluate(here)
    page.keyboard.press("ArrowRight")
    assert page.evaluate(here)[1] == year
    assert page.evaluate(here)[0] != family
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(here) == [family, year]
    for _ in range(30):
        page.keyboard.press("ArrowDown")
    assert page.evaluate(here)[0] == family
    assert page.evaluate(here)[1] > year
    page.keyboard.press("Home")
    assert page.evaluate(here)[1] <= 2011
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/(systems|[a-z]+-[a-z]+/[^/]+)/[^/]+/$"))


def test_without_script_the_timeline_has_all_three_axes(
    watched: Callable[..., Any],
) -> None:
    page = watched("timeline/", java_script_enabled=False).page
    assert page.locator(".t-axis:visible").count() == 3
    assert page.locator(".t-axis:visible .t-cell a:visible").count() > 100


# One system, and all of them together


def test_a_value_of_a_system_leads_to_all_that_share_it(
    watched: Callable[..., Any], ctx: Context
) -> None:
    page = watched("systems/horovod/").page
    status = ctx.atlas.systems["horovod"].status
    page.locator("dl.facts").get_by_role("link", name=status).click()
    page.locator(".systems-view.live").wait_for()
    assert shown(page) == having(ctx, f"status:{status}")
    assert "horovod" in shown(page)


def test_search_finds_a_system_by_another_name(
    watched: Callable[..., Any], ctx: Context
) -> None:
    page = watched("").page
    ddp = ctx.atlas.systems["pytorch-ddp"]
    assert ddp.also_called
    page.locator(".md-search__input").click()
    page.locator(".md-search__input").press_sequentially(ddp.also_called[0])
    found = page.locator(".md-search-result__link[href*='systems/pytorch-ddp']")
    found.first.wait_for(state="attached", timeout=20_000)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_accessibility_findings(
    inaccessible: Callable[..., list[str]], scheme: str
) -> None:
    assert not inaccessible(VIEWS, color_scheme=scheme, viewport=WIDE)


def test_a_phone_needs_no_sideways_scroll(abreast: Callable[..., Any]) -> None:
    for view, page in abreast(VIEWS, viewport=PHONE):
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, view


def test_the_views_work_from_files(
    offline: Path, watched: Callable[..., Any], ctx: Context
) -> None:
    home = offline.as_uri() + "/"
    page = watched("systems/index.html", home=home, viewport=WIDE).page
    option(page, "Sync strategy", "periodic").click()
    assert shown(page) == having(ctx, "sync:periodic")
    page.locator("tr[data-id=local-sgd] a, tbody tr:not([hidden]) th a").first.click()
    page.get_by_role("link", name="Compare …").click()
    page.get_by_label("Second", exact=True).fill("horovod")
    page.keyboard.press("Enter")
    page.locator("table.compare").wait_for()
    page.goto(home + "timeline.html")
    assert page.locator(".t-axis:visible").count() == 1
