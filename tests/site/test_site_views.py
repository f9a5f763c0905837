"""The views: complete, honest about gaps, and counted by the formulas themselves."""

import dataclasses
import html
import json
import re
from pathlib import Path

import pytest

from atlas.formulas import FORMULAS
from atlas.planner import presets, search
from atlas.planner.train import Train
from atlas.site import choose, coverage, families, grid, matrix, pages
from atlas.taxonomy import Choose, Technique
from atlas.views import sizes, standing
from atlas.views.context import Context, read

ROOT = Path(__file__).resolve().parents[2]
VIEWS = ("map.md", "grid.md", "choose.md", "coverage.md", "changes.md")


def written(uri: str, ctx: Context) -> str:
    """A page of docs/, filled from a context that need not be this checkout."""
    markdown = (ROOT / "docs" / uri).read_text(encoding="utf-8")
    return pages.fill(markdown, pages.WRITTEN[uri], ctx)


@pytest.fixture(scope="module")
def made(ctx: Context) -> dict[str, str]:
    out = {uri: written(uri, ctx) for uri in ("map.md", "grid.md", "choose.md")}
    out |= {"coverage.md": coverage.page(ctx), "changes.md": coverage.changes(ctx)}
    for axis in ctx.atlas.axes:
        out[f"{axis.id}/index.md"] = families.axis_page(ctx, axis)
        for f in axis.families:
            out[f"{f.path}/index.md"] = families.family_page(ctx, axis, f)
    return out


def test_the_same_files_give_the_same_views(made: dict[str, str]) -> None:
    again = read(ROOT)
    assert written("map.md", again) == made["map.md"]
    assert coverage.page(again) == made["coverage.md"]
    assert coverage.changes(again) == made["changes.md"]


def test_every_address_in_a_view_is_a_page_or_an_asset(made: dict[str, str]) -> None:
    rendered = set(pages.render(ROOT))
    known = {addressed(uri) for uri in rendered if uri.endswith(".md")} | {""}
    docs = ROOT / "docs"
    known |= {p.relative_to(docs).as_posix() for p in docs.rglob("*") if p.is_file()}
    known |= {uri for uri in rendered if not uri.endswith(".md")}
    for uri, text in made.items():
        here = addressed(uri)
        for to in re.findall(r'(?:href|src)="([^"]+)"', text):
            if to.startswith(("#", "http")):
                continue
            path = joined(here, to.split("#")[0])
            assert path in known, f"{uri}: {to}"


def addressed(uri: str) -> str:
    """Where a page stands: a folder."""
    bare = uri.removesuffix(".md").removesuffix("index")
    return bare if not bare or bare.endswith("/") else f"{bare}/"


def joined(here: str, to: str) -> str:
    """A relative address, followed."""
    parts = here.split("/")[:-1]
    for step in to.split("/"):
        if step == "..":
            parts.pop()
        elif step != ".":
            parts.append(step)
    return "/".join(parts)


# The map


def test_every_technique_and_system_is_on_the_map_or_named_below_it(
    ctx: Context, made: dict[str, str]
) -> None:
    text = made["map.md"]
    for t in ctx.atlas.techniques.values():
        assert f"{t.path}/" in text, t.id
    for s in ctx.atlas.systems.values():
        assert f"systems/{s.id}/" in text, s.id


def test_a_technique_stands_in_one_cell_and_a_system_wherever_it_has_both(
    ctx: Context,
) -> None:
    cells = [c for row in matrix.cells(ctx) for c in row]
    assert len(cells) == 9 * 11
    ring = [c.id for c in cells if "ring-all-reduce" in {t.id for t in c.techniques}]
    assert ring == ["synchronous.replicated"]
    for s in ctx.atlas.systems.values():
        on = matrix.families(ctx, s)
        want = {f"{a}.{b}" for a in on[matrix.DOWN] for b in on[matrix.ACROSS]}
        assert {c.id for c in cells if s in c.systems} == want, s.id


def test_an_empty_cell_says_that_no_system_is_known(
    ctx: Context, made: dict[str, str]
) -> None:
    cells = [c for row in matrix.cells(ctx) for c in row]
    empty = [c for c in cells if not c.techniques and not c.systems]
    text = made["map.md"]
    assert empty
    assert text.count('<td class="empty"') == len(empty)
    assert text.count('<span class="none">no known system</span>') == len(empty)
    full = len(cells) - len(empty)
    assert f"Of {len(cells)} cells, {full} are filled" in text


def test_proof_is_counted_from_the_records_of_the_cell(ctx: Context) -> None:
    ring = ctx.atlas.techniques["ring-all-reduce"]
    bare = Context(ROOT, ctx.atlas)
    for backend in ("gloo", "dry", "emulated", "nccl"):
        bare._records[ring.id, backend] = None
    assert matrix.proof(bare, (ring,)) == "0000"
    assert matrix.spoken("0000") == "nothing proven yet"
    bare._records[ring.id, "dry"] = ctx.record(ring.id, "dry")
    bare._stale[ring.id, "dry"] = False
    assert matrix.proof(bare, (ring,)) == "0100"
    assert matrix.signs("0100") == "○●○○"
    record = json.loads(json.dumps(ctx.record(ring.id, "dry")))
    record["runs"][0]["ranks"][0]["measured"]["bytes_sent"] += 1
    bare._records[ring.id, "dry"] = record
    assert matrix.proof(bare, (ring,)) == "0000"


# Langer's grid


def test_the_six_cells_hold_what_langer_would_put_there(ctx: Context) -> None:
    where = {
        t.id: (row, column)
        for row in grid.ROWS
        for column in grid.COLUMNS
        for t in grid.techniques(ctx, row, column)
    }
    assert set(where) == set(ctx.atlas.techniques)
    assert where["ring-all-reduce"] == ("central", "synchronous")
    assert where["stale-synchronous-parallel"] == ("central", "bounded")
    assert where["downpour"] == ("central", "asynchronous")
    assert where["local-sgd"] == ("per-worker", "synchronous")
    assert where["d-psgd"] == ("per-worker", "synchronous")
    assert where["elastic-averaging-asynchronous"] == ("per-worker", "asynchronous")
    assert where["one-f-one-b"] == ("central", "synchronous")
    assert where["weight-stashing"] == ("central", "bounded")


def test_every_family_of_the_sync_axis_has_a_schedule(ctx: Context) -> None:
    sync = next(a for a in ctx.atlas.axes if a.id == matrix.DOWN)
    assert list(grid.SCHEDULE) == [f.id for f in sync.families]
    assert set(grid.SCHEDULE.values()) == set(grid.COLUMNS)


def test_every_system_is_in_the_grid_or_named_below_it(
    ctx: Context, made: dict[str, str]
) -> None:
    for s in ctx.atlas.systems.values():
        assert f"systems/{s.id}/" in made["grid.md"], s.id


# Choose


def ways(made: Choose) -> dict[str, str]:
    """Every way through the questions -> its leaf."""
    questions = {q.id: q for q in made.questions}
    found: dict[str, str] = {}

    def follow(at: str, way: tuple[str, ...]) -> None:
        for a in questions[at].answers:
            if a.to in questions:
                follow(a.to, (*way, a.id))
            else:
                found[".".join((*way, a.id))] = a.to

    follow(made.questions[0].id, ())
    return found


def test_six_questions_lead_to_every_leaf(ctx: Context) -> None:
    made = ctx.atlas.choose
    assert made is not None
    assert len(made.questions) == 6
    found = ways(made)
    assert set(found.values()) == {leaf.id for leaf in made.leaves}
    assert choose.longest(made) == max(way.count(".") + 1 for way in found) == 4
    assert found["fits.grows"] == "data"
    assert found["too-large.dense.state.many-nodes"] == "three-d"


def test_a_leaf_has_technique_reason_source_and_plan(
    ctx: Context, made: dict[str, str]
) -> None:
    assert ctx.atlas.choose is not None
    for leaf in ctx.atlas.choose.leaves:
        start = made["choose.md"].index(f'id="leaf-{leaf.id}"')
        part = made["choose.md"][start:].split("</section>")[0]
        assert f"atlas plan --model {leaf.plan.model} " in html.unescape(part)
        for i in leaf.techniques:
            assert f"{ctx.atlas.techniques[i].path}/" in part
        for source in leaf.sources:
            assert source in part


def test_the_whole_tree_stands_in_the_page_without_a_script(
    ctx: Context, made: dict[str, str]
) -> None:
    assert ctx.atlas.choose is not None
    tree = made["choose.md"].split('class="ranks tree"')[1].split("</details>")[0]
    listed = re.findall(r'href="#leaf-[^"]*" data-way="([^"]*)"', tree)
    assert listed == list(ways(ctx.atlas.choose))


def test_every_plan_of_a_leaf_can_be_worked_out(ctx: Context) -> None:
    assert ctx.atlas.choose is not None
    for leaf in ctx.atlas.choose.leaves:
        model = presets.model(leaf.plan.model, ROOT)
        cluster = presets.cluster(leaf.plan.cluster, ROOT)
        train = Train(leaf.plan.batch)
        assert search.plan(model, cluster, leaf.plan.gpus, train).front, leaf.id


# Axes, families and their numbers


def test_axes_and_families_say_what_the_choice_is(ctx: Context) -> None:
    for axis in ctx.atlas.axes:
        assert 2 <= len(axis.explains) <= 3, axis.id
        for f in axis.families:
            assert f.explains, f.path
            assert len(f.explains.split()) >= 40, f.path


def counted(ctx: Context) -> list[Technique]:
    return [t for t in ctx.atlas.techniques.values() if families.counting(t)]


def test_every_counted_claim_has_a_number_on_its_pages(
    ctx: Context, made: dict[str, str]
) -> None:
    assert len(counted(ctx)) >= 50
    for t in counted(ctx):
        page = made[f"{t.axis}/{t.family}/index.md"]
        for claim in families.counting(t):
            cell = families.figure(ctx, t, claim)
            assert "not given" not in cell, (t.id, claim.id)
            assert cell in page, (t.id, claim.id)
            assert re.search(r">[^<]*\d[^<]*</output>", cell), (t.id, claim.id)


def test_the_numbers_are_those_of_the_formulas(ctx: Context) -> None:
    ring = ctx.atlas.techniques["ring-all-reduce"]
    sent = sizes.given(ring, ring.claim("bytes_sent"), {})
    assert sizes.values(ring.claim("bytes_sent"), sent, 8, 10**8) == [700e6] * 3
    top = ctx.atlas.techniques["top-k-error-feedback"]
    rules = sizes.given(top, top.claim("payload"), {})
    want = FORMULAS["top_k_payload"](10**6, 4, 1)
    assert sizes.values(top.claim("payload"), rules, 8, 10**8) == [want] * 3


def test_beyond_its_limit_a_technique_gives_no_number(ctx: Context) -> None:
    t = ctx.atlas.techniques["embedding-sharding"]
    claim = t.claim("state")
    assert f'data-limit="{t.max_ranks}"' in families.figure(ctx, t, claim)
    for most in (None, 2):
        ranks = dataclasses.replace(t.ranks, max=most)
        cell = families.figure(ctx, dataclasses.replace(t, ranks=ranks), claim)
        assert ("data-limit" in cell) == ("at most 2 ranks" in cell) == (most == 2)


def test_rules_name_only_arguments_that_some_formula_takes(ctx: Context) -> None:
    for name, rules in sizes.GIVEN.items():
        t = ctx.atlas.techniques[name]
        taken = {
            argument
            for claim in families.counting(t)
            for argument, _ in sizes.given(t, claim, dict.fromkeys("", 0))
        }
        assert set(rules) - taken == set(), name


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (700e6, "B", "700 MB"),
        (1_125_000, "B", "1.13 MB"),  # half goes up, as in JavaScript
        (999_600, "B", "1000 kB"),
        (2046.0, "", "2046"),
        (1.75e6, "", "1.75 M"),
        (3165.0, "s", "3165 s"),
        (0.5, "", "0.5"),
        (0.0, "B", "0 B"),
    ],
)
def test_figures_are_short(value: float, unit: str, said: str) -> None:
    assert sizes.brief(value, unit) == said


def test_what_is_not_written_is_shown_as_not_written(
    ctx: Context, made: dict[str, str]
) -> None:
    missing = [t for t in ctx.atlas.techniques.values() if not ctx.written(t)]
    for t in missing:
        assert f"{t.path}/" in made["coverage.md"].split("## Claims")[0], t.id
        family = made[f"{t.axis}/{t.family}/index.md"]
        at = family.index(f'<h3><a href="{t.id}/">')
        assert "not written yet" in family[at : at + 400], t.id


def test_a_technique_without_exemplar_is_in_every_view(
    ctx: Context, tmp_path: Path
) -> None:
    ring = ctx.atlas.techniques["ring-all-reduce"]
    bare = Context(tmp_path, ctx.atlas)
    axis = next(a for a in ctx.atlas.axes if a.id == ring.axis)
    family = next(f for f in axis.families if f.id == ring.family)
    assert "not written yet" in families.family_page(bare, axis, family)
    page = families.axis_page(bare, axis)
    row = page.split("Ring all&#45;reduce</a></th>")[1].split("</tr>")[0]
    assert "<td" in row
    assert "exemplar not written yet" in written("map.md", bare)
    assert ">Ring all&#45;reduce</a>" in coverage.page(bare)


# Coverage and changes


def test_gaps_are_counted(ctx: Context, made: dict[str, str]) -> None:
    text = made["coverage.md"]
    written = sum(ctx.written(t) for t in ctx.atlas.techniques.values())
    of = len(ctx.atlas.techniques)
    row = f"<td>techniques with an exemplar</td><td>{written}</td><td>{of}</td>"
    assert row in text
    cells = [standing.verified(s) for s in ctx.atlas.systems.values()]
    read_, all_ = sum(a for a, _ in cells), sum(b for _, b in cells)
    assert f"<td>{read_}</td><td>{all_}</td><td>{all_ - read_}</td>" in text


def test_a_family_without_an_exemplar_is_named(ctx: Context, tmp_path: Path) -> None:
    bare = Context(tmp_path, ctx.atlas)
    text = coverage.page(bare).split("## Techniques without")[0]
    assert text.count("<li>") == sum(len(a.families) for a in ctx.atlas.axes)


def test_changes_hold_the_changelog_and_the_days_of_the_records(
    ctx: Context, made: dict[str, str]
) -> None:
    text = made["changes.md"]
    log = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert all(line in text for line in log.splitlines()[1:])
    record = ctx.record("ring-all-reduce", "gloo")
    assert record is not None
    day = record["recorded"].replace("-", "&#45;")
    assert f"<h3>{day}</h3>" in text
    days = re.findall(r"<h3>([^<]*)</h3>", text)
    assert days == sorted(days, reverse=True)


def test_text_of_the_taxonomy_stays_text(ctx: Context) -> None:
    evil = "<img src=x onerror=alert(1)> [a](javascript:b) *c|d*"
    axis = ctx.atlas.axes[0]
    family = dataclasses.replace(
        axis.families[0], name=evil, summary=evil, explains=evil
    )
    facet = dataclasses.replace(
        axis.facets[0], name=evil, question=evil, told_by=evil, families=(family,)
    )
    spoilt = dataclasses.replace(
        axis, name=evil, question=evil, explains=(evil,), facets=(facet,)
    )
    atlas = dataclasses.replace(ctx.atlas, axes=(spoilt, *ctx.atlas.axes[1:]))
    bad = Context(ROOT, atlas)
    for page in (
        families.axis_page(bad, spoilt),
        families.family_page(bad, spoilt, family),
        written("map.md", bad),
    ):
        body = page[4:].split("\n---\n", 1)[1]
        assert "<img" not in body
        body = re.sub(r'="[^"]*"', "", body)  # in an attribute it is only text
        assert "](javascript" not in body
