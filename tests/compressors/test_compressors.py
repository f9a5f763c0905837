"""The study of compressors: one protocol, its arithmetic, small runs, the record."""

import inspect
import json
import shutil
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import app
from typer.testing import CliRunner

from atlas.compressors import gradients, runs, study
from atlas.compressors.bias import bias
from atlas.compressors.entries import GIVEN, NATURES, entry, nature, plain
from atlas.compressors.study import Job
from atlas.launch import launch
from atlas.planner.accuracy import nodes, wire
from atlas.taxonomy import Technique, find_root, load
from atlas.views import compressors as view
from exemplars.runtime import World

ROOT = find_root()
ATLAS = load(ROOT)
WRITTEN = view.written(ATLAS)
SIZE = gradients.elements("digits")
RECORDED = [t for t in WRITTEN if view.read(ROOT, t.id)]
each = pytest.mark.parametrize("technique", RECORDED, ids=lambda t: t.id)


# --- the protocol


@each
def test_every_compressor_takes_the_sizes_of_the_protocol(technique: Technique) -> None:
    asked = inspect.signature(entry(technique).train).parameters
    assert {"w", "task", *GIVEN} <= asked.keys()
    assert all(asked[name].kind is inspect.Parameter.KEYWORD_ONLY for name in GIVEN)
    needed = {name for name, p in asked.items() if p.default is p.empty}
    assert needed <= {"w", "task", *GIVEN, *entry(technique).settings(SIZE)}


def played(w: World, technique: Technique | None) -> dict[str, Any]:
    """Three steps of gradients that are drawn here, and what was made of them."""
    drawn = [w.randn(SIZE, seed=i, dtype=torch.float) for i in range(3 * w.size)]
    asked: list[int] = []

    def gradient(number: int) -> torch.Tensor:
        asked.append(number)
        return drawn[number]

    ground = gradients.played("digits", gradient)
    chosen = entry(technique) if technique else plain()
    made = [-runs.flat(s) for s in runs.training(w, chosen, ground, 3, rate=1.0)]
    exact = torch.stack(drawn).mean(0) * 3
    return {"asked": asked, "sums": made, "exact": exact}


@each
def test_ranks_apply_one_update_of_single_numbers_in_each_step(
    technique: Technique,
) -> None:
    ranks = launch(played, 4, technique)
    for r, found in enumerate(ranks):
        assert found["asked"] == [r, 4 + r, 8 + r]
        assert [len(s) for s in found["sums"]] == [SIZE] * 3
        for mine, first in zip(found["sums"], ranks[0]["sums"], strict=True):
            assert mine.dtype is torch.float
            assert torch.equal(mine, first)


def test_without_compression_the_sum_of_the_means_is_applied() -> None:
    for found in launch(played, 4, None):
        # Sums of 12 numbers of about 1, in another order.
        assert torch.allclose(found["sums"][-1], found["exact"], atol=1e-5)


def test_a_played_gradient_is_the_gradient_wherever_the_weights_are() -> None:
    x = torch.linspace(-1, 1, SIZE)
    ground = gradients.played("digits", lambda number: x)
    model = ground.model()
    for p in model.parameters():
        torch.nn.init.ones_(p)
    given, y = ground.batch(5, 8)
    slopes = torch.autograd.grad(ground.loss(model, given, y), [*model.parameters()])
    assert torch.equal(torch.cat([s.reshape(-1) for s in slopes]), x)


@each
def test_what_is_known_of_a_compressor_is_said(technique: Technique) -> None:
    assert technique.id in NATURES


def repeated(w: World, technique: Technique) -> list[torch.Tensor]:
    """Three times the same gradient: what was applied each time."""
    x = w.randn(SIZE, seed=w.rank, dtype=torch.float)
    ground = gradients.played("digits", lambda number: x)
    sums = [-runs.flat(s) for s in runs.training(w, entry(technique), ground, 3, 1.0)]
    return [sums[0], sums[1] - sums[0], sums[2] - sums[1]]


@each
def test_only_a_compressor_that_draws_or_remembers_changes_its_answer(
    technique: Technique,
) -> None:
    first, second, _ = launch(repeated, 2, technique)[0]
    known = nature(technique.id)
    # Differences of sums: the last bits are not those of a single update.
    same = torch.allclose(first, second, atol=1e-5)
    assert same != (known.draws or known.memory)


# --- the arithmetic


def test_equal_errors_are_all_bias() -> None:
    found = bias([[4.0] * 5] * 5, norm=2.0)
    assert (found.square, found.low, found.high) == (1.0, 1.0, 1.0)


def test_errors_at_right_angles_have_no_bias() -> None:
    found = bias([[9.0 * (i == j) for j in range(5)] for i in range(5)], norm=3.0)
    assert (found.square, found.low, found.high) == (0.0, 0.0, 0.0)


def test_two_blocks_have_no_band() -> None:
    with pytest.raises(ValueError, match="2 blocks: at least 3"):
        bias([[1.0, 0.0], [0.0, 1.0]], norm=1.0)


@pytest.mark.parametrize("true", [0.0, 0.5])
def test_the_band_holds_the_bias_nineteen_times_in_twenty(true: float) -> None:
    source = torch.Generator().manual_seed(0)
    held = 0
    for _ in range(200):
        errors = torch.randn(32, 50, generator=source).double()
        errors[:, 0] += true
        found = bias((errors @ errors.T).tolist(), norm=1.0)
        held += found.low <= true**2 <= found.high
    # 190 of 200 expected; four standard deviations of such a count are 12.3, and the
    # jackknife's band is a little too wide or narrow for products.
    assert held >= 175


def test_a_link_breaks_even_where_the_bytes_saved_take_as_long_as_the_work() -> None:
    assert view.break_even(1_000_000, 0, extra=0.008) == 1e9
    assert view.break_even(1000, 750, extra=0.002) == 1e6
    assert view.break_even(1000, 1000, extra=0.002) == 0
    assert view.break_even(1000, 2000, extra=0.0) == 0
    assert view.break_even(1000, 10, extra=0.0) == inf
    assert [view.said_rate(r) for r in (0.0, inf, 987e6, 1.43e9)] == [
        "never",
        "always",
        "990 Mbit/s",
        "1.4 Gbit/s",
    ]


def test_at_break_even_both_steps_last_equally_long() -> None:
    rate = view.break_even(500_000, 20_000, extra=0.003)
    assert 8 * 500_000 / rate == pytest.approx(8 * 20_000 / rate + 0.003)


def times(seconds: float, before: float, after: float) -> dict[str, float]:
    spread = {"low": seconds - 1, "high": seconds + 2}
    return {"seconds": seconds, "before": before, "after": after, **spread}


def test_encoding_comes_before_the_first_call() -> None:
    found = view.cost(times(10, 9, 3), times(4, 1, 3))
    assert (found.encode, found.decode, found.both) == (4.5, 1.5, 6)
    assert found.spread == 3


def test_what_takes_no_longer_than_a_plain_step_costs_nothing() -> None:
    found = view.cost(times(3, 1, 1), times(4, 2, 2))
    assert (found.encode, found.decode) == (0, 0)


def test_a_step_is_its_work_its_calls_and_its_bytes() -> None:
    link = {"beta": 1e-6, "credit": 0.001, "latency": {"all_reduce": 0.0002}}
    said = view.step_seconds(0.01, {"all_reduce": 3}, 5000, link)
    assert said == pytest.approx(0.01 + 0.0006 + 0.004)
    # What fits into the burst passes at once.
    said = view.step_seconds(0.01, {"all_reduce": 1}, 900, link)
    assert said == pytest.approx(0.0102)
    assert view.step_seconds(0.01, {"gather": 1}, 900, link) is None


def test_a_search_walks_down_and_up_until_it_gets_worse() -> None:
    losses = {0.1: 3.0, 0.2: 2.0, 0.3: 1.0, 0.4: 0.5, 0.5: inf, 0.6: 0.1}
    seen = study.search(losses.__getitem__, tuple(losses), start=0.3)
    assert set(seen) == {0.2, 0.3, 0.4, 0.5}


def test_a_search_goes_on_where_everything_diverges() -> None:
    losses = {0.1: 1.0, 0.2: inf, 0.3: inf}
    assert set(study.search(losses.__getitem__, tuple(losses), 0.3)) == set(losses)


def test_kept_figures_have_six_digits() -> None:
    assert study.rounded({1: [1 / 3, 7, None]}) == {"1": [0.333333, 7, None]}


# --- small runs


def test_a_study_is_taken_up_where_it_was_left(tmp_path: Path) -> None:
    shutil.copytree(ROOT / view.ROOM, tmp_path / view.ROOM)
    jobs = study.jobs([], ["values", "loss"])
    assert study.due(tmp_path, jobs) == jobs
    part = {
        "source": view.source(tmp_path, None),
        "settings": {"digits": {}, "characters": {}},
    }
    study.keep(tmp_path, jobs[0], part)
    assert study.due(tmp_path, jobs) == jobs[1:]
    with (tmp_path / view.ROOM / "runs.py").open("a") as file:
        file.write("LATER = 1\n")
    assert study.due(tmp_path, jobs) == jobs


def test_values_are_the_same_whenever_they_are_measured() -> None:
    technique = ATLAS.techniques["qsgd"]
    kept = view.read(ROOT, "qsgd")
    assert kept is not None
    again = study.measure(ROOT, Job(technique, "values"))["found"]
    for task in gradients.TASKS:
        mine, theirs = again[task], kept["parts"]["values"]["found"][task]
        assert mine["handed"] == theirs["handed"]
        for name in ("first", "after"):
            for ours, old in zip(mine[name], theirs[name], strict=True):
                # Another processor may add in another order.
                assert ours["error"] == pytest.approx(old["error"], rel=0.01)
        assert mine["bias"]["low"] < 0 < mine["bias"]["high"]


@pytest.fixture(scope="module")
def permitted() -> None:
    """Only where the machine lets us have networks of our own."""
    if lacking := nodes.missing():
        pytest.skip(lacking)


@pytest.mark.usefixtures("permitted")
def test_a_step_on_a_link_puts_the_whole_gradient_on_the_wire() -> None:
    for rank in launch(runs.wires, 2, plain(), 1_000_000_000, timeout=60):
        for task in gradients.TASKS:
            least = 4 * gradients.elements(task) / wire.PAYLOAD * wire.FRAME
            # Acknowledgements come on top, and small messages of the group.
            assert least < rank[task]["sent"] < 1.1 * least
            assert 0 < rank[task]["low"] <= rank[task]["seconds"]


def test_a_training_ends_with_a_lower_loss_than_it_began_with() -> None:
    fresh = torch.cat([p.reshape(-1) for p in gradients.network("digits").parameters()])
    before = gradients.evaluate("digits", fresh)
    after = launch(runs.loss, 2, plain(), "digits", 0.1, 0, timeout=60)[0]
    assert after < before / 2


# --- the command


def test_an_unknown_compressor_or_part_is_told_in_one_line() -> None:
    for wrong, says in (
        (["top-k"], 'there is no compressor "top-k": did you mean '),
        (["--part", "value"], 'there is no part "value": did you mean values?'),
        (["--again"], "--again measures, and needs --write"),
    ):
        done = CliRunner().invoke(app, ["compressors", *wrong])
        assert done.exit_code == 2
        assert done.stderr.startswith(says)
        assert len(done.stderr.splitlines()) == 1


def test_the_command_lists_and_shows_every_compressor() -> None:
    done = CliRunner().invoke(app, ["compressors", "--list"])
    assert done.stdout.split() == [t.id for t in WRITTEN]
    shown = CliRunner().invoke(app, ["compressors"], env={"COLUMNS": "100"}).stdout
    for t in WRITTEN:
        assert shown.count(f" {t.id} ") == len(gradients.TASKS)


def test_json_has_what_the_table_has() -> None:
    done = CliRunner().invoke(app, ["compressors", "qsgd", "--json"])
    found = json.loads(done.stdout)
    assert [row["compressor"] for row in found] == ["plain", "qsgd"]
    assert found[1]["tasks"]["digits"]["exact"] is True


# --- the record


def test_every_kept_compressor_is_one() -> None:
    kept = {path.stem for path in (ROOT / view.PLACE).glob("*.json")}
    assert kept <= {view.PLAIN, *(t.id for t in view.compressors(ATLAS))}


def test_bytes_are_those_of_the_formula_wherever_there_is_one() -> None:
    rows = [r for r in view.rows(ROOT, ATLAS) if "values" not in r.missing]
    exact = [r.tasks[task].exact for r in rows for task in gradients.TASKS]
    assert True in exact
    assert False not in exact
