"""The page of what composes: every pair is there, and says what the study says."""

import json
import shutil
from pathlib import Path

import pytest

from atlas.site import composition as site
from atlas.site import pages
from atlas.site.text import md
from atlas.taxonomy import find_root
from atlas.views import composition as view
from atlas.views import context
from atlas.views.context import Context

ROOT = find_root()


@pytest.fixture(scope="module")
def ctx() -> Context:
    return context.read(ROOT)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of what the page reads, which may be changed."""
    for part in ("taxonomy", "exemplars", "atlas/compose", "atlas/views"):
        shutil.copytree(ROOT / part, tmp_path / part)
    place = tmp_path / view.PLACE
    place.parent.mkdir(parents=True)
    shutil.copy(ROOT / view.PLACE, place)
    return tmp_path


def text(ctx: Context) -> str:
    """The page as Markdown."""
    return pages.fill((ROOT / "docs" / site.HERE).read_text(), site.PLACES, ctx)


def test_every_pair_is_in_the_table_and_in_the_list(ctx: Context) -> None:
    page = text(ctx)
    for c in site.cells(ctx):
        assert f'href="#{c.id}"' in page
        assert page.count(f'id="{c.id}"') == 1
    assert len(site.cells(ctx)) == 231


def test_every_refusal_stands_there_with_its_reason(ctx: Context) -> None:
    page = text(ctx)
    for reason in view.REFUSED.values():
        assert page.count(md(reason)) >= 2  # below the table, and in the list


def test_each_technique_links_to_its_page(ctx: Context) -> None:
    page = text(ctx)
    for entry in view.ENTRIES.values():
        if entry.technique in ctx.atlas.techniques:
            path = ctx.atlas.techniques[entry.technique].path
            assert f"../{path}/" in page, entry.name


def test_the_summary_counts_every_pair_once(copy: Path) -> None:
    made = json.loads((copy / view.PLACE).read_text())
    first, second, *_ = view.open_pairs()
    del made["cells"][view.key(first)]
    made["cells"][view.key(second)]["failed"] = "not equal to one process: norm"
    (copy / view.PLACE).write_text(json.dumps(made))
    ctx = context.read(copy)
    states = {c.id: c.state for c in site.cells(ctx)}
    assert states["--".join(first)] == "untried"
    assert states["--".join(second)] == "failed"
    said = site.summary(ctx)
    assert "**1** were run and are not equal" in said
    assert "**1** have not been tried" in said
    assert md("not equal to one process: norm") in text(ctx)


def test_a_study_of_older_source_says_so(copy: Path) -> None:
    assert "have changed since" not in site.recorded(context.read(copy))
    step = copy / view.ROOM / "step.py"
    step.write_text(step.read_text() + "\nCHANGED = True\n")
    assert "have changed since" in site.recorded(context.read(copy))


def test_without_a_study_nothing_has_been_tried(copy: Path) -> None:
    (copy / view.PLACE).unlink()
    ctx = context.read(copy)
    assert {c.state for c in site.cells(ctx)} == {"untried", "refused"}
    assert "python -m atlas.compose" in site.recorded(ctx)
