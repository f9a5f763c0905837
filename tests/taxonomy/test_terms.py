"""Terms: words explained in prose alone, surveys held against records, papers whole."""

import dataclasses
import html
import html.parser
import json
import re
from pathlib import Path
from typing import Any

import pytest

from atlas.site import glossary, names, papers, surveys
from atlas.site.slim import slim
from atlas.site.text import md, slug
from atlas.site.tips import Tips, anchor
from atlas.taxonomy import Word, bibtex
from atlas.taxonomy.relation import parse
from atlas.views.context import Context, read
from atlas.views.papers import entries

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = '<img src=x onerror=alert(1)> " & `x`'
RING = "communication-pattern/collective/ring-all-reduce"
UNREAD = '<span class="unread">not verified</span>'


WORDS = (
    Word("all-reduce", "a sum <everywhere> & back", ("allreduce",)),
    Word("AMP", "two precisions"),
    Word("micro-batch", "a part"),
    Word("batch", "samples", tip=False),
    Word("master weights", "the copy"),
)
TIPS = Tips(WORDS)


def explained(html: str) -> list[str]:
    return re.findall(
        r'<a class="term" href="g/#[\w-]+" title="[^"]*">(.*?)</a>',
        TIPS.explain(html, "g/"),
        flags=re.S,
    )


# Words in prose


def test_a_word_is_explained_once_where_it_first_stands() -> None:
    page = "<p>An all-reduce, then an all-reduce, or allreduce.</p><li>all-reduce</li>"
    assert explained(page) == ["all-reduce"]
    assert TIPS.explain(page, "g/").count("all-reduce</a>, then an all-reduce,") == 1


@pytest.mark.parametrize(
    "page",
    [
        "<h2>all-reduce</h2>",
        "<p><code>all-reduce</code></p>",
        "<pre><code><span>all-reduce</span></code></pre>",
        '<p><a href="x">the all-reduce</a></p>',
        "<table><tr><td><p>all-reduce</p></td></tr></table>",
        "<figure><svg><text>all-reduce</text></svg><p>all-reduce</p></figure>",
        '<p><span class="arithmatex">all-reduce</span></p>',
        '<p class="crumb">all-reduce</p>',
        '<p class="badges">all-reduce</p>',
        '<script type="application/json">"<p>all-reduce</p>"</script>',
        "<p><!-- all-reduce --></p>",
        '<div class="badges">all-reduce</div>',
        '<p><img alt="all-reduce"></p>',
        "<li><button>all-reduce</button><label>all-reduce</label></li>",
        "<p>ring-all-reduce, all-reduce-like, torch.all-reduce</p>",
    ],
)
def test_nothing_but_prose_is_explained(page: str) -> None:
    assert TIPS.explain(page, "g/") == page


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ("<p>All-reduces are sums.</p>", ["All-reduces"]),
        ("<dd>Two micro&#45;batches</dd>", ["micro&#45;batches"]),
        ("<li>a micro batch</li>", ["micro batch"]),
        ('<p class="lede">master\nweights</p>', ["master\nweights"]),
        ("<p>AMP &amp; more</p>", ["AMP"]),
        ("<p>1 &amp; 2 amp</p>", []),
        ("<p>the batch</p>", []),
        ("<p>in <em>all-reduce</em></p>", ["all-reduce"]),
        ("<p>(all-reduce)</p>", ["all-reduce"]),
    ],
)
def test_a_word_is_found_in_its_forms(page: str, found: list[str]) -> None:
    assert explained(page) == found


def test_a_definition_cannot_leave_its_title() -> None:
    tips = Tips([Word("barrier", HOSTILE)])
    page = tips.explain("<p>a barrier</p>", "g/")
    attributes = attributes_of(page, "a")
    assert attributes[0]["title"] == HOSTILE
    assert "<img" not in page


def test_without_a_glossary_pages_are_as_they_were() -> None:
    page = "<p>all-reduce</p>"
    assert Tips([]).explain(page, "g/") == page


class _Attributes(html.parser.HTMLParser):
    def __init__(self, tag: str) -> None:
        super().__init__()
        self.tag = tag
        self.found: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == self.tag:
            self.found.append(dict(attrs))


def attributes_of(text: str, tag: str) -> list[dict[str, str | None]]:
    parser = _Attributes(tag)
    parser.feed(text)
    return parser.found


# The glossary


def test_the_glossary_has_the_words_of_the_field_and_of_the_atlas(ctx: Context) -> None:
    words = ctx.atlas.glossary
    assert len(words) >= 130
    known = {n.casefold() for w in words for n in (w.term, *w.aliases)}
    asked = "locking straggler staleness bubble micro-batch flush halo shard replica "
    asked += "payload round bucket busbw mfu hfu zero rank backend nccl gloo mpi "
    asked += "rendezvous nvlink pcie rdma infiniband all-gather claim mutant record "
    asked += "emulated replay"
    more = {"wire bytes", "error feedback", "alpha-beta model", "critical batch size"}
    more |= {"world size", "process group", "master weights", "loss scale", "dry run"}
    more |= {"gradient clipping", "virtual clock"}
    assert {*asked.split(), *more} <= known


def test_a_definition_is_one_or_two_sentences_and_not_its_own_word(
    ctx: Context,
) -> None:
    for word in ctx.atlas.glossary:
        sentences = re.findall(r"[.:;!?](?:\s|$)", word.says)
        assert 1 <= len(sentences) <= 5, word.term
        assert len(word.says) <= 330, word.term
        assert word.says.endswith("."), word.term


def test_every_word_has_an_anchor_of_its_own(
    ctx: Context, made: dict[str, str | bytes]
) -> None:
    text = str(made["glossary.md"])
    anchors = re.findall(r'<h3 id="([^"]+)">', text)
    assert len(anchors) == len(set(anchors)) == len(ctx.atlas.glossary)
    for word in ctx.atlas.glossary:
        assert f'<h3 id="{anchor(word.term)}">' in text
        for alias in word.aliases:
            assert glossary.md(alias) in text


def test_hostile_words_stay_words(ctx: Context) -> None:
    word = Word(HOSTILE, HOSTILE, (HOSTILE,))
    atlas = dataclasses.replace(ctx.atlas, glossary=(word,))
    text = glossary.page(Context(ROOT, atlas))
    assert "<img" not in text
    assert "onerror" in text


# Surveys


@pytest.mark.parametrize("name", ["a / b == 1.5", "-1 < a < b", "a == 1 and b > 2"])
def test_a_relation_is_arithmetic_on_names(name: str) -> None:
    assert parse(name).names <= {"a", "b"}


NO_RELATION = ["a", "a == exit()", "a.b == 1", "a[0] == 1", "a == 'x'", "a is b"]
NO_RELATION += ["(lambda: 1)() == 1", "a ** b == 1", "not a == 1", "a < 1 or a > 2"]
NO_RELATION += ["a == True", "a == 1" + " and a == 1" * 40, "", "a == (", "a in b"]
NO_RELATION += ["__import__('os') == 1"]


@pytest.mark.parametrize("text", NO_RELATION)
def test_a_relation_runs_nothing(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text)


def test_a_relation_is_judged() -> None:
    made = parse("a / b == 1.5 and b > 0")
    assert made.holds({"a": 3, "b": 2})
    assert not made.holds({"a": 4, "b": 2})
    assert not made.holds({"a": 3, "b": 0})
    assert made.chains[0].values({"a": 3, "b": 2}) == (1.5, 1.5)


def comparisons() -> list[tuple[str, Any]]:
    atlas = read(ROOT).atlas
    return [(v.id, c) for v in atlas.surveys.values() for c in v.comparisons]


@pytest.mark.parametrize(
    ("survey", "comparison"), comparisons(), ids=lambda x: getattr(x, "id", x)
)
def test_the_records_still_say_what_a_survey_s_page_says(
    survey: str, comparison: Any, ctx: Context
) -> None:
    found = surveys.seen(ctx, comparison)
    assert found.holds is True, (survey, comparison.holds, found.values)


def test_five_surveys_are_told_whole(ctx: Context) -> None:
    assert len(ctx.atlas.surveys) == 5
    for v in ctx.atlas.surveys.values():
        assert v.about
        assert len(v.taxonomy) >= 3
        assert len(v.results) >= 4
        assert len(v.comparisons) >= 5
        assert all(1 <= len(c.figures) <= 4 for c in v.comparisons)


def test_a_survey_s_page_counts_from_the_data(
    ctx: Context, made: dict[str, str | bytes]
) -> None:
    for v in ctx.atlas.surveys.values():
        named = [t for t in ctx.atlas.techniques.values() if v.id in t.surveys]
        run = [t for t in named if ctx.runs(t.id, "gloo")]
        text = str(made[f"surveys/{v.id}.md"])
        assert f"The survey names {len(named)} techniques and " in text
        assert f"; {len(run)} of the techniques run here." in text
        for t in named:
            said = t.surveys[v.id]
            row = f"| {md(said.as_ or '')} | {md(said.where)} |"
            assert f"(../{t.path}.md) {row}" in text
        for s in ctx.atlas.systems.values():
            assert (f"(../systems/{s.id}.md)" in text) == (v.id in s.surveys)


def test_a_survey_s_numbers_come_from_the_records(ctx: Context) -> None:
    v = ctx.atlas.surveys["nichols2021"]
    c = next(c for c in v.comparisons if c.id == "zero-volume")
    record = json.loads((ROOT / "measurements/gloo/zero-3.json").read_text())
    run = next(r for r in record["runs"] if r["p"] == 3)
    volume = run["ranks"][0]["measured"]["volume"]
    assert surveys.seen(ctx, c).values["stage_3"] == volume


def test_a_record_that_changed_turns_the_page_red(ctx: Context) -> None:
    v = ctx.atlas.surveys["nichols2021"]
    text = entries(papers.source(ctx))[v.paper]
    changed = Context(ROOT, ctx.atlas)
    record = json.loads(json.dumps(ctx.record("zero-3", "gloo")))
    for run in record["runs"]:
        for rank in run["ranks"]:
            rank["measured"]["volume"] *= 2
    changed._records["zero-3", "gloo"] = record
    assert "no longer" not in surveys.page(ctx, v, text)
    assert surveys.page(changed, v, text).count("our records no longer say so") == 1


def test_a_missing_record_is_said(ctx: Context) -> None:
    v = ctx.atlas.surveys["laskin2020"]
    text = entries(papers.source(ctx))[v.paper]
    bare = Context(ROOT, ctx.atlas)
    bare._records["local-parallelism", "gloo"] = None
    assert '<span class="badge warn">not recorded</span>' in surveys.page(bare, v, text)


def test_what_was_not_read_is_marked(made: dict[str, str | bytes]) -> None:
    atlas = read(ROOT).atlas
    for v in atlas.surveys.values():
        unread = sum(not term.verified for term in v.terms)
        assert str(made[f"surveys/{v.id}.md"]).count(UNREAD) == unread
    walk = atlas.crosswalk
    assert walk is not None
    marks = sum(not u.verified for c in walk.concepts for u in c.words)
    marks += sum(not s.verified for a in walk.ambiguities for s in a.senses)
    assert str(made["crosswalk.md"]).count(UNREAD) == marks >= 4


# The crosswalk


def test_the_crosswalk_has_every_concept_in_every_column(
    ctx: Context, made: dict[str, str | bytes]
) -> None:
    walk = ctx.atlas.crosswalk
    assert walk is not None
    assert [c.id for c in walk.columns] == [
        "langer",
        "nichols",
        "paradl",
        "nagrecha",
        "flexflow",
        "torch",
    ]
    text = str(made["crosswalk.md"])
    assert text.count("<td data-of=") == len(walk.concepts) * len(walk.columns)
    assert "### centralized and decentralized { #decentralized }" in text
    assert {a.id for a in walk.ambiguities} >= {"decentralized", "one-f-one-b"}
    homes = {f for c in walk.concepts for f in c.families}
    assert {f"parameter-distribution/{f}" for f in ("inter-layer", "sharded")} <= homes


# Papers


def test_every_paper_has_an_anchor_bibtex_and_what_rests_on_it(
    ctx: Context, made: dict[str, str | bytes]
) -> None:
    text = str(made["papers.md"])
    sections = re.findall(r'<section class="paper">.*?</section>', text, flags=re.S)
    assert len(sections) == len(ctx.atlas.papers)
    for section, p in zip(
        sections,
        sorted(ctx.atlas.papers.values(), key=lambda p: (p.year, p.key)),
        strict=True,
    ):
        assert f'<h3 id="{slug(p.key)}">' in section
        assert f"{{{p.key}," in section
        assert p.link.replace("&", "&amp;") in section


def test_what_rests_on_a_paper_is_of_every_kind(ctx: Context) -> None:
    rests = papers.resting(ctx)
    zero = rests["rajbhandari2020zero"]
    assert set(zero) >= {"Techniques", "Systems", "Words"}
    assert any("zero-3" in rest.to for rest in zero["Techniques"])
    assert "Surveys" in rests["nichols2021survey"]
    for key, p in ctx.atlas.papers.items():
        used = sum(len(v) for v in rests[key].values())
        assert used or p.key in cited_elsewhere(), key


def cited_elsewhere() -> set[str]:
    """Keys in files of the taxonomy that are no technique, system, survey or word."""
    kept = ("choose.yaml", "models", "clusters", "axes.yaml")
    found: set[str] = set()
    for path in (ROOT / "taxonomy").rglob("*.yaml"):
        inside = path.relative_to(ROOT / "taxonomy").parts[0]
        if inside in kept:
            found |= set(re.findall(r"[a-z]+\d{4}[a-z0-9]*", path.read_text()))
    return found


def test_the_bibliography_can_be_downloaded_and_copied(
    made: dict[str, str | bytes],
) -> None:
    whole = (ROOT / "taxonomy/papers.bib").read_text(encoding="utf-8")
    assert made["papers.bib"] == whole
    cut = entries(whole)
    assert list(cut) == [entry.key for entry in bibtex.parse(whole, "x")[0]]
    for key, text in cut.items():
        again, problems = bibtex.parse(text, "x")
        assert not problems, key
        assert [entry.key for entry in again] == [key]


# The build


def prose_links(page: Path) -> list[dict[str, str | None]]:
    found = attributes_of(page.read_text(encoding="utf-8"), "a")
    return [a for a in found if a.get("class") == "term"]


def test_every_explained_word_leads_to_its_entry(built: Path) -> None:
    entries = set(
        re.findall(r'<h3 id="([^"]+)"', (built / "glossary/index.html").read_text())
    )
    pages_with = 0
    for page in built.rglob("*.html"):
        links = prose_links(page)
        pages_with += bool(links)
        targets = [str(a["href"]) for a in links]
        assert len(targets) == len(set(targets)), page
        for a in links:
            to, _, fragment = str(a["href"]).partition("#")
            target = (page.parent / to).resolve()
            assert target == (built / "glossary").resolve(), page
            assert fragment in entries
            assert a["title"]
    assert pages_with > 100
    assert not prose_links(built / "glossary/index.html")


def test_formulas_alone_load_katex(built: Path) -> None:
    for page in built.rglob("index.html"):
        text = page.read_text(encoding="utf-8")
        assert ("katex.min.js" in text) == ("arithmatex" in text), page
    assert "katex.min.js" in (built / RING / "index.html").read_text()
    assert "katex.min.js" not in (built / "papers/index.html").read_text()


def test_indentation_goes_and_code_stays() -> None:
    code = "<pre><code>a\n\n    b\n</code></pre><script>\n\n  x\n</script>"
    page = f"<ul>\n\n      <li>a   b</li>   \n    </ul>\n{code}\n\n<p>c</p>"
    assert slim(page) == f"<ul>\n<li>a   b</li>\n</ul>\n{code}\n<p>c</p>"


def test_built_pages_are_not_indented(built: Path) -> None:
    for page in built.rglob("index.html"):
        text = page.read_text(encoding="utf-8")
        assert slim(text) == text, page


def test_every_other_name_is_in_the_search_index(built: Path, ctx: Context) -> None:
    index = json.loads((built / "search/search_index.json").read_text())
    found: dict[str, str] = {}
    for doc in index["docs"]:
        said = " ".join([doc["title"], doc["text"], *doc.get("tags", [])])
        page = doc["location"].split("#")[0]
        found[page] = found.get(page, "") + " " + plain(said)
    missing = []
    named = [(f"{t.path}/", t.also_called) for t in ctx.atlas.techniques.values()]
    named += [(f"systems/{s.id}/", s.also_called) for s in ctx.atlas.systems.values()]
    named += [("glossary/", w.aliases) for w in ctx.atlas.glossary]
    for page, called in named:
        missing += [f"{page}: {n}" for n in called if plain(n) not in found[page]]
    assert not missing


def plain(text: str) -> str:
    bare = html.unescape(re.sub(r"<[^>]+>", "", text))
    return " ".join(bare.replace("\u2019", "'").casefold().split())


def test_every_name_is_offered_first(ctx: Context) -> None:
    rows = list(names.entries(ctx))
    offered = {(to, called) for _, _, to, all_ in rows for called in all_}
    for t in ctx.atlas.techniques.values():
        for called in (t.name, *t.also_called):
            assert (f"{t.path}/", called) in offered
    for s in ctx.atlas.systems.values():
        for called in (s.name, *s.also_called):
            assert (f"systems/{s.id}/", called) in offered
    for word in ctx.atlas.glossary:
        for called in (word.term, *word.aliases):
            assert (f"glossary/#{anchor(word.term)}", called) in offered


def test_names_on_files_lead_to_files(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFLINE", "1")
    found = {to.partition("#")[0] for _, _, to, _ in names.entries(ctx)}
    assert f"{RING}.html" in found
    assert all(to.endswith(".html") for to in found)


def test_a_name_cannot_leave_the_script(ctx: Context) -> None:
    word = Word("</script><script>alert(1)", "x \u2028 `", ("'\"\\",))
    atlas = dataclasses.replace(ctx.atlas, glossary=(word,))
    text = names.script(Context(ROOT, atlas))
    rows = json.loads(text.removeprefix("window.atlasNames = "))
    assert rows[-1][0] == word.term
    assert rows[-1][3] == [word.term, "'\"\\"]
