"""The oracle against the meter: bytes, calls, memory and operations, with ==.

An exemplar that the planner has a strategy for has a case in tests/helpers/exact_*.py:
what the oracle predicts of it is what its records hold, on gloo at 2 to 8 ranks and dry
at up to 1024. What a record has beyond that is listed here, each with the reason why no
strategy predicts it.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import exact_agreement  # noqa: F401 (registers its cases)
import exact_cuts  # noqa: F401
import exact_patterns  # noqa: F401
import pytest
from by_name import f
from exact import (
    CASES,
    CLUSTER,
    ROOT,
    Most,
    counted,
    four_networks,
    image_network,
    run,
    stack,
)
from exact_flops import FLOPS

from atlas.measure import measure
from atlas.planner.errors import OracleError
from atlas.planner.model import Model
from atlas.planner.rules import check
from atlas.planner.strategy import (
    Axis,
    Channel,
    Context,
    Data,
    Embedding,
    Filter,
    Pipeline,
    ScheduleName,
    Spatial,
    Strategy,
    Tensor,
)
from atlas.planner.transformer import transformer
from atlas.record import read
from atlas.taxonomy import Technique, load

BACKENDS = ("gloo", "dry")
FILES = (ROOT / "exemplars").glob("*/*/[!_]*.py")
WRITTEN = {path.stem.replace("_", "-") for path in FILES}
NAMES = sorted(CASES)

TRAINING = "how well it trains, not what it costs"
CLOCK = "an order of events in virtual time"
SEARCH = "what a search looks at, not what a step costs"
#: Measures that are no strategy's cost, and why.
BESIDE = {
    "activation-checkpointing": {"best": SEARCH},
    "backup-workers": dict.fromkeys(("dropped", "gradients", "staleness"), CLOCK),
    "d-psgd": {"halved": TRAINING},
    "ddp-by-hand": {"early": CLOCK},
    "double-binary-tree": {"busiest": "of the ranks: each is compared"},
    "downpour": dict.fromkeys(
        ("oldest", "others", "straggler", "updates", "youngest"), CLOCK
    ),
    "elastic-averaging-asynchronous": {"meetings": CLOCK},
    "expert-parallel": {"dropped": TRAINING},
    "gossip-exchange": {"disagreement": TRAINING},
    "local-parallelism": {"cosine": TRAINING},
    "mixed-precision": {"lost": TRAINING},
    "one-bit-sgd": {"gathered": "what it is compared with, and does not do"},
    "qsgd": dict.fromkeys(("bias", "spread", "variance"), TRAINING),
    "ring-attention": {
        "pairs": "the oracle counts attention without a causal mask",
    },
    "shared-memory-all-reduce": dict.fromkeys(
        ("sent", "barriers", "left"),
        "the oracle knows links, not memory that ranks share",
    ),
    "sharded-parameter-server": {"total": "the ranks' sum: each is compared"},
    "spatial": {"rows": "of the smallest map: how a rank's share is told"},
    "stale-synchronous-parallel": dict.fromkeys(("gap", "updates", "waits"), CLOCK),
    "strategy-search": {"asked": SEARCH},
    "three-d": dict.fromkeys(
        ("data_first", "tensor_first"), "where the groups of a rank begin"
    ),
    "tree-all-reduce": {"total": "the ranks' sum: each is compared"},
    "zero-copy-transfer": dict.fromkeys(
        ("bytes_pickled", "messages_pickled"), "what Python's pickle adds"
    ),
}


def runs(name: str, backend: str) -> Iterator[dict[str, Any]]:
    """The recorded runs of more than one rank."""
    record = read(ROOT, backend, name)
    assert record is not None, f"no {backend} record of {name}"
    yield from (made for made in record["runs"] if made["p"] > 1)


@functools.cache
def techniques() -> dict[str, Technique]:
    """The taxonomy's, read once."""
    return load(ROOT).techniques


def rounded(figures: dict[int, float]) -> dict[int, float]:
    """A p-th of a byte has no last digit; a millionth of one is nothing."""
    return {rank: round(figure, 6) for rank, figure in figures.items()}


def test_every_case_is_of_an_exemplar_and_has_its_operations() -> None:
    """A new exemplar needs no case: the planner may know no strategy for it."""
    assert CASES.keys() == FLOPS.keys()
    assert CASES.keys() <= WRITTEN


def agree(name: str, made: dict[str, Any]) -> None:
    """Every figure that the oracle predicts of this run is the meter's."""
    p, given = made["p"], made["given"]
    expected = {**CASES[name](p, given), "flops": FLOPS[name](p, given)}
    assert len(expected) > 1
    for claim, figure in expected.items():
        found = {rank["rank"]: counted(rank, claim) for rank in made["ranks"]}
        if isinstance(figure, Most):
            found, figure = {0: max(found.values())}, figure.figure
        says = {r: figure(r) if callable(figure) else figure for r in found}
        assert rounded(found) == rounded(says), (claim, p)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_prediction_is_what_the_meter_counted(name: str, backend: str) -> None:
    every = list(runs(name, backend))
    assert every
    for made in every:
        agree(name, made)


@pytest.mark.parametrize("name", NAMES)
def test_a_prediction_is_what_a_dry_run_of_eight_ranks_counts(name: str) -> None:
    """Run here: the records have eight ranks on gloo, and dry ones from 64 on."""
    agree(name, measure(techniques()[name], 8, mode="dry"))


#: At their peak two whole batches hide what a rank keeps of its own samples.
CROWDED = (
    "cpu-offload-optimizer",
    "ddp-by-hand",
    "mixed-precision",
    "sharded-parameter-server",
    "zero-1",
    "zero-2",
    "zero-3",
)


@pytest.mark.parametrize("name", CROWDED)
def test_a_prediction_is_what_one_step_on_a_single_batch_counts(name: str) -> None:
    agree(name, measure(techniques()[name], 4, mode="dry", steps=1))


@pytest.mark.parametrize("name", NAMES)
def test_a_measure_is_compared_or_has_a_reason(name: str) -> None:
    every = list(runs(name, "gloo"))
    compared = {c for made in every for c in CASES[name](made["p"], made["given"])}
    ranks = [rank for made in every for rank in made["ranks"]]
    measured = {claim for rank in ranks for claim in (*rank["measured"], *held(rank))}
    assert measured - compared == BESIDE.get(name, {}).keys()


def held(rank: dict[str, Any]) -> Iterator[str]:
    """The kinds of memory that the meter and the oracle both tell apart."""
    kinds = ("parameters", "gradients", "optimizer", "activations")
    peak = rank.get("memory", {"peak": ()})["peak"]
    yield from (f"memory.peak.{kind}" for kind in kinds if kind in peak)


# Time, where a clock is virtual

#: Weight stashing is left out: its pipeline never drains, but a recorded run ends.
SCHEDULES: dict[str, ScheduleName] = {
    "gpipe": "gpipe",
    "one-f-one-b": "1f1b",
    "local-parallelism": "local",
    "three-d": "gpipe",
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_bubble_is_what_ranks_idle_by_the_virtual_clock(name: str) -> None:
    for made in runs(name, "gloo"):
        g, derived = made["given"], made["derived"]
        p, m = made["p"], g["microbatches"]
        if name == "three-d":
            p = f.three_d_stages(p, g["stages"])
        axis = Pipeline(p, SCHEDULES[name])
        times = run(stack(p, 1), axis, batch=m, micro_batch=1).times
        second = times.compute / (m * (g["forward"] + g["backward"]))
        assert {round(times.bubble / second, 6)} == set(derived["idle"])
        assert round((times.compute + times.bubble) / second, 6) == derived["makespan"]


# Limits


def heads(n: int) -> Model:
    """A transformer with so many heads, and tokens for any number of ranks."""
    tokens = math.lcm(n, n + 1)
    return transformer("heads", layers=1, width=n, heads=n, vocabulary=2, tokens=tokens)


#: The strategy of so many ranks, of those that an exemplar would refuse to run.
LIMITED: dict[str, Callable[[int, dict[str, int]], tuple[Model, Strategy | Axis]]] = {
    "channel": lambda p, g: (four_networks(), Channel(p)),
    "data-filter": lambda p, g: (
        four_networks(),
        Data(g["batch"]) * Filter(p // g["batch"]),
    ),
    "data-spatial": lambda p, g: (
        four_networks(),
        Data(g["batch"]) * Spatial(p // g["batch"]),
    ),
    "embedding-sharding": lambda p, g: (
        Model("tables", "recommender", four_networks().layers, tables=g["tables"]),
        Embedding(p),
    ),
    "filter": lambda p, g: (four_networks(), Filter(p)),
    "halo-exchange": lambda p, g: (image_network(g), Spatial(p)),
    "spatial": lambda p, g: (four_networks(), Spatial(p)),
    "strategy-search": lambda p, g: (heads(g["width"]), Tensor(p)),
    "tensor-parallel-column-row": lambda p, g: (heads(g["heads"]), Tensor(p)),
    "ulysses": lambda p, g: (heads(g["heads"]), Context(p, "ulysses")),
}


@pytest.mark.parametrize("name", LIMITED)
def test_the_oracle_refuses_more_ranks_than_the_exemplar_can_have(name: str) -> None:
    from exemplars.workload import ROWS

    *_, made = runs(name, "dry")
    p, g = made["p"], made["given"]
    if name == "data-spatial":  # its groups are powers of 2: 8 ranks for 9 rows
        p = g["batch"] * ROWS
    more = g["batch"] if name.startswith("data-") else 1
    model, most = LIMITED[name](p, g)
    check(model, Strategy.of(most), CLUSTER)
    with pytest.raises(OracleError):
        check(model, Strategy.of(LIMITED[name](p + more, g)[1]), CLUSTER)


@pytest.mark.parametrize("name", NAMES)
def test_dry_runs_reach_1024_ranks_or_the_most_there_may_be(name: str) -> None:
    sizes = {made["p"] for made in runs(name, "dry")}
    assert sizes >= {64, 1024} or name in LIMITED
    fit = {p for p in (2, 3, 4, 8) if p >= techniques()[name].min_ranks}
    assert {made["p"] for made in runs(name, "gloo")} >= fit
