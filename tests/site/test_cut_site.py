"""How the taxonomy is cut, and where runs place a technique: shown as measured."""

import dataclasses
import re
from pathlib import Path

import pytest

from atlas.classify.kept import read as kept
from atlas.site import cut, pages, placed
from atlas.views.context import Context, read

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def ctx() -> Context:
    return read(ROOT)


@pytest.fixture(scope="module")
def page(ctx: Context) -> str:
    return pages.fill((ROOT / "docs/cut.md").read_text(), cut.PLACES, ctx)


def test_every_facet_and_its_test_are_on_the_page(ctx: Context, page: str) -> None:
    for axis in ctx.atlas.axes:
        for facet in axis.facets:
            assert f'<th scope="row">{facet.name}' in page
            for family in facet.families:
                assert f"{family.id}/" in page


def test_every_technique_that_was_placed_has_a_row(ctx: Context, page: str) -> None:
    rows = re.findall(r'<tr><th scope="row"><a href="[^"]*/([a-z0-9-]+)/">', page)
    assert set(rows) == set(kept(ROOT)) & set(ctx.atlas.techniques)
    assert 'class="bad"' not in page


def test_a_wrong_declaration_is_shown_as_such(ctx: Context) -> None:
    t = ctx.atlas.techniques["downpour"]
    wrong = dataclasses.replace(t, family="synchronous")
    techniques = {**ctx.atlas.techniques, t.id: wrong}
    changed = dataclasses.replace(
        ctx, atlas=dataclasses.replace(ctx.atlas, techniques=techniques)
    )
    assert "measured: asynchronous" in placed.section(changed, wrong)
    every, measured, agree = cut.counts(changed)
    assert agree == measured - 1 < every


def test_a_star_is_drawn_as_one(ctx: Context) -> None:
    text = placed.section(ctx, ctx.atlas.techniques["downpour"])
    assert text.count("<line") == 7
    assert text.count("<circle") == 8
    assert "Messages between 8 ranks: star" in text


def test_what_was_not_run_is_not_placed(ctx: Context) -> None:
    known = ctx.atlas.techniques["ring-all-reduce"]
    assert placed.section(ctx, known)
    assert placed.section(ctx, dataclasses.replace(known, id="not-run")) == ""
