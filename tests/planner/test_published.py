"""Published runs: read strictly, judged with nothing tuned, and bands of their own."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from clone import ROOT
from command_line import app
from typer.testing import CliRunner

from atlas.planner import presets
from atlas.planner.accuracy import published
from atlas.planner.accuracy import published_view as views
from atlas.planner.accuracy.published import FITTED, Judged, RunSet
from atlas.planner.errors import OracleError
from atlas.planner.strategy import parse

Rows = Mapping[RunSet, tuple[Judged, ...]]
ONE: dict[str, Any] = {
    "id": "one",
    "says": "one table",
    "source": {"repository": "someone/something", "path": "a.md", "commit": "0"},
    "cluster": "a100-80g",
    "unit": "s",
    "flash": True,
    "models": {"m": {"layers": 2, "width": 64, "heads": 2, "vocabulary": 96}},
    "columns": list(published.COLUMNS),
    "rows": [["m", 32, "Data(8)", 8, 1, "none", 2.0, None, 7]],
}


@pytest.fixture(scope="module")
def rows() -> Rows:
    return {one: published.judged(one) for one in published.read(ROOT)}


def written(folder: Path, **changes: Any) -> Path:
    path = folder / published.HOME
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"sets": [{**ONE, **changes}]}))
    return folder


def test_a_row_is_predicted_as_it_was_run(tmp_path: Path) -> None:
    (one,) = published.read(written(tmp_path))
    (row,) = published.judged(one)
    assert row.seconds == 2.0
    assert row.ratio == row.predicted.seconds / 2.0
    assert row.predicted.train.flash
    assert one.link == "https://github.com/someone/something/blob/0/a.md"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"unit": "hours"}, "unit hours: expected"),
        ({"flush": True}, 'unknown flush: expected "flash"'),
        ({"columns": ["model"]}, r"columns \['model'\]: expected model, tokens"),
        ({"rows": [[1, 2]]}, r"row \[1, 2\]: expected 9 values"),
        ({"rows": [["x", *ONE["rows"][0][1:]]]}, 'model x: expected "?'),
    ],
)
def test_a_malformed_set_is_one_line(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(OracleError, match=says):
        published.read(written(tmp_path, **changes))


def test_units_are_seconds_of_a_step(tmp_path: Path) -> None:
    (one,) = published.read(written(tmp_path))
    run = dataclasses.replace(one.runs[0], measured=4.0)
    model = published.model_of(one, run)
    seconds = {unit: of(run, model) for unit, of in published.UNITS.items()}
    assert seconds["s"] == 4.0
    assert seconds["ms"] == 0.004
    assert seconds["tokens/s/GPU"] == 8 * 32 / (4 * 8)
    assert seconds["TFLOP/s/GPU"] == 3 * 8 * model.flops / (4e12 * 8)


def test_every_row_has_its_source_and_as_many_parameters_as_it_says(rows: Rows) -> None:
    for one, found in rows.items():
        assert one.source["repository"]
        assert one.source["path"]
        assert one.source["commit"] or one.source["repository"] == "arXiv"
        for row in found:
            assert row.run.line
            assert row.run.measured > 0
            said = row.run.parameters
            assert said is None or row.predicted.model.parameters == said


def test_constants_are_fitted_on_single_nodes_alone(rows: Rows) -> None:
    for one, found in rows.items():
        node = presets.cluster(one.cluster).levels[0].size
        seen = [row for row in found if row.fitted]
        assert bool(seen) == (one.id in FITTED)
        assert all(row.run.devices <= node for row in seen)


@pytest.mark.parametrize(
    ("name", "constants"),
    [
        ("mpt-a100-80g", ("top", "attention", "streamed")),
        ("mpt-h100", ("top", "attention", "streamed")),
        ("vtrain-single", ("host",)),
    ],
)
def test_a_fitted_constant_is_the_best_of_its_neighbors(
    name: str, constants: tuple[str, ...]
) -> None:
    one = next(s for s in published.read(ROOT) if s.id == name)
    cluster = published.cluster_of(one)
    places = [i for i, run in enumerate(one.runs) if published.is_fitted(name, i, run)]

    def error(**changes: float) -> float:
        device = dataclasses.replace(cluster.device, **changes)
        where = dataclasses.replace(cluster, device=device)
        judged = [published.judge(one, i, where) for i in places]
        return fmean(abs(math.log(row.ratio)) for row in judged)

    best = error()
    for constant in constants:
        now = getattr(cluster.device, constant)
        step = 1e-5 if constant == "host" else 0.01
        assert best <= min(error(**{constant: now + s}) for s in (-step, step))


FAMILIES = {
    "a100": ("a100-40g", "a100-80g", "cloud-100g"),
    "h100": ("h100-80g", "h200", "h800-80g"),
    "": ("b200", "mi300x", "v100-32g"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_band_is_made_of_the_sets_of_its_device(rows: Rows, family: str) -> None:
    alone = [
        published.judged_alone(found)
        for one, found in rows.items()
        if one.cluster.startswith(family)
    ]
    made = published.band(alone)
    for name in FAMILIES[family]:
        band = presets.cluster(name).band
        assert (band.low, band.high) == made, name


def test_a_band_weighs_sets_not_rows(rows: Rows) -> None:
    found = next(iter(rows.values()))
    assert published.band([found]) == published.band([found * 9])
    low, high = published.band([found])
    assert published.share_within(found, (low, high)) >= 1 - published.OUTSIDE


def test_choices_cost_nothing_where_the_best_is_predicted_to_be_best(
    rows: Rows,
) -> None:
    found = next(r for one, r in rows.items() if one.id == "vtrain-multi")
    told = published.summary("perfect", [_perfect(row) for row in found])
    assert told.regret == (0.0, 0.0)
    assert told.error == pytest.approx(0)
    assert told.correlation == pytest.approx(1)


def _perfect(row: Judged) -> Judged:
    return dataclasses.replace(row, seconds=row.predicted.seconds)


def test_the_page_and_the_terminal_show_every_set_and_every_missed_goal() -> None:
    shown = views.view(ROOT)
    names = {one.id for one in published.read(ROOT)}
    assert {line.figures.id for line in shown.lines} == names
    missed = {
        line.set
        for line in shown.lines
        if not line.fitted and line.figures.error > views.ERROR
    }
    said = next(goal for goal in shown.goals if goal.startswith("mean error,"))
    assert all(name in said for name in missed)
    done = CliRunner().invoke(
        app, ["accuracy", "--published", "--json"], env={"COLUMNS": "200"}
    )
    assert done.exit_code == 0, done.output
    made = json.loads(done.stdout)
    assert made["goals"] == list(shown.goals)
    assert len(made["sets"]) == len(shown.lines)


def test_measuring_and_published_runs_are_not_asked_for_together() -> None:
    done = CliRunner().invoke(app, ["accuracy", "--published", "--strategy", "data"])
    assert done.exit_code == 2
    assert "--published with --network or --strategy" in done.stderr


def test_the_strategies_of_all_rows_are_strategies(rows: Rows) -> None:
    for found in rows.values():
        for row in found:
            assert parse(str(row.predicted.strategy)) == row.predicted.strategy


def test_every_layout_that_ran_fits() -> None:
    found = published.layouts(ROOT)
    assert found
    for one in found:
        for row in published.judged(one):
            assert row.predicted.fits, row.run
    notes = views.view(ROOT).notes
    assert all(any(note.startswith(one.id) for note in notes) for one in found)
