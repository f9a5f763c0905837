"""A machine is measured, its costs are fitted, and the oracle can use the file."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import app
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from atlas.planner.calibrate.fit import fit
from atlas.planner.calibrate.machine import Machine, Points, assembled, keep, link_rows
from atlas.planner.calibrate.measure import DEPTHS, OPS, PRODUCTS
from atlas.planner.commands import given as cli_given
from atlas.planner.records import Link
from atlas.planner.rings import gather_seconds, reduce_seconds, send_seconds

positive = st.floats(1e-9, 1e3, allow_nan=False)


@given(start=positive, each=positive)
def test_a_line_is_found_again(start: float, each: float) -> None:
    sizes = [2.0**k for k in range(0, 20, 3)]
    made = fit([((1.0, n), start + n * each) for n in sizes])
    assert all(abs(r - 1) < 1e-6 for r in made.ratios)
    assert made.error < 1e-6


def test_a_cost_is_never_negative() -> None:
    # The plain line through these points has a negative start.
    made = fit([((1.0, 1.0), 0.5), ((1.0, 2.0), 2.0), ((1.0, 4.0), 4.5)])
    assert made.costs[0] == 0
    assert made.costs[1] > 0


def test_small_points_weigh_as_much_as_large_ones() -> None:
    # One point a thousand times larger, and off by a tenth: it does not decide.
    rows = [((1.0, float(n)), 1.0 + n) for n in (0, 1, 2, 3)]
    made = fit([*rows, ((1.0, 1000.0), 1.1 * 1001.0)])
    assert made.costs[0] == pytest.approx(1.0, rel=0.1)


def test_columns_that_cannot_be_told_apart_are_not_both_used() -> None:
    made = fit([((1.0, 1.0), 2.0), ((2.0, 2.0), 4.0)])
    assert sum(made.costs) == pytest.approx(2.0)


@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize("op", OPS)
def test_a_fitted_link_gives_back_the_oracles_seconds(op: str, p: int) -> None:
    link = Link(alpha=3e-4, beta=1 / 1e9)
    run: Any = {"all_reduce": reduce_seconds}.get(op, gather_seconds)
    points = [
        (n, 2 * send_seconds(1, n, link) if op == "p2p" else run(p, 1, n, link))
        for n in (1e3, 1e5, 1e7)
    ]
    alpha, beta = fit(link_rows(op, p, points)).costs
    assert alpha == pytest.approx(link.alpha)
    assert beta == pytest.approx(link.beta)


def machine(p: int = 2) -> Machine:
    """One that computes 50 GFLOP/s and sends a gigabyte a second, to the letter."""
    link = Link(1e-4, 1e-9)
    computing: Points = {
        "fp32": [(2.0 * n**3, 1e-6 + 2.0 * n**3 / 5e10) for n in PRODUCTS],
        "fp64": [(2.0 * n**3, 1e-6 + 2.0 * n**3 / 2e10) for n in PRODUCTS],
        "copy": [(1e8, 1e-2)],
        "step": [(float(d), 2e-4 + d * 3e-5) for d in DEPTHS],
    }
    sent: Points = {"p2p": [(n, 2 * send_seconds(1, n, link)) for n in (1e3, 1e6)]}
    for op in OPS[:-1]:
        run = reduce_seconds if op == "all_reduce" else gather_seconds
        sent[op] = [(n, run(p, 1, n, link)) for n in (1e3, 1e6)]
    return Machine(computing, {p: sent})


def test_what_was_measured_is_what_the_file_says(tmp_path: Path) -> None:
    keep(tmp_path / "machine.json", assembled(machine()))
    made = json.loads((tmp_path / "machine.json").read_text())
    device, links = made["device"], made["levels"][0]["links"]
    assert device["flops"]["fp32"] == pytest.approx(5e10, rel=1e-4)
    assert device["half"] == pytest.approx(5e4, rel=1e-3)
    assert device["bandwidth"] == pytest.approx(1e10)
    assert device["step"] == pytest.approx(2e-4, rel=1e-3)
    assert device["overhead"] == pytest.approx(1e-5, rel=1e-3)
    for op in OPS:
        assert links[op]["alpha"] == pytest.approx(1e-4, rel=1e-3)
        assert links[op]["bandwidth"] == pytest.approx(1e9, rel=1e-3)
    assert all(row["error"] < 1e-6 for row in made["calibration"]["fitted"])


def predicted(folder: Path, strategy: str, *more: str) -> Any:
    asked = ["predict", "--cluster", str(folder / "machine.json"), "--batch", "8"]
    asked += ["--model", "resnet-50", "--strategy", strategy, *more]
    return CliRunner().invoke(app, asked)


def test_the_oracle_predicts_with_the_file(tmp_path: Path) -> None:
    keep(tmp_path / "machine.json", assembled(machine()))
    found = cli_given.cluster_of(str(tmp_path / "machine.json"))
    assert found.size == 2
    assert found.levels[0].link("all_reduce").alpha == pytest.approx(1e-4, rel=1e-3)
    told = predicted(tmp_path, "Data(2)", "--json")
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["seconds"] > 0


def test_more_ranks_than_were_measured_are_refused(tmp_path: Path) -> None:
    keep(tmp_path / "machine.json", assembled(machine()))
    told = predicted(tmp_path, "Data(4)")
    assert told.exit_code == 2
    assert "expected at most 2" in told.output


@pytest.mark.parametrize(
    ("out", "says"),
    [
        ("nowhere/machine.json", "not a writable folder"),
        ("machine.txt", "ends in .json"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_measuring(
    out: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(app, ["calibrate", "--out", out])
    assert told.exit_code == 2
    assert says in told.output
    assert list(tmp_path.iterdir()) == []


def test_this_machine_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "machine.json"
    told = CliRunner().invoke(
        app, ["calibrate", "--quick", "--ranks", "2", "--out", str(out), "--json"]
    )
    assert told.exit_code == 0, told.output
    made = json.loads(out.read_text())
    assert [level["size"] for level in made["levels"]] == [2]
    for op in OPS:
        link = made["levels"][0]["links"][op]
        assert link["alpha"] >= 0
        assert link["bandwidth"] > 1e6
    assert made["device"]["flops"]["fp32"] > 1e8
    assert made["band"]["low"] <= 1 <= made["band"]["high"]
    cli_given.cluster_of(str(out))
