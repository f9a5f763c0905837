"""The study of the oracle's accuracy: right programs, honest predictions, its page."""

import dataclasses
import json
import shutil
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor

from atlas.launch import launch
from atlas.planner.accuracy import links, profile, study
from atlas.planner.accuracy.networks import NETWORKS, Network, build
from atlas.planner.accuracy.profile import Costs, Pace, paced, units
from atlas.planner.accuracy.programs import Flat, batch_of, program
from atlas.planner.network import Item
from atlas.planner.stages import total
from atlas.site import accuracy as page
from atlas.views.context import read
from exemplars.runtime import World
from exemplars.workload import cnns

ROOT = Path(__file__).parents[2]
SMALL = [name for name, net in NETWORKS.items() if net.batch > 8]


# The networks


@pytest.mark.parametrize("name", NETWORKS)
def test_torch_and_the_oracle_have_the_same_network(name: str) -> None:
    net = NETWORKS[name]
    made = build(net)
    assert sum(p.numel() for p in made.parameters()) == net.model.parameters
    assert len(list(units(net.model))) == len(made)


@pytest.mark.parametrize(("place", "name"), list(enumerate(SMALL)))
def test_the_small_networks_are_those_of_the_workload(place: int, name: str) -> None:
    whole = [p.shape for p in cnns("cpu")[place].parameters()]
    ours = [p.shape for p in build(NETWORKS[name]).parameters()]
    assert ours[: len(whole)] == whole
    assert len(ours) == len(whole) + 2  # the head


def test_what_is_judged_is_not_what_was_calibrated() -> None:
    for net in NETWORKS.values():
        for case in (c for c in study.CASES.values() if c.ranks == 2):
            size = net.micro if case.name == "pipeline" else net.batch / case.samples
            assert size not in net.calibrated, (net.name, case.name)


# The programs: the same gradients as one process


def gradients(w: World, name: str, net: Network) -> tuple[list[Tensor], list[Tensor]]:
    """Of one process, and of this rank of the strategy."""
    serial = build(net).double()
    x = batch_of(w, net).double()
    (serial(x).square().sum() / net.batch).backward()
    found: list[Tensor] = []
    with pytest.MonkeyPatch.context() as patch:
        grads = "update", lambda flat: found.extend(p.grad for p in flat.weights)
        patch.setattr(Flat, *grads)
        program(w, net, name, cuts=(2,))[1]()
    return [p.grad for p in serial.parameters() if p.grad is not None], found


def part_of(whole: Tensor, part: Tensor) -> bool:
    """Whether a part's gradient is some half of the whole's, filters or channels."""
    for axis in range(whole.dim()):
        for piece in whole.chunk(2, dim=axis):
            if piece.shape == part.shape and close(piece, part):
                return True
    return whole.shape == part.shape and close(whole, part)


def close(a: Tensor, b: Tensor) -> bool:
    # float32 against float64, through four layers and sums of 5000 pixels
    return float((a - b).abs().max()) <= 1e-4 * float(a.abs().max())


@pytest.mark.parametrize(
    ("name", "network", "ranks"),
    [
        ("data", "small-vgg", 2),
        ("data", "small-cosmoflow", 2),
        ("filter", "small-resnet", 2),
        ("channel", "small-resnet", 2),
        ("spatial", "small-resnet", 2),
        ("spatial", "small-cosmoflow", 2),
        ("data+filter", "small-vgg", 4),
        ("data+spatial", "small-vgg", 4),
    ],
)
def test_a_program_computes_the_gradients_of_one_process(
    name: str, network: str, ranks: int
) -> None:
    net = dataclasses.replace(NETWORKS[network], batch=4)
    for whole, parts in launch(gradients, ranks, name, net):
        assert len(whole) == len(parts)
        for a, b in zip(whole, parts, strict=True):
            assert part_of(a, b), (a.shape, b.shape)


def test_a_pipeline_computes_the_gradients_of_one_process() -> None:
    net = dataclasses.replace(NETWORKS["small-vgg"], batch=4, micro=2)
    seen = launch(gradients, 2, "pipeline", net)
    found = [g for _, parts in seen for g in parts]
    assert len(found) == len(seen[0][0])
    for a, b in zip(seen[0][0], found, strict=True):
        assert close(a, b)


def test_pools_and_linear_layers_work_on_rows() -> None:
    # As in ResNet-50, a pool that looks over the border; as in VGG-16, a linear
    # layer that needs the whole map.
    items = (
        Item(conv=8, kernel=7, stride=2, norm=True, bias=False),
        Item(pool="max", kernel=3, stride=2, padding=1),
        Item(bottleneck=8, stride=2),
        Item(linear=16),
        Item(linear=8, relu=False),
    )
    net = Network("both", (3, 32, 16), items, 4, 4, 2, (1, 2), 1)
    for whole, parts in launch(gradients, 2, "spatial", net):
        assert all(map(close, whole, parts))


# The predictions


def costs_of(net: Network, each: float = 1e-3) -> Costs:
    """A unit takes a millisecond a sample, of which products are three quarters."""
    pace = {n: Pace(n * each, 0.75 * n * each, 0.5 * n * each) for n in net.calibrated}
    count = len(list(units(net.model)))
    return Costs({n: [p] * count for n, p in pace.items()}, update=1e-9)


def test_a_paced_network_takes_the_seconds_of_its_profile() -> None:
    net = NETWORKS["resnet-50"]
    model = paced(net, costs_of(net), 4, "unit")
    work = total(model.layers)
    took = 3 * (work.flops / 1e11 + 4 * work.moved * 1e-9 / 12)
    assert took == pytest.approx(len(list(units(model))) * 1e-3)


def test_between_two_batches_lies_a_line_and_beyond_too() -> None:
    costs = Costs({2: [Pace(2.0)], 4: [Pace(6.0)], 8: [Pace(7.0)]}, 1e-9)
    assert [costs.at(n)[0].unit for n in (1, 2, 3, 4, 6, 8, 12)] == [
        pytest.approx(x) for x in (0.0, 2.0, 4.0, 6.0, 6.5, 7.0, 8.0)
    ]


def known(net: Network) -> study.Known:
    costs = costs_of(net)
    points = [(2.0**k, 1e-4 + 2.0**k / 1e9) for k in range(12, 29, 2)]
    named = ("gather", "sum", "swap", "replicas", "message", "all")
    seen = {p: dict.fromkeys(named, points) for p in (2, 4)}
    return study.Known(dict.fromkeys(study.PROFILES, costs), seen)


def test_data_parallelism_is_predicted_by_hand() -> None:
    net = NETWORKS["resnet-50"]
    found, _ = study.predicted(net, study.CASES["data"], known(net))
    n = net.model.parameters
    by_hand = 20 * 4 * 1e-3 + (1e-4 + 4 * n / 1e9) + n * 1e-9
    assert found.seconds == pytest.approx(by_hand, rel=1e-6)


def test_a_cut_divides_only_what_it_cuts() -> None:
    net = NETWORKS["resnet-50"]
    found, _ = study.predicted(net, study.CASES["filter"], known(net))
    # 18 units with products that are cut (not two pools, not the last layer).
    cut, whole = 17, 3
    by_hand = 8e-3 * (cut * (0.25 + 0.75 / 2) + whole)
    assert found.times.compute + found.times.memory == pytest.approx(by_hand)


def test_a_stage_that_works_alone_goes_at_the_pace_of_one_that_is_alone() -> None:
    # Two stages of a second a micro-batch, four of them: five seconds, of which both
    # work in three, and the first and the last are one's alone.
    net = dataclasses.replace(NETWORKS["small-vgg"], calibrated=(4, 16))
    before = known(net)
    found, _ = study.predicted(net, study.CASES["pipeline"], before)
    share = study.waiting(net, before.costs["stages"], found)
    took = found.times.compute + found.times.memory + found.times.bubble
    work = 4 * 6 * 8e-3  # four micro-batches through six units
    assert share == pytest.approx((2 * took - work) / took)
    quick = {**before.costs, "alone": costs_of(net, each=0.5e-3)}
    faster, _ = study.predicted(
        net, study.CASES["pipeline"], study.Known(quick, before.exchanges)
    )
    less = faster.times.compute + faster.times.memory + faster.times.bubble
    assert less == pytest.approx(took * (1 - share / 2))


TURNS = (
    {  # of two ranks: by pass and unit, there and back
        "units": [[(1.0, 2.0), (3.0, 1.0)], [(1.0, 2.0), (3.0, 3.0)]],
    },
    {
        "units": [[(2.0, 1.0), (2.0, 1.0)], [(2.0, 1.0), (2.0, 2.0)]],
    },
)


@pytest.mark.parametrize(
    ("gauge", "passes"),
    [
        (profile.mean, (6.5, 8.0)),
        (profile.last, (7.0, 9.0)),  # who waits at the end
        (profile.in_step, (8.0, 10.0)),  # who waits in every unit, there and back
    ],
)
def test_a_pass_is_as_long_as_ranks_wait_for_one_another(
    gauge: profile.Gauge, passes: tuple[float, float]
) -> None:
    turns = list(zip(*(rank["units"] for rank in TURNS), strict=True))
    assert tuple(map(gauge, turns)) == passes
    ranks = [{4: rank, "update": [1.0]} for rank in TURNS]
    found = profile.costs(ranks, gauge).paces[4]
    assert sum(pace.unit for pace in found) == pytest.approx(median(passes))


def test_an_exchange_lasts_from_the_last_coming_to_the_last_leaving() -> None:
    early = [(0.0, 5.0), (1.0, 2.0), (0.0, 1.0), (0.0, 9.0)]
    late = [(3.0, 4.5), (0.0, 4.0), (0.5, 0.6), (0.0, 8.0)]
    seen = [{"sum": [(8.0, turns)]} for turns in (early, late)]
    # 2, 3, half a second and 9, of which the shortest and the longest are left out.
    assert links.points(seen) == {"sum": [(8.0, 2.5)]}


def test_a_pass_computes_the_gradients_of_training() -> None:
    net = NETWORKS["small-vgg"]
    x = torch.rand(2, *net.image)
    whole, parts = build(net), build(net)
    whole(x).sum().backward()
    taken = profile.Pass(parts, x)
    for i in range(len(parts)):
        taken.forward(i)
    for i in reversed(range(len(parts))):
        taken.backward(i)
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert close(a.grad, b.grad)


def test_a_row_is_the_median_of_its_rounds() -> None:
    net, case = NETWORKS["resnet-50"], study.CASES["data"]
    made = []
    for each, steps in ((1e-3, [1.0, 2.0]), (3e-3, [3.0, 9.0]), (2e-3, [4.0])):
        costs = dict.fromkeys(study.PROFILES, costs_of(net, each))
        found, _ = study.predicted(net, case, study.Known(costs, known(net).exchanges))
        made.append((found, steps))
    told = study.row(net, case, made)
    assert told["predicted"] == made[2][0].seconds
    assert (told["measured"], told["fastest"], told["slowest"]) == (3.0, 1.0, 9.0)
    assert [m for _, m in told["rounds"]] == [1.5, 6.0, 4.0]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("case", study.CASES)
def test_every_strategy_is_predicted_on_every_network(name: str, case: str) -> None:
    net = NETWORKS[name]
    found, cuts = study.predicted(net, study.CASES[case], known(net))
    assert found.seconds > 0
    assert bool(cuts) == (case == "pipeline")


def test_a_link_is_the_line_through_sizes_near_the_message() -> None:
    # Two regimes: the small ones are slow by byte, and are not asked.
    seen = [(2.0**k, 2.0**k / (1e8 if k < 20 else 1e9)) for k in range(12, 29, 2)]
    found = links.link(seen, 2.0**25, p=2, rounds=2)
    assert found.alpha == pytest.approx(0.0, abs=1e-12)
    assert found.beta == pytest.approx(1e-9)


# What is told of it


def row(network: str, strategy: str, predicted: float, measured: float) -> Any:
    return {
        "network": network,
        "strategy": strategy,
        "ranks": study.CASES[strategy].ranks,
        "predicted": predicted,
        "measured": measured,
        "fastest": measured,
        "slowest": measured,
        "accuracy": study.accuracy(predicted, measured),
    }


ROWS = [
    row("a", "data", 0.9, 1.0),
    row("a", "filter", 3.0, 2.0),
    row("a", "pipeline", 1.0, 4.0),
    row("a", "data+filter", 9.0, 1.0),
]


def test_accuracy_is_one_less_the_relative_error() -> None:
    assert study.accuracy(0.9, 1.0) == pytest.approx(0.9)
    assert study.accuracy(1.1, 1.0) == pytest.approx(0.9)
    assert study.accuracy(3.0, 1.0) == pytest.approx(-1.0)


def test_a_summary_counts_two_ranks_and_keeps_the_failures() -> None:
    told = study.summary(ROWS)
    assert told["mean"] == pytest.approx((0.9 + 0.5 + 0.25) / 3)
    assert told["strategies"]["data+filter"]["worst"] == pytest.approx(-7.0)
    order = told["networks"]["a"]
    assert order["predicted"] == ["data", "pipeline", "filter"]
    assert order["measured"] == ["data", "filter", "pipeline"]
    assert (order["right"], order["pairs"]) == (2, 3)
    assert order["correlation"] == pytest.approx(0.5)


def test_the_page_says_which_goals_were_missed() -> None:
    told = "\n".join(page._goals(study.summary(ROWS)))
    assert told.count("**missed**") == 3
    good = [row("a", "data", 1.0, 1.0), row("a", "filter", 2.0, 2.0)]
    assert "missed" not in "\n".join(page._goals(study.summary(good)))


def test_the_page_shows_the_kept_study() -> None:
    kept = json.loads((ROOT / study.PLACE).read_text())
    made = page.page(read(ROOT))
    assert f"{kept['summary']['mean']:.1%}" in made
    for found in kept["rows"]:
        assert f"{found['accuracy']:.1%}" in made
    assert {r["network"] for r in kept["rows"]} == set(NETWORKS)
    assert {r["strategy"] for r in kept["rows"]} == set(study.CASES)


def test_the_page_says_if_the_oracle_has_changed_since(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "atlas/planner", tmp_path / "atlas/planner")
    (tmp_path / study.PLACE).parent.mkdir(parents=True)
    kept = json.loads((ROOT / study.PLACE).read_text())
    ctx = dataclasses.replace(read(ROOT), root=tmp_path)

    def told() -> bool:
        study.keep(tmp_path, kept["rows"])
        source.write_text(source.read_text() + added)
        made = "\n".join(page._statistical(ctx, study.kept(tmp_path)))
        return "sources have changed since" in made

    source = tmp_path / "atlas/planner/computing.py"
    added = "\n# a comment changes nothing\n"
    assert not told()
    added = "HALF = 0.5\n"
    assert told()


def test_the_kept_summary_is_that_of_its_rows() -> None:
    kept = json.loads((ROOT / study.PLACE).read_text())
    again = study.summary(kept["rows"])
    assert kept["summary"]["mean"] == pytest.approx(again["mean"], rel=1e-4)
    for name, told in again["strategies"].items():
        assert kept["summary"]["strategies"][name]["mean"] == pytest.approx(
            told["mean"], rel=1e-3
        )
