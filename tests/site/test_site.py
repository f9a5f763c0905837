"""The site's pages: pure, escaped, complete, linked, light, and honest when stale."""

import dataclasses
import functools
import hashlib
import html
import html.parser
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from atlas.formulas import FORMULAS
from atlas.mutants.score import Score
from atlas.record import source_hash
from atlas.script.latex import law_latex
from atlas.site import (
    annotate,
    coverage,
    curve,
    evidence,
    notebooks,
    overview,
    pages,
    replay,
    technique,
)
from atlas.site.scene import LIMIT, scene
from atlas.site.slim import PLAIN, slim, slim_asset
from atlas.site.still import Shapes
from atlas.site.text import fence, md, number
from atlas.taxonomy import Mutant, Sighting, Technique
from atlas.verdict import judge
from atlas.views import proof
from atlas.views.context import Context, read

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "<script>alert(1)</script> [x](javascript:alert(1)) *a|b* $y$ {: onclick=z}"
LIGHT = 900_000  # bytes: the heaviest that a page and its assets may be


def build(root: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "-d", str(out), *more]
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False
    )


# Traces, as a record keeps them


def ring(p: int, label: str = "{}") -> dict[str, Any]:
    """Each rank passes to its right, p-1 times, 8 bytes a time."""
    ranks = []
    for r in range(p):
        events: list[dict[str, Any]] = []
        for k in range(p - 1):
            at, chunk = k * 0.01, label.format((r - k) % p)
            start = len(events)
            events += [
                {"kind": "begin", "at": at, "name": "reduce", "label": chunk},
                {"kind": "send", "at": at, "peer": (r + 1) % p, "bytes": 8}
                | {"name": "send", "label": chunk, "until": at + 0.005},
                {"kind": "recv", "at": at, "peer": (r - 1) % p, "bytes": 8}
                | {"name": "recv", "until": at + 0.006},
                {"kind": "wait", "at": at, "until": at + 0.005, "of": start + 1},
                {
                    "kind": "wait",
                    "at": at + 0.005,
                    "until": at + 0.006,
                    "of": start + 2,
                },
                {"kind": "end", "at": at + 0.007, "of": start},
            ]
        ranks.append({"rank": r, "events": events})
    return {"p": p, "given": {}, "ranks": ranks}


def straggler() -> dict[str, Any]:
    """Rank 1 works three times as long; rank 0 waits for it."""
    zero = [
        {"kind": "begin", "at": 0.0, "name": "compute", "cost": 1},
        {"kind": "end", "at": 0.1, "of": 0},
        {
            "kind": "recv",
            "at": 0.1,
            "peer": 1,
            "bytes": 4,
            "name": "recv",
            "until": 0.3,
        },
        {"kind": "wait", "at": 0.1, "until": 0.3, "of": 2},
    ]
    one = [
        {"kind": "begin", "at": 0.0, "name": "compute", "cost": 3},
        {"kind": "end", "at": 0.28, "of": 0},
        {"kind": "send", "at": 0.28, "peer": 0, "bytes": 4, "name": "send"},
    ]
    return {"p": 2, "ranks": [{"rank": 0, "events": zero}, {"rank": 1, "events": one}]}


def drawn(run: dict[str, Any], **more: Any) -> dict[str, Any]:
    found = scene(run, **more)
    assert found is not None
    return found


def test_rounds_are_counted_and_labels_travel_with_messages() -> None:
    made = drawn(ring(4), predicted=[24] * 4)
    assert made["modes"][0] | {"end": 3} == made["modes"][0]
    assert made["modes"][0]["id"] == "rounds"
    assert len(made["messages"]) == 12
    assert {(m[0], m[1], m[2]) for m in made["messages"] if m[5] == 0} == {
        (r, (r + 1) % 4, str(r)) for r in range(4)
    }
    assert made["phases"] == [["reduce", 0, 3]]
    assert replay.totals(made) == [24.0] * 4


def test_virtual_time_shows_the_wait_for_a_straggler() -> None:
    made = drawn(straggler())
    assert made["modes"][0]["id"] == "virtual"
    assert made["modes"][0]["end"] == 3
    assert made["waits"][0] == [[0, 1, 3]]
    assert made["waits"][1] == [[0, 100.0, 300.0]]
    assert made["modes"][1]["end"] == 300.0


def test_a_run_without_its_traces_is_not_drawn() -> None:
    run = ring(3)
    del run["ranks"][1]["events"]
    assert scene(run) is None


def test_traces_that_do_not_fit_together_are_not_drawn() -> None:
    run = ring(3)
    run["ranks"][1]["events"] = run["ranks"][1]["events"][:1]
    assert scene(run) is None


def test_a_long_trace_is_cut_and_says_so() -> None:
    made = drawn(ring(26))
    total = 2 * 26 * 25  # a span and a message each time
    assert made["of"] == total > LIMIT
    assert made["shown"] == sum(len(made[k]) for k in ("spans", "messages")) <= LIMIT
    assert f"{made['shown']} of {total} things" in replay.figure(made, "x", "y")


def still(figure: str) -> ElementTree.Element:
    """The picture in a figure that shows without a script."""
    drawing = figure[figure.index("<svg") : figure.index("</svg>") + len("</svg>")]
    return ElementTree.fromstring(drawing)  # noqa: S314 - drawn here


def shapes_in(picture: ElementTree.Element) -> dict[str, ElementTree.Element]:
    return {g.attrib["id"]: g for g in picture.iter("g") if "id" in g.attrib}


def blocks(
    picture: ElementTree.Element, kind: str, shapes: dict[str, ElementTree.Element]
) -> int:
    """How many blocks of a kind are seen, with those that it refers to."""
    used = [shapes[use.attrib["href"][1:]] for use in picture.iter("use")]
    groups = [g for part in (picture, *used) for g in part.iter("g")]
    return sum(len(g) for g in groups if g.get("class", "").split()[:1] == [kind])


def strokes(picture: ElementTree.Element, kind: str) -> int:
    """How many separate lines of a kind its paths draw."""
    paths = [p for p in picture.iter("path") if p.attrib["class"].split()[0] == kind]
    return sum(p.attrib["d"].count("M") for p in paths)


def test_the_picture_without_script_has_every_lane_message_and_total() -> None:
    figure = replay.figure(drawn(ring(4), predicted=[24] * 4), "replay", "A run.")
    picture = still(figure)
    assert blocks(picture, "chip", shapes_in(picture)) == 12
    assert strokes(picture, "message") == strokes(picture, "dot") == 12
    assert strokes(picture, "lane") == 4
    assert figure.count("<output>24</output>") == 4
    assert "predicted: 24" in figure


def test_a_label_cannot_leave_the_figure() -> None:
    evil = "</script><img src=x onerror=alert(1)>`"
    figure = replay.figure(drawn(ring(3, evil)), "replay", evil)
    assert "<img" not in figure
    assert figure.count("</script>") == 1
    inside = figure[figure.index('json">') + 6 : figure.index("</script>")]
    data = json.loads(inside)
    assert data["words"][data["messages"][0][2]] == evil


def alike(p: int) -> dict[str, Any]:
    """Every rank does the same at the same time."""
    events = [
        {"kind": "begin", "at": 0.0, "name": "compute", "cost": 2},
        {"kind": "end", "at": 0.2, "of": 0},
    ]
    return {"p": p, "ranks": [{"rank": r, "events": events} for r in range(p)]}


def test_what_a_page_has_drawn_it_refers_to() -> None:
    shapes = Shapes()
    first = still(replay.figure(drawn(alike(3)), "one", "A run.", shapes))
    second = still(replay.figure(drawn(alike(3)), "two", "Another.", shapes))
    known = shapes_in(first)
    assert len(list(first.iter("rect"))) == 1
    assert not list(second.iter("rect"))
    assert not shapes_in(second)
    for picture in (first, second):
        assert blocks(picture, "span", known) == 3
        at = [use.get("y") for use in picture.iter("use")]
        assert at[-2:] == ["122", "174"]


def test_a_wait_behind_the_work_of_its_rank_is_left_out() -> None:
    run = straggler()
    run["ranks"][1]["events"] += [
        {"kind": "begin", "at": 0.3, "name": "compute", "cost": 1},
        {"kind": "wait", "at": 0.32, "until": 0.35, "of": 2},
        {"kind": "end", "at": 0.4, "of": 3},
    ]
    made = drawn(run)
    assert made["modes"][1]["end"] == 400.0
    assert made["waits"][1] == [[0, 100.0, 300.0]]


def test_the_script_is_given_the_scene_to_a_tick_and_nothing_vanishes() -> None:
    run = straggler()
    run["ranks"][0]["events"][1]["at"] = 0.00001  # a moment, but not none
    made = drawn(run)
    data = replay.packed(made)
    tick = data["tick"]
    assert data["modes"][1]["end"] >= made["modes"][1]["end"]
    for short, whole in zip(data["spans"], made["spans"], strict=True):
        begin, ticks = short[-2:]
        assert isinstance(begin, int)
        assert abs(begin * tick - whole[-2]) <= tick / 2
        assert ticks >= 1
        assert abs((begin + ticks) * tick - whole[-1]) <= tick
        assert [data["words"][i] for i in short[1:3]] == whole[1:3]


# Text


def test_markup_in_text_is_only_text() -> None:
    markdown = pytest.importorskip("markdown")
    known = ["tables", "attr_list", "md_in_html", "pymdownx.arithmatex"]
    shown = markdown.markdown(md(HOSTILE), extensions=known)
    tags = {t for t, _ in elements(shown)}
    assert tags <= {"p", "em"}
    assert "&lt;script&gt;" in shown.replace("&#60;", "&lt;").replace("&#62;", "&gt;")


def test_numbers_are_written_as_people_write_them() -> None:
    assert number(1200032) == "1\u202f200\u202f032"
    assert number(7.1e-15) == "7.1e-15"
    assert number(0.0) == "0"


def test_a_fence_is_longer_than_any_inside() -> None:
    block = fence("a\n````\nb", "{ .python }")
    assert block.startswith("````` {")
    assert block.rstrip().endswith("\n`````")


def test_notes_move_from_comments_to_numbers() -> None:
    shown = annotate.annotate("a = 1\n#: why\n#: so\nb = 2\n#: then\nc = 3\n")
    assert shown.code == "a = 1\nb = 2  # (1)!\nc = 3  # (2)!\n"
    assert shown.notes == ("why so", "then")


def test_the_docstring_is_told_without_its_first_and_torchrun_lines() -> None:
    told = annotate.explanation(
        '"""First.\n\n    torchrun -m x\n\nSecond *word*.\n\n    a   b\n"""\n'
    )
    assert "First" not in told
    assert "torchrun" not in told
    assert "Second <em>word</em>" in told
    assert "\na   b\n```" in told


def test_the_curve_reaches_1024_and_carries_the_points() -> None:
    assert curve.grid(1, None)[-1] == 1024
    assert curve.grid(2, 8) == [2, 3, 4, 5, 6, 7, 8]
    line = tuple((p, 2.0 * (p - 1)) for p in curve.grid(1, None))
    made = curve.draw(curve.Curve("rounds", line, (("dry", ((1024, 2046.0),)),)))
    assert "<title>dry, p = 1024: 2\u202f046</title>" in made


def test_zero_is_not_drawn_as_one_on_a_logarithmic_axis() -> None:
    made = curve.draw(curve.Curve("x", ((1, 0.0), (2, 1.0), (1024, 5000.0)), ()))
    heights = [float(xy.split(",")[1]) for xy in re.findall(r"[\d.]+,[\d.]+", made)]
    assert heights[0] - heights[1] > 10
    assert ">0</text>" in made


# Pages


def test_rendering_twice_gives_the_same_bytes(made: dict[str, str | bytes]) -> None:
    assert pages.render(ROOT) == made


ORDER = ["The run, replayed", "How it works", "Predicted, then measured"]
ORDER += [
    "Same bits?",
    "Where its runs place it",
    "As p grows",
    "The code",
    "Run it",
    "Break it",
    "In production",
]
ORDER += ["Who uses it", "Papers", "API"]
UNWRITTEN = ["What its run will have to show", "In production", "Who uses it"]
UNWRITTEN += ["Papers", "See also", "Write it"]


def test_every_technique_page_has_its_sections_in_order(ctx: Context) -> None:
    for t in ctx.atlas.techniques.values():
        text = re.sub(r"^(`{3,}).*?^\1$", "", technique.page(ctx, t), flags=re.S | re.M)
        heads = re.findall(r"^## (.+)$", text, flags=re.M)
        assert heads == (ORDER if ctx.written(t) else UNWRITTEN), t.id
        assert text.index("# ") < text.index('class="lede"') < text.index('"badges"')
        assert text.index('"badges"') < text.index('class="when"')
        assert text.index('class="when"') < text.index("Gives") < text.index("Costs")
        assert text.index("Costs") < text.index("\n## ")


def hostile(t: Technique) -> Technique:
    mutant = Mutant("m", HOSTILE, HOSTILE, HOSTILE, (t.claims[0].id,), False)
    seen = dataclasses.replace(mutant, seen_in=Sighting(HOSTILE, "https://x.org/(a)"))
    return dataclasses.replace(
        t,
        **dict.fromkeys(("name", "summary", "use_when", "avoid_when"), HOSTILE),
        **dict.fromkeys(("pros", "cons", "not_shown"), HOSTILE),
        also_called=(HOSTILE,),
        claims=tuple(dataclasses.replace(c, says=HOSTILE) for c in t.claims),
        mutants=(seen,),
    )


EXTENSIONS = ["attr_list", "def_list", "md_in_html", "tables", "toc"]
EXTENSIONS += ["pymdownx.arithmatex", "pymdownx.details", "pymdownx.superfences"]


def test_no_text_of_the_taxonomy_becomes_markup(ctx: Context) -> None:
    markdown = pytest.importorskip("markdown")
    for t in ctx.atlas.techniques.values():
        text = technique.page(ctx, hostile(t))
        front, body = text[4:].split("\n---\n", 1)
        assert "<script" not in front
        shown = markdown.markdown(body, extensions=EXTENSIONS)
        for tag, a in elements(shown):
            assert tag != "script" or a == {"type": "application/json"}
            assert "onclick" not in a
            assert not (a.get("href") or "").startswith("javascript")
        assert "alert" in shown


def test_what_is_missing_is_said(ctx: Context, tmp_path: Path) -> None:
    t = next(iter(ctx.atlas.techniques.values()))
    shutil.copytree(ROOT / "taxonomy", tmp_path / "taxonomy")
    bare = read(tmp_path)
    text = technique.page(bare, bare.atlas.techniques[t.id])
    assert technique.NOT_WRITTEN in text
    assert t.exemplar.as_posix() in text
    assert all(md(c.says[1:]) in text for c in t.claims)
    shutil.copytree(ROOT / "exemplars", tmp_path / "exemplars")
    text = technique.page(read(tmp_path), t)
    assert "NCCL: not yet run on GPUs" in text
    assert "gloo: not yet run" in text
    assert "No run is recorded yet" in text


def test_every_link_between_pages_resolves(made: dict[str, str | bytes]) -> None:
    docs = ROOT / "docs"
    known = set(made) | {p.relative_to(docs).as_posix() for p in docs.rglob("*.*")}
    broken = []
    for uri, text in made.items():
        if not uri.endswith(".md") or isinstance(text, bytes):
            continue
        bare = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.S | re.M)
        for target in re.findall(r"\]\(([^)\s]+)\)", bare):
            if re.match(r"https?:", target):
                continue
            if target.startswith("#"):
                if f"{{ {target} }}" not in text:
                    broken.append(f"{uri}: {target}")
                continue
            path = os.path.normpath(os.path.join(os.path.dirname(uri), target))
            if path.split("#")[0] not in known:
                broken.append(f"{uri}: {target}")
    assert not broken


def leaves(nav: Any) -> Iterator[str]:
    for item in nav if isinstance(nav, list) else [nav]:
        if isinstance(item, dict):
            for value in item.values():
                yield from leaves(value)
        else:
            yield item


def test_every_page_but_single_systems_is_in_the_contents_once(
    ctx: Context, made: dict[str, str | bytes]
) -> None:
    listed = list(leaves(pages.nav(ROOT, ctx)))
    assert len(listed) == len(set(listed))
    single = {f"systems/{s}.md" for s in ctx.atlas.systems}
    apart = {*single, "index.md"}  # the front page is named in mkdocs.yml
    assert set(listed) == {uri for uri in made if uri.endswith(".md")} - apart


def test_edit_links_lead_to_files_that_exist(made: dict[str, str | bytes]) -> None:
    for uri in made:
        source = pages.source_of(uri)
        assert source is None or (ROOT / source).exists(), uri
    uri = "communication-pattern/collective/ring-all-reduce"
    assert pages.source_of(f"{uri}.md") == f"taxonomy/techniques/{uri}.yaml"


def test_a_technique_links_to_its_data_and_its_program(
    ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATLAS_EDIT_URI", "https://forge.example/edit/main/")
    t = ctx.atlas.techniques["ring-all-reduce"]
    text = technique.page(read(ROOT), t)
    assert f"(https://forge.example/edit/main/{t.yaml.as_posix()})" in text
    assert f"(https://forge.example/edit/main/{t.exemplar.as_posix()})" in text


def test_a_false_claim_is_red(ctx: Context) -> None:
    t = ctx.atlas.techniques["ring-all-reduce"]
    run = json.loads(json.dumps(ctx.card_run(t.id)))
    run["ranks"][0]["measured"]["bytes_sent"] += 8
    wrong = Context(ROOT, ctx.atlas)
    record = {**(ctx.record(t.id, "gloo") or {}), "runs": [run]}
    wrong._records[t.id, "gloo"] = record
    assert any(v.ok is False for v in judge(t, run))
    assert 'class="claim bad' in evidence.cards(wrong, t)
    assert "gloo: a claim does not hold" in str(proof.badges(wrong, t))
    assert 'class="claim bad' not in evidence.cards(ctx, t)


def test_the_generator_needs_neither_torch_nor_mkdocs() -> None:
    code = (
        "import sys, pathlib; from atlas.site import render; "
        f"render(pathlib.Path({str(ROOT)!r})); "
        "print([m for m in ('torch', 'mkdocs') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_pages_can_be_written_to_a_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "atlas.site", str(tmp_path / "out")]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert 'class="map"' in (tmp_path / "out" / "index.md").read_text()
    data = json.loads((tmp_path / "out" / "taxonomy.json").read_text())
    assert set(data["techniques"]) == set(read(ROOT).atlas.techniques)


def test_a_notebook_becomes_a_page_with_downloads(tmp_path: Path) -> None:
    nbformat: Any = pytest.importorskip("nbformat")
    v4 = nbformat.v4
    out = v4.new_output("stream", text="ranks: ```4```\n")
    cells = [
        v4.new_markdown_cell("# A <tour>\n\nIt begins."),
        v4.new_code_cell("print(4)", outputs=[out], execution_count=1),
    ]
    (tmp_path / "measurements" / "notebooks").mkdir(parents=True)
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "00-tour.py").write_text("# %%\nprint(4)\n")
    kept = tmp_path / "measurements" / "notebooks" / "00-tour.ipynb"
    nbformat.write(v4.new_notebook(cells=cells), kept)
    made = dict(notebooks.pages(tmp_path))
    page = made["notebooks/00-tour.md"]
    assert isinstance(page, str)
    assert "A &lt;tour&gt;" in page.split("---")[1]
    assert page.index("# A <tour>") < page.index("[.ipynb](00-tour.ipynb)")
    assert "`````` { .text .output }\nranks: ```4```\n``````" in page
    assert made["notebooks/00-tour.ipynb"] == kept.read_bytes()
    assert made["notebooks/00-tour.py"] == b"# %%\nprint(4)\n"
    assert notebooks.names(ROOT / "taxonomy") == []


# The build


def test_a_stale_record_fails_the_strict_build_by_name(tmp_path: Path) -> None:
    for name in ("taxonomy", "exemplars", "docs", "atlas", "measurements"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "notebooks").mkdir()
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    with (tmp_path / read(ROOT).atlas.techniques["ring-all-reduce"].exemplar).open(
        "a"
    ) as file:
        file.write("CHANGED = True\n")
    strict = build(tmp_path, tmp_path / "out", "--strict")
    assert strict.returncode != 0
    assert (
        "measurements/gloo/ring-all-reduce.json: recorded from an older"
        in strict.stderr
    )
    assert "atlas record ring-all-reduce" in strict.stderr


class _Elements(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@functools.cache
def elements(text: str) -> list[tuple[str, dict[str, str | None]]]:
    """Every tag with its attributes; a page is taken apart once for all tests."""
    parser = _Elements()
    parser.feed(text)
    return parser.found


def assets(page: Path, site: Path) -> Iterator[Path]:
    """The files that a page asks for: scripts, styles, pictures."""
    for tag, a in elements(page.read_text(encoding="utf-8")):
        address = a.get("src") if tag in ("script", "img") else None
        if tag == "link" and a.get("rel") in ("stylesheet", "icon"):
            address = a.get("href")
        if address and not address.startswith("data:"):
            assert not re.match(r"(https?:)?//", address), f"{page}: {address}"
            top = site if address.startswith("/") else page.parent
            yield (top / address.split("?")[0].lstrip("/")).resolve()


def test_assets_lose_comments_and_indentation() -> None:
    script = "// why\nf(() => {\n  // how\n  g('//x')  // kept\n})\n"
    assert slim_asset(script, ".js") == "f(() => {\ng('//x')  // kept\n})\n"
    assert slim_asset("/* a\n b */\np {\n  top: 0;\n}\n", ".css").split("\n") == [
        "",
        "p {",
        "top: 0;",
        "}",
        "",
    ]


def test_no_page_is_heavier_than_900_kb(built: Path) -> None:
    fonts = sum(
        sorted((p.stat().st_size for p in built.rglob("*.woff2")), reverse=True)[:4]
    )
    for page in built.rglob("*.html"):
        files = {page, *assets(page, built)}
        weight = fonts + sum(f.stat().st_size for f in files)
        assert weight <= LIGHT, f"{page.relative_to(built)}: {weight} bytes"


def test_every_formula_is_on_one_page_of_the_reference(built: Path) -> None:
    pages = [*built.glob("reference/atlas.formulas*/index.html")]
    found = [
        a.get("id") for p in pages for tag, a in elements(p.read_text()) if tag == "h3"
    ]
    assert sorted(filter(None, found)) == sorted(FORMULAS)


def test_a_page_loads_only_the_scripts_that_it_needs(built: Path) -> None:
    needs = {"katex": "arithmatex", "replay.js": "replay", "choices.js": "choices"}
    for page in built.rglob("index.html"):
        found = list(elements(page.read_text(encoding="utf-8")))
        signs = [a.get(key) or "" for _, a in found for key in ("class", "data-draws")]
        names = {word for sign in signs for word in sign.split()}
        loaded = " ".join(a.get("src") or "" for tag, a in found if tag == "script")
        for script, sign in needs.items():
            assert (script in loaded) == (sign in names), f"{page}: {script}"


def test_code_keeps_its_text_and_every_color_of_its_own(built: Path) -> None:
    marked = '<pre><span class="k">def</span> <span class="n">f</span><span class="w"> '
    light = '<pre><span class="k">def</span> f =</pre>'
    assert slim(f"{marked}</span>=</pre>") == light
    assert slim('<p><span class="n">f</span></p>') == '<p><span class="n">f</span></p>'
    styles = "".join(p.read_text() for p in built.rglob("*.css"))
    for name in PLAIN:  # they may only have the color of the code around them
        rules = re.findall(
            rf"[^{{}}]*\.highlight \.{name}\b[^{{}}]*{{([^}}]*)}}", styles
        )
        assert set(rules) <= {"color:var(--md-code-hl-name-color)"}, name
    own = re.findall(r"--md-code-hl-name-color:\s*([^;}]*)", styles)
    assert set(own) == {"var(--md-code-fg-color)"}


def test_the_search_has_a_name_before_any_script_runs(built: Path) -> None:
    for page in built.rglob("*.html"):
        for tag, attributes in elements(page.read_text(encoding="utf-8")):
            if tag == "div" and attributes.get("role") == "dialog":
                assert attributes.get("aria-label"), page


def test_every_address_in_the_built_pages_exists(built: Path) -> None:
    for page in built.rglob("*.html"):
        if page.name == "404.html":
            continue
        for tag, a in elements(page.read_text(encoding="utf-8")):
            to = a.get("href") if tag == "a" else None
            if not to or re.match(r"(https?|mailto):", to) or to.startswith("#"):
                continue
            target = (page.parent / to.split("#")[0].split("?")[0]).resolve()
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{page.relative_to(built)}: {to}"


@pytest.mark.parametrize("folder", ["docs/assets/vendor", "tests/vendor"])
def test_vendored_files_are_the_published_ones(folder: str) -> None:
    top = ROOT / folder
    listed = json.loads((top / "MANIFEST.json").read_text())
    files = {k: v for package in listed.values() for k, v in package["files"].items()}
    found = {p.relative_to(top).as_posix() for p in top.rglob("*") if p.is_file()}
    assert found - {"MANIFEST.json"} == set(files)
    for name, digest in files.items():
        real = hashlib.sha256((top / name).read_bytes()).hexdigest()
        assert digest == f"sha256:{real}", name
    for name, package in listed.items():
        assert package["version"]
        assert package["license"]
        assert f"{name}/LICENSE" in package["files"]


def test_a_formula_stands_with_its_law_and_its_words(ctx: Context) -> None:
    t = ctx.atlas.techniques["ring-all-reduce"]
    law = t.claim("bytes_sent").law
    assert law is not None
    text = technique.page(ctx, t)
    for said in (law.says, law.equal_when):
        assert rf"\({law_latex(said)}\)" in html.unescape(text)
    for word in ("ranks", "rank", "elements", "itemsize"):
        quantity = ctx.atlas.symbols[word]
        assert f"<td><code>{word}</code></td><td>{quantity.unit}</td>" in text
        assert f"{quantity.symbol}: {quantity.says}" in text


@pytest.mark.parametrize(
    ("symbol", "said"), [(r"\alpha", "α"), ("t_B", "t_B"), (r"s_{\max}", "s_max")]
)
def test_a_symbol_is_told_without_latex(symbol: str, said: str) -> None:
    assert proof.plain(symbol) == said


@pytest.mark.parametrize("stale", [False, True])
def test_the_score_of_automatic_mutants_is_shown_where_it_was_tried(
    ctx: Context, stale: bool
) -> None:
    t = ctx.atlas.techniques["ring-all-reduce"]
    source = "of another day" if stale else source_hash(ROOT, t)
    tried = {t.id: Score(60, 56, 3, ("k + 1  ->  k",), source)}
    made = Context(ctx.root, ctx.atlas)
    vars(made)["mutation"] = tried
    page = technique.page(made, t)
    assert f"**{tried[t.id].line}**" in page
    assert "k + 1  ->  k" in page
    assert ("(of an older source)" in page) is stale
    row = next(x for x in coverage.page(made).splitlines() if t.path in x)
    assert ("<td>56 of 57, older source</td>" in row) is stale
    vars(made)["mutation"] = {}
    assert "automatic mutants" not in technique.page(made, t) + coverage.page(made)


def test_the_home_page_counts_from_the_data(
    ctx: Context, made: dict[str, str | bytes]
) -> None:
    found = overview.counts(ctx)
    assert found.written <= found.techniques == len(ctx.atlas.techniques)
    home = str(made["index.md"])
    assert f"<b>{found.techniques}</b><span>techniques</span>" in home
    assert f"Each of the {found.claims} claims about those {found.written}" in home


def test_every_page_written_by_hand_is_filled_and_leaves_no_part_out(
    ctx: Context, made: dict[str, str | bytes]
) -> None:
    docs = ROOT / "docs"
    assert set(pages.WRITTEN) == {
        p.relative_to(docs).as_posix() for p in docs.rglob("*.md")
    }
    for uri, places in pages.WRITTEN.items():
        marked = pages.PLACE.findall((docs / uri).read_text(encoding="utf-8"))
        assert set(marked) == set(places), uri
        assert "{{" not in str(made[uri]), uri
    with pytest.raises(KeyError, match="no place is called 'lost'"):
        pages.fill("{{ lost }}", overview.PLACES, ctx)
