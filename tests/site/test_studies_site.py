"""What the pages show of studies and ledgers: nothing is lost on the way."""

import json
import shutil
from pathlib import Path

import pytest

from atlas.site import memory, race
from atlas.taxonomy import find_root
from atlas.views import context
from atlas.views.race import GROUPS, said, study

ROOT = find_root()


def run_of(*series: dict[str, list[int]]) -> dict[str, object]:
    """A run whose ranks held these bytes."""
    ranks = []
    for rank, columns in enumerate(series):
        totals = [sum(row) for row in zip(*columns.values(), strict=True)]
        held = {"series": columns, "peak": {"total": max(totals)}}
        ranks.append({"rank": rank, "memory": held})
    return {"p": len(ranks), "ranks": ranks}


def test_the_rank_that_held_most_is_drawn() -> None:
    small = {"parameters": [1, 1], "activations": [0, 2], "other": [0, 0]}
    large = {"parameters": [1, 1], "activations": [0, 4000], "other": [0, 0]}
    text = "\n".join(memory.section(run_of(small, large)))
    assert "alive on rank 1, which held most" in text
    assert "the peak is 4kB" in text
    assert text.count("<polygon") == 2  # what was never held has no area


def test_a_run_without_a_ledger_has_no_plot() -> None:
    assert list(memory.section({"p": 1, "ranks": [{"rank": 0, "memory": None}]})) == []
    assert list(memory.section(None)) == []


def test_a_long_series_keeps_its_highest_and_lowest_moments() -> None:
    totals = [5] * 5000
    totals[1234], totals[4321] = 900, 0
    picks = memory._picks(totals)
    assert {0, 1234, 4321, 4999} <= set(picks)
    assert len(picks) <= memory.POINTS + 2


@pytest.mark.parametrize(
    "id", ["zero-3", "ring-attention", "three-d", "model-spilling"]
)
def test_every_page_of_the_distribution_axis_has_its_memory(id: str) -> None:
    ctx = context.read(ROOT)
    assert "Memory over time" in "\n".join(memory.section(ctx.card_run(id)))


#: What the first hold is in processes that die, and their claims count its bytes. The
#: others train nothing: one hands out numbers of samples, one moves a matrix, and one
#: goes through all layouts of two products, and claims what it holds in each.
WITHOUT_A_LEDGER = {
    "durable-state",
    "exactly-once-data",
    "redistribute",
    "mesh-layout",
}


def test_all_written_techniques_of_the_distribution_axis_kept_a_ledger() -> None:
    ctx = context.read(ROOT)
    for t in ctx.atlas.techniques.values():
        if {t.family, t.id} & WITHOUT_A_LEDGER:
            assert not list(memory.section(ctx.card_run(t.id))), t.id
        elif t.axis == "parameter-distribution" and ctx.written(t):
            assert list(memory.section(ctx.card_run(t.id))), t.id


def test_the_race_shows_every_strategy_of_its_study() -> None:
    ctx = context.read(ROOT)
    found = study(ctx)
    assert found is not None
    text = "\n".join(race.section(ctx))
    entries = found["races"]["digits"]
    # Bulk-synchronous SGD is in the plots of all groups, to compare with.
    lines = len(entries) + len(GROUPS) - 1
    assert text.count('<button type="button"') == 4 * lines
    for entry in entries.values():
        assert f"../{ctx.atlas.techniques[entry['technique']].path}.md" in text
    assert "older source" not in text


def test_a_race_of_older_exemplars_says_so(tmp_path: Path) -> None:
    for part in ("taxonomy", "exemplars", "atlas/planner", "measurements/studies"):
        shutil.copytree(ROOT / part, tmp_path / part)
    ctx = context.read(tmp_path)
    place = tmp_path / "measurements" / "studies" / "race.json"
    found = json.loads(place.read_text())
    changed = found["sources"] | {"downpour": "sha256:0"}
    place.write_text(json.dumps(found | {"sources": changed}))
    said = "Recorded from an older source of the exemplars: Downpour SGD."
    assert said in "\n".join(race.section(ctx))


def test_what_diverged_is_called_so() -> None:
    assert said(1.6e99) == "diverged"
    assert said(2.3456) == "2.346"
