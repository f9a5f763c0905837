"""The race: the exemplars' own training, called with other sizes."""

import inspect
from dataclasses import replace

import pytest
from command_line import app
from typer.testing import CliRunner

from atlas.race import NAMES, runs, study, sweep
from atlas.race.courses import RANKS, Course, Name, network, task
from atlas.race.strategies import ENTRIES, arguments, duration
from atlas.record import RecordError
from atlas.taxonomy import find_root
from atlas.views.race import verdict

SHORT = Course("digits", 12, 0.3, looks=3)


def last(name: str, course: Course) -> float:
    """The last loss that is seen of a strategy."""
    return float(runs.run(ENTRIES[name], course)["curve"][-1][2])


def test_the_names_known_without_torch_are_those_that_run() -> None:
    assert tuple(ENTRIES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_race_gives_all_that_an_exemplar_asks_for(name: str) -> None:
    entry, made = ENTRIES[name], arguments(ENTRIES[name], SHORT, rank=1)
    asked = inspect.signature(entry.train).parameters.values()
    needed = {p.name for p in asked if p.default is p.empty} - {"w", "task"}
    assert needed <= set(made)
    assert set(entry.settings) <= set(made)


def test_a_server_is_given_the_time_that_its_workers_need() -> None:
    """48 shares of three workers, and of two and a third."""
    assert duration(SHORT, period=1) == 16
    assert duration(replace(SHORT, straggler=True), period=1) == 21
    assert duration(SHORT, period=8) == 16  # twice eight steps of each
    few = replace(SHORT, steps=10)
    assert duration(few, period=1) == 14  # 40 shares of three workers
    assert duration(few, period=1, gradients=4) == 14
    assert duration(few, period=1, gradients=9) == 15  # five updates


@pytest.mark.parametrize(
    "ground", ["digits", pytest.param("characters", marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("entry", NAMES)
def test_every_strategy_takes_all_the_samples(entry: str, ground: Name) -> None:
    course = replace(SHORT, task=ground, rate=0.03, straggler=True)
    found = runs.run(ENTRIES[entry], course)
    samples = [row[0] for row in found["curve"]]
    assert len(samples) == course.looks
    # A period of eight steps may take a few samples more than were asked for.
    assert course.samples <= samples[-1] <= course.samples + 8 * course.batch
    times = [row[1] for row in found["curve"]]
    assert times == sorted(times)
    assert times[0] > 0


def test_backprop_in_layers_is_synchronous_sgd() -> None:
    ours, theirs = last("local-parallelism:backprop", SHORT), last(NAMES[0], SHORT)
    assert ours == pytest.approx(theirs, rel=1e-12)  # another order of additions


def test_a_straggler_costs_synchrony_time_and_asynchrony_age() -> None:
    equal, slow = SHORT, replace(SHORT, straggler=True)
    bsp = [runs.run(ENTRIES[NAMES[0]], c) for c in (equal, slow)]
    assert [r["curve"][-1][1] for r in bsp] == [12, 36]
    assert bsp[0]["curve"][-1][2] == bsp[1]["curve"][-1][2]
    downpour = [runs.run(ENTRIES["downpour"], c) for c in (equal, slow)]
    assert downpour[0]["oldest"] == 2  # the two other workers, once each
    assert downpour[1]["oldest"] == 6  # three times each


def test_stashing_is_as_stale_as_the_pipeline_is_deep() -> None:
    assert runs.run(ENTRIES["weight-stashing"], SHORT)["oldest"] == RANKS - 1


def test_a_run_is_the_same_twice() -> None:
    for name in ("downpour", "weight-stashing"):
        assert runs.run(ENTRIES[name], SHORT) == runs.run(ENTRIES[name], SHORT)


def test_a_loss_that_is_no_number_is_kept_as_one_beyond_all_sense() -> None:
    """JSON has no NaN, and a page's script would not read it."""
    counted = {"bytes": 1, "staleness": 0.0, "oldest": 0, "alone": None}
    races = [{"curve": [[8, 1.0, loss]], **counted} for loss in (2.0, float("nan"))]
    (row,) = study.average(races)["curve"]
    assert row == [8, 1.0, study.BEYOND / 2, 2.0, study.BEYOND]


def test_seeds_change_the_network_and_the_batches() -> None:
    one, two = (replace(SHORT, seed=s) for s in (1, 2))
    assert not (task(one).batch(0, 4)[0] == task(two).batch(0, 4)[0]).all()
    first = [next(network("digits", s).parameters()) for s in (1, 2)]
    assert not (first[0] == first[1]).all()


def test_the_best_rate_is_the_one_with_the_lowest_loss() -> None:
    entry, heard = ENTRIES[NAMES[0]], list[str]()
    rate, losses = study.best(entry, SHORT, (0.003, 0.3), heard.append)
    assert rate == 0.3
    assert losses[1] < losses[0]
    assert len(heard) == 2


def test_a_plan_knows_how_many_runs_it_makes() -> None:
    heard: list[str] = []
    plan = study.Plan(
        entries=(ENTRIES["downpour"], ENTRIES["local-sgd"]),
        tasks=("digits",),
        seeds=(1,),
        grid=(0.1,),
        steps=8,
    )
    made = study.race(plan, heard.append)
    assert len(heard) == plan.total
    assert made["digits"]["downpour"]["straggler"]["rate"] == 0.1
    assert made["digits"]["local-sgd"]["peak"] > 0


def test_steps_to_a_target_lie_between_two_looks() -> None:
    curve = [[64, 2.0, 3.0], [128, 4.0, 2.0], [192, 6.0, 1.0]]
    assert sweep.steps_to(9.0, curve, batch=32) == 2
    assert sweep.steps_to(1.5, curve, batch=32) == 5
    assert sweep.steps_to(1.0, curve, batch=32) == 6
    assert sweep.steps_to(0.5, curve, batch=32) is None


def test_a_claim_is_seen_only_when_the_seeds_are_apart() -> None:
    low, high, both = [0, 0, 1.0, 0.9, 1.1], [0, 0, 2.0, 1.9, 2.1], [0, 0, 1, 0.5, 3]
    assert verdict(high, low).startswith("yes")
    assert verdict(low, high).startswith("no:")
    assert verdict(both, low).startswith("not")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            ["downpuor"],
            'there is no strategy in a race "downpuor": did you mean downpour?',
        ),
        (["--task", "digit"], 'there is no task "digit": did you mean digits?'),
        (["--seeds", "1", "--write"], "--write saves races of the whole study"),
    ],
)
def test_what_cannot_be_raced_is_refused_in_one_line(
    wrong: list[str], says: str
) -> None:
    done = CliRunner().invoke(app, ["race", *wrong])
    assert done.exit_code == 2
    assert done.stderr.startswith(says)
    assert len(done.stderr.splitlines()) == 1


def test_the_race_names_its_strategies() -> None:
    done = CliRunner().invoke(app, ["race", "--list"])
    assert done.stdout.split() == list(NAMES)


def test_a_race_prints_a_table_that_fits() -> None:
    fast = ["--task", "digits", "--seeds", "1", "--rate", "0.1", "--steps", "8"]
    done = CliRunner().invoke(app, ["race", NAMES[0], *fast], env={"COLUMNS": "80"})
    assert done.exit_code == 0
    assert done.stdout.count(NAMES[0]) == 2  # with and without a straggler


def test_a_strategy_that_always_diverges_is_told_in_one_line() -> None:
    hot = replace(SHORT, task="characters", steps=40)
    with pytest.raises(RecordError, match=r"diverges at every rate \(1e\+06\)"):
        study.best(ENTRIES["downpour"], hot, (1e6,), print)


def test_the_kept_sweep_is_the_one_that_would_be_made() -> None:
    kept = study.kept(find_root())["sweep"]
    assert sorted(kept) == sorted(study.TASKS)
    batches = [RANKS * share for share in sweep.SHARES]
    for ground, made in kept.items():
        assert made["target"] == sweep.TARGET[ground]
        assert made["grid"] == list(sweep.RATES)
        assert made["most"] == sweep.MOST
        for name in sweep.METHODS:
            assert [point["batch"] for point in made["points"][name]] == batches
