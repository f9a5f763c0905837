"""The bubble playground shows what atlas.schedule computes."""

import json
from pathlib import Path

import pytest
import quickjs
from hypothesis import given, settings
from hypothesis import strategies as st

from atlas.schedule import GENERATORS, generate
from atlas.site import bubble, pages
from atlas.views import bubbles
from atlas.views.context import Context, read

ROOT = Path(__file__).resolve().parents[2]
SECONDS = {"F": 1.0, "B": 1.25, "W": 0.5}
ASK = """
function asked(texts, seconds, message) {
  const s = atlasBubble.schedule(texts);
  const c = atlasBubble.cost(s, seconds, message);
  return JSON.stringify([c.makespan, c.idle, c.bubble,
    Math.max(...atlasBubble.peaks(s)), atlasBubble.weights(s)]);
}
"""


@pytest.fixture(scope="module")
def ctx() -> Context:
    return read(ROOT)


@pytest.fixture(scope="module")
def engine() -> quickjs.Function:
    script = (ROOT / "docs/assets/js/bubble_cost.js").read_text(encoding="utf-8")
    return quickjs.Function("asked", script + ASK)


@pytest.mark.parametrize("name", GENERATORS)
@settings(max_examples=12, deadline=None)
@given(data=st.data(), message=st.sampled_from([0.0, 0.25, 1.5]))
def test_the_page_s_script_counts_what_the_schedule_costs(
    name: str, engine: quickjs.Function, data: st.DataObject, message: float
) -> None:
    """Halves and quarters: sums of them are exact, so both must be equal."""
    every = bubbles.packed(name)
    key = data.draw(st.sampled_from(sorted(every)))
    p, m, v = map(int, key.split(","))
    schedule = generate(name, p, m, v)
    part = bubbles.share(schedule)
    if (part * 64) % 1:  # a third of a second is not exact
        return
    found = bubbles.figures(schedule, SECONDS, message)
    makespan, idle, share, held, weights = json.loads(
        engine(every[key], SECONDS, message)
    )
    assert makespan == found.makespan
    assert idle == found.cost.idle
    assert share == pytest.approx(found.cost.bubble, abs=1e-12)
    assert (held, weights) == (found.held, found.weights)


def test_every_schedule_has_a_name_and_an_exemplar() -> None:
    assert set(GENERATORS) == set(bubbles.NAMES) == set(bubbles.EXEMPLARS)


def test_what_is_drawn_first_is_what_the_table_says(ctx: Context) -> None:
    page = pages.fill("{{ playground }} {{ ranking }}", bubble.PLACES, ctx)
    p, m, seconds = bubble.first()
    for name in bubble.SHOWN:
        found = bubbles.figures(generate(name, p, m), seconds, 0)
        assert bubble.figures_said(found) in page


def test_bubbles_are_the_published_ones() -> None:
    """Of 1F1B (p-1)(F+B+W), of ZB-H1 (p-1)(F+B-W), of ZB-H2 (p-1)(F+B-2W)."""
    rows = {
        row.name: row.cells[0][0]
        for row in bubbles.ranking(4, 8, dict.fromkeys("FBW", 1.0))
    }
    assert rows["1f1b"] - 8 * 3 == 3 * 3
    assert rows["zb-h1"] - 8 * 3 == 3 * 1


def test_places_are_those_of_the_makespans() -> None:
    rows = bubbles.ranking(*bubble.first())
    for i in range(len(bubbles.MESSAGES)):
        by_time = sorted(rows, key=lambda row: row.cells[i][0])
        assert by_time[0].cells[i][1] == 1
        assert all(
            sum(b.cells[i][0] < a.cells[i][0] for b in rows) == a.cells[i][1] - 1
            for a in rows
        )


def test_no_file_of_a_schedule_is_heavier_than_250_kb() -> None:
    heavy = {k: len(v) for k, v in bubble.scripts().items() if len(v) > 250_000}
    assert not heavy
