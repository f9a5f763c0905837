"""Systems on the site: the table, one system, the comparison, the timeline."""

import dataclasses
import html.parser
import json
import re
from pathlib import Path
from typing import Any

import pytest

from atlas.site import address, chronology, compare, pages, system, systems
from atlas.taxonomy import Attribution, Fact, Relation, System, Use
from atlas.views import standing
from atlas.views.context import Context

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = (
    "<script>alert(1)</script> [x](javascript:alert(1)) *a|b* $y$ {: onclick=z} "
    '" onclick="z <!--/raw-->'
)
PAGES = ["index.md", "map.md", "systems/index.md", "systems/x.md", "a/b/reindex.md"]


def other(ctx: Context, *more: System) -> Context:
    """The same atlas with systems put in, or in the place of those of their name."""
    found = {**ctx.atlas.systems, **{s.id: s for s in more}}
    return Context(ROOT, dataclasses.replace(ctx.atlas, systems=found))


def made(ctx: Context, name: str, *techniques: str, **more: Any) -> System:
    uses = tuple(Use(t, verified=True) for t in techniques)
    base = ctx.atlas.systems["horovod"]
    on = {ctx.atlas.techniques[t].axis for t in techniques}
    left = {axis.id: "not-found" for axis in ctx.atlas.axes if axis.id not in on}
    kept = {"relations": (), "cells": (), "also_called": (), "unanswered": left, **more}
    return dataclasses.replace(base, id=name, name=name, uses=uses, **kept)


def page(ctx: Context, name: str) -> str:
    return system.pages(ctx)[f"systems/{name}.md"]


class Elements(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def data(text: str) -> Any:
    """What the page gives to its script."""
    found = re.findall(r'<script type="application/json">(.*?)</script>', text)
    assert len(found) == 1
    return json.loads(found[0])


# Addresses


@pytest.mark.parametrize("offline", ["0", "1"])
def test_an_address_is_what_mkdocs_would_write(
    monkeypatch: pytest.MonkeyPatch, offline: str
) -> None:
    files = pytest.importorskip("mkdocs.structure.files")
    monkeypatch.setenv("OFFLINE", offline)
    folders = offline == "0"
    for here in PAGES:
        for there in [*PAGES, "assets/js/x.js"]:
            one, two = (
                files.File(u, None, "", use_directory_urls=folders)
                for u in (here, there)
            )
            assert address.link(here, there) == two.url_relative_to(one), (here, there)


def test_an_address_keeps_its_query_and_its_fragment() -> None:
    assert address.link("systems/x.md", "papers.md#a.md") == "../../papers/#a.md"
    assert address.link("systems/x.md", "systems/index.md?q=1") == "../?q=1"


# Where systems stand


def test_a_system_is_where_its_file_says_and_nowhere_else(ctx: Context) -> None:
    one = made(ctx, "one", "one-f-one-b")
    on = standing.places(ctx.atlas, one)
    assert [p.family for p in on["sync-strategy"]] == ["sync-strategy/pipeline-flush"]
    assert on["parameter-distribution"] == on["communication-pattern"] == []


def test_what_few_systems_share_makes_them_more_alike(ctx: Context) -> None:
    a = made(ctx, "a", "ring-all-reduce", "zero-3")
    rare = made(ctx, "z", "zero-3")
    common = [made(ctx, f"c{k}", "ring-all-reduce") for k in range(9)]
    atlas = dataclasses.replace(
        ctx.atlas, systems={s.id: s for s in (a, rare, *common)}
    )
    likes = standing.likeness(atlas)["a"]
    assert likes[0].system == "z"
    assert likes[0].shared == ("zero-3",)
    assert len(likes) == standing.ALIKE
    back = next(x for x in standing.likeness(atlas)["z"] if x.system == "a")
    assert back.score == likes[0].score


def test_a_system_is_not_like_itself_nor_like_one_that_shares_nothing(
    ctx: Context,
) -> None:
    alone = made(ctx, "alone", "ring-all-reduce")
    apart = made(ctx, "apart", "zero-3")
    atlas = dataclasses.replace(ctx.atlas, systems={"alone": alone, "apart": apart})
    assert standing.likeness(atlas) == {"alone": [], "apart": []}


# The table


def test_every_system_has_a_row_that_needs_no_script(ctx: Context) -> None:
    text = systems.page(ctx)
    rows = re.findall(r'<tr data-id="([^"]+)"', text)
    assert rows == [s.id for s in standing.by_age(ctx.atlas)]
    links = {a.get("href") for t, a in Elements(text).found if t == "a"}
    assert {f"{s}/" for s in ctx.atlas.systems} <= links
    body = text[text.index("<tbody>") :]
    widths = {row.count("<td>") for row in re.findall(r"<tr .*?</tr>", body)}
    assert widths == {len(systems.COLUMNS) - 1}


def test_everything_a_row_can_be_filtered_by_is_offered(ctx: Context) -> None:
    offered = {
        f"{f['key']}:{value}"
        for f in data(systems.page(ctx))["facets"]
        for value, _ in f["options"]
    }
    had = {
        token.rstrip("?")
        for s in ctx.atlas.systems.values()
        for token in systems.tokens(ctx, s)
    }
    assert offered == had


def test_what_was_not_verified_is_marked_in_the_table(ctx: Context) -> None:
    base = made(ctx, "one", "ring-all-reduce", "zero-3")
    doubt = dataclasses.replace(base.uses[0], verified=False)
    here = other(ctx, dataclasses.replace(base, uses=(doubt, base.uses[1])))
    found = set(systems.tokens(here, here.atlas.systems["one"]))
    assert {"comm:collective?", "tech:ring-all-reduce?", "dist:sharded"} <= found
    row = re.search(r'<tr data-id="one".*?</tr>', systems.page(here))
    assert row
    assert '<span class="doubt">' in row[0].split("Sharded")[1]
    assert (
        '<span class="doubt">' not in row[0].split("Sharded")[0].split("data</td>")[1]
    )


def test_an_optimizer_in_either_place_is_found_in_both(ctx: Context) -> None:
    where = ctx.atlas.systems["horovod"].optimizer_location
    assert where
    either = dataclasses.replace(where, value="either", verified=True)
    one = made(ctx, "one", "zero-3", optimizer_location=either)
    assert {"opt:central", "opt:per-worker"} <= set(systems.tokens(ctx, one))


# One system


def test_the_page_shows_every_field(ctx: Context) -> None:
    base = ctx.atlas.systems["horovod"]
    full = dataclasses.replace(
        base,
        year=2017,
        venue_year=2018,
        hardware=Fact("a thousand abaci", verified=False, source=base.papers[0]),
        reported_run=Fact(
            "all of them at once",
            verified=True,
            source="https://example.org/run",
            where="the third table",
        ),
        also_called=("the dance",),
        surveys={"langer2020": Attribution("Table 1")},
        relations=(
            Relation(
                "succeeds", "baidu-allreduce", verified=True, source=base.papers[0]
            ),
        ),
    )
    text = page(other(ctx, full), "horovod")
    for said in (
        "published 2018",
        "a thousand abaci",
        "all of them at once",
        "example.org",
        "the third table",
        "Also called the dance.",
        "?survey=langer2020",
        f"?status={base.status}",
        "<dt>Succeeds</dt><dd><ul><li><a",
        "compare/?a=horovod&amp;b=baidu-allreduce",
        "taxonomy/systems/horovod.yaml",
    ):
        assert said in text, said
    assert '<span class="unread">not verified</span>' in text
    tags = re.search(r"^tags: (.*)$", text, flags=re.M)
    assert tags
    assert "the dance" in json.loads(tags[1])
    assert "<dt>Succeeded by</dt>" in page(other(ctx, full), "baidu-allreduce")


def test_every_kind_of_relation_has_words_for_both_ends() -> None:
    kinds = {"derived-from", "succeeds", "implements", "compares-with"}
    assert set(standing.FORWARD) == set(standing.REVERSED) == kinds


def test_a_link_is_named_by_its_site_or_its_repository() -> None:
    assert system.site("https://www.example.org/a/b") == "example.org"
    assert system.site("https://github.com/a/b/blob/main/c.py") == "github.com/a/b"
    assert system.site("https://github.com/") == "github.com"


def hostile(ctx: Context) -> Context:
    link = 'https://x.org/"onclick="z'
    fact = Fact(HOSTILE, verified=False, source=link, where=HOSTILE)
    evil = made(ctx, "evil", "ring-all-reduce", hardware=fact, reported_run=fact)
    names: dict[str, Any] = {"name": HOSTILE, "summary": HOSTILE, "made_by": HOSTILE}
    more: dict[str, Any] = {"license": HOSTILE, "also_called": (HOSTILE,)}
    return other(ctx, dataclasses.replace(evil, **names, **more))


@pytest.mark.parametrize("view", ["system", "systems", "compare", "timeline"])
def test_no_text_becomes_markup(ctx: Context, view: str) -> None:
    here = hostile(ctx)
    text = {
        "system": lambda: page(here, "evil"),
        "systems": lambda: systems.page(here),
        "compare": lambda: compare.comparison(here),
        "timeline": lambda: chronology.timeline(here),
    }[view]()
    assert "alert" in text
    for tag, a in Elements(text).found:
        assert tag != "script" or "src" in a or a == {"type": "application/json"}
        assert "onclick" not in a
        assert not (a.get("href") or "").startswith("javascript")
    if view in ("systems", "compare"):
        data(text)


# The comparison


def test_everything_can_be_compared_by_a_name_of_its_own(ctx: Context) -> None:
    twin = made(ctx, "ring-all-reduce", "ring-all-reduce")
    here = other(ctx, twin)
    things = compare.things(here)
    assert len(things) == len(here.atlas.systems) + len(here.atlas.techniques)
    assert things["ring-all-reduce"]["rows"]["kind"] == ["system"]
    assert things["technique.ring-all-reduce"]["rows"]["kind"] == ["technique"]
    to = compare.compare_link(here, "ring-all-reduce", "map.md", kind="technique")
    assert to == "../compare/?a=technique.ring-all-reduce"


def test_the_page_can_load_all_that_it_offers(ctx: Context) -> None:
    found = compare.scripts(ctx)
    spec = data(compare.comparison(ctx))
    assert spec["parts"] == "../assets/js/compare/"
    names = [name for name, *_ in spec["index"]]
    assert set(found) == {f"{compare.PARTS}{n}.js" for n in names}
    for name, called, kind, year, also in spec["index"]:
        script = found[f"{compare.PARTS}{name}.js"]
        inside = script.removeprefix(f'atlasCompare("{name}",').removesuffix(")\n")
        thing = json.loads(inside)
        assert set(thing["rows"]) <= set(compare.ROWS)
        assert [called, also] == [thing["name"], thing["also"]]
        assert [[kind], [year]] == [thing["rows"]["kind"], thing["rows"]["year"]]


def test_every_row_of_the_comparison_has_a_title_and_is_used(ctx: Context) -> None:
    used = {row for t in compare.things(ctx).values() for row in t["rows"]}
    assert used == set(compare.ROWS)


def test_the_comparison_carries_doubts_and_formulas(ctx: Context) -> None:
    fact = Fact("abaci", verified=False)
    here = other(ctx, made(ctx, "one", "zero-3", hardware=fact))
    things = compare.things(here)
    assert things["one"]["rows"]["hardware"] == [["abaci", "", 1]]
    claims = things["ring-all-reduce"]["rows"]["claims"]
    assert [c[3] for c in claims if len(c) == 4 and "p" in c[3]]


def test_suggested_comparisons_name_each_thing_once() -> None:
    wanted = [("a", "b"), ("b", "a"), ("a", "c"), ("c", "c"), ("c", "d")]
    assert list(compare.starts(wanted)) == [("a", "b"), ("c", "d")]
    many = [(f"x{k}", f"y{k}") for k in range(40)]
    assert len(list(compare.starts(many))) == compare.STARTS


def test_without_script_the_comparison_leads_to_the_data(ctx: Context) -> None:
    text = compare.comparison(ctx)
    assert "atlas compare horovod pytorch-ddp" in text
    assert '<a href="../taxonomy.json">' in text
    links = {a.get("href") for t, a in Elements(text).found if t == "a"}
    assert {f"../systems/{s}/" for s in ctx.atlas.systems} <= links
    assert {f"../{t.path}/" for t in ctx.atlas.techniques.values()} <= links


# The timeline


def test_the_timeline_has_every_year_and_everything_that_has_a_place(
    ctx: Context,
) -> None:
    text = chronology.timeline(ctx)
    years = re.findall(r'<li data-year="(\d+)" id="y\1"', text)
    assert years[:2] == ["2010", "2011"]
    assert [int(y) for y in years] == list(range(2010, int(years[-1]) + 1))
    assert int(years[-1]) >= 2026
    links = {a.get("href") for t, a in Elements(text).found if t == "a"}
    assert {f"../{t.path}/" for t in ctx.atlas.techniques.values()} <= links
    placed = [s for s in ctx.atlas.systems.values() if s.uses or s.cells]
    assert {f"../systems/{s.id}/" for s in placed} <= links


def test_an_item_stands_in_its_year_and_in_its_families(ctx: Context) -> None:
    old = made(ctx, "old", "ring-all-reduce", year=1999)
    here = other(ctx, old)
    axis = next(a for a in ctx.atlas.axes if a.id == "communication-pattern")
    found = chronology.grid(here, axis)
    assert "old" in [i.name for i in found[chronology.BEFORE]["collective"]]
    assert "old</a> (1999)" in chronology.timeline(here)
    horovod = ctx.atlas.systems["horovod"]
    assert horovod.name in [i.name for i in found[horovod.year]["collective"]]


# The site's contents


def test_single_systems_stay_out_of_the_contents(ctx: Context) -> None:
    listed = json.dumps(pages.nav(ROOT, ctx))
    for kept in ("systems/index.md", "compare.md", "timeline.md"):
        assert listed.count(f'"{kept}"') == 1
    assert "systems/horovod.md" not in listed


def test_only_single_systems_are_left_out() -> None:
    pathspec = pytest.importorskip("pathspec")
    yaml = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    found = re.search(r"^not_in_nav: \|\n((?:  .*\n)+)", yaml, flags=re.M)
    assert found
    lines = [line.strip() for line in found[1].splitlines()]
    spec = pathspec.PathSpec.from_lines("gitignore", lines)
    assert spec.match_file("systems/horovod.md")
    assert not spec.match_file("systems/index.md")
    assert not spec.match_file("map.md")
