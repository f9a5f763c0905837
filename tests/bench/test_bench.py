"""The benches: each pair computes the same, and the kept study is whole."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from atlas.bench import study
from atlas.bench.pair import Case, DiffersError, Pair, Side, compare, run
from atlas.launch import launch
from atlas.record import RecordError
from atlas.taxonomy import find_root, load
from exemplars.runtime import World

BENCHES = study.benches()
SILENT = "shared-memory-all-reduce"  # it sends nothing: that is its point


@pytest.mark.parametrize("name", BENCHES)
def test_both_sides_compute_the_same_values(name: str) -> None:
    bench = BENCHES[name]
    seen = launch(run, 2, bench.make, dict(bench.tiny), 1)
    assert all(len(s["seconds"][side]) == 1 for s in seen for side in s["seconds"])
    assert all((s["counted"]["ours"]["wire"] > 0) == (name != SILENT) for s in seen)


@pytest.mark.parametrize("name", BENCHES)
def test_the_kept_study_has_finite_figures(name: str) -> None:
    kept = json.loads((find_root() / study.PLACE).read_text())
    found = kept["runs"][name]
    labels = [case["label"] for case in found["sizes"]]
    assert labels == [case.label for case in BENCHES[name].cases]
    for case in (found, *found["sizes"]):
        ours, theirs, ratio = (case[k] for k in study.TIMES)
        assert all(math.isfinite(x) and x > 0 for x in (ours, theirs, ratio))
        assert ratio == pytest.approx(ours / theirs, rel=0.01)
    assert (found["ours_bytes"] > 0) == (name != SILENT)
    assert found["theirs_bytes"] > 0
    assert found["what"] == BENCHES[name].what
    assert found["note"] == BENCHES[name].note
    assert found["note"]


def test_the_kept_study_holds_nothing_else() -> None:
    kept = json.loads((find_root() / study.PLACE).read_text())
    assert set(kept["runs"]) == set(BENCHES)


def test_every_bench_names_a_technique_of_the_taxonomy() -> None:
    assert set(BENCHES) <= set(load().techniques)


def test_values_that_differ_are_refused() -> None:
    one, other = torch.ones(3), torch.tensor([1.0, 1.0, 1.001])
    w = World(0, 1, torch.device("cpu"))
    pair = Pair(_still(one), _still(other), slack=8)
    with pytest.raises(DiffersError, match=r"differ by 0\.001, may by 9\.5e-07"):
        compare(w, pair)


def test_values_that_are_not_numbers_are_refused() -> None:
    bad = torch.tensor([1.0, math.nan])
    w = World(0, 1, torch.device("cpu"))
    with pytest.raises(DiffersError, match="differ by nan"):
        compare(w, Pair(_still(bad), _still(torch.ones(2)), slack=8))


def _still(value: torch.Tensor) -> Side:
    return Side(lambda: None, lambda: [value])


def test_a_kept_study_keeps_what_was_not_measured_again(tmp_path: Path) -> None:
    bench = BENCHES["ring-all-reduce"]
    case = Case(bench.headline, 4012, bench.tiny)
    figures = study.measure(bench, case, ranks=2, repeats=1)
    made = study.assemble(bench, [figures], ranks=2)
    study.keep(tmp_path, {"other": made})
    study.keep(tmp_path, {bench.technique: made})
    kept = json.loads((tmp_path / study.PLACE).read_text())
    assert kept["runs"] == {"other": made, bench.technique: made}


def test_a_place_that_cannot_be_written_is_told_before(tmp_path: Path) -> None:
    (tmp_path / "measurements").write_text("a file where the folder should be")
    with pytest.raises(RecordError, match=r"studies cannot be written: Not a dir"):
        study.check_writable(tmp_path)


def test_an_unknown_technique_names_the_nearest() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "atlas.bench", "--only", "zero3"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    expected = 'no production code is timed beside "zero3": did you mean zero-3?\n'
    assert done.stderr == expected
