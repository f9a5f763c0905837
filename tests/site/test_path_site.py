"""The path: every page has its question, its answer and its run."""

from pathlib import Path

import pytest

from atlas.site import pages, path
from atlas.views.context import Context, read

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def ctx() -> Context:
    return read(ROOT)


def test_the_answers_are_those_of_the_formulas() -> None:
    """Worked out by hand, from the numbers of the questions."""
    answers = {stop.slug: stop.answer() for stop in path.STOPS}
    assert answers == {
        "one-sum": 2 * 4 * 100,
        "ring": (2 * 999 / 1000) / (2 * 3 / 4),
        "data-parallel": 2 * 7 / 8 * 14,
        "wrong-mean": (3 * 512 + 8) / (4 * 8),
        "zero": 16 * 7 / 64,
        "tensor": 4 * 32,
        "pipeline": 28,
        "all-three": 2,
    }


@pytest.mark.parametrize("at", range(len(path.STOPS)))
def test_a_page_has_a_question_a_run_and_a_way_on(at: int, ctx: Context) -> None:
    stop = path.STOPS[at]
    text = (ROOT / "docs" / stop.uri).read_text(encoding="utf-8")
    page = pages.fill(text, path.PAGES[stop.uri], ctx)
    assert 'class="guess"' in page
    assert 'class="replay"' in page
    assert page.count('aria-current="step"') == 1
    if at + 1 < len(path.STOPS):
        assert f"({path.STOPS[at + 1].slug}.md)" in page


def test_every_page_of_the_path_is_written() -> None:
    written = {f"path/{p.name}" for p in (ROOT / "docs" / "path").glob("*.md")}
    assert written == set(path.PAGES)
