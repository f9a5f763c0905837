"""The oracle against the meter: bytes, calls and memory of recorded runs, with ==.

Every exemplar has a case, in tests/exact_*.py: what the oracle predicts of it is what
its records hold, on gloo at 2 to 8 ranks and dry at up to 1024. What a record has
beyond that is listed here, each with the reason why no strategy predicts it.
"""

from collections.abc import Iterator
from typing import Any

import exact_agreement  # noqa: F401 (registers its cases)
import exact_cuts  # noqa: F401
import exact_patterns  # noqa: F401
import pytest
from exact import CASES, ROOT, Most, counted

from atlas.record import read

BACKENDS = ("gloo", "dry")
NAMES = sorted(path.stem for path in (ROOT / "measurements/gloo").glob("*.json"))

TRAINING = "how well it trains, not what it costs"
CLOCK = "an order of events in virtual time"
RANKS = "how many there are; the most there may be is compared below"
SEARCH = "what a search looks at, not what a step costs"
#: Measures that are no strategy's cost, and why.
BESIDE = {
    "activation-checkpointing": {"best": SEARCH},
    "channel": {"ranks": RANKS},
    "d-psgd": {"halved": TRAINING},
    "data-filter": {"ranks": RANKS},
    "data-spatial": {"ranks": RANKS},
    "ddp-by-hand": {"early": CLOCK},
    "downpour": dict.fromkeys(
        ("oldest", "others", "straggler", "updates", "youngest"), CLOCK
    ),
    "elastic-averaging-asynchronous": {"left": TRAINING, "meetings": CLOCK},
    "embedding-sharding": {"ranks": RANKS},
    "expert-parallel": {"dropped": TRAINING},
    "filter": {"ranks": RANKS},
    "gossip-exchange": {"disagreement": TRAINING},
    "halo-exchange": {"ranks": RANKS},
    "local-parallelism": {"cosine": TRAINING},
    "mixed-precision": {"lost": TRAINING},
    "qsgd": {"bias": TRAINING, "variance": TRAINING},
    "ring-attention": {"pairs": "the oracle counts attention without a causal mask"},
    "shared-memory-all-reduce": dict.fromkeys(
        ("sent", "barriers"), "the oracle knows links, not memory that ranks share"
    ),
    "sharded-parameter-server": {"total": "the ranks' sum: each is compared"},
    "spatial": {"ranks": RANKS},
    "stale-synchronous-parallel": dict.fromkeys(
        ("gap", "sees", "updates", "waits"), CLOCK
    ),
    "strategy-search": dict.fromkeys(("asked", "plans", "single"), SEARCH),
    "tensor-parallel-column-row": {"ranks": RANKS},
    "three-d": {"place": "where a rank stands", "ranks": RANKS},
    "ulysses": {"ranks": RANKS},
    "zero-copy-transfer": dict.fromkeys(
        ("bytes_pickled", "messages_pickled", "overhead"), "what Python's pickle adds"
    ),
}


def runs(name: str, backend: str) -> Iterator[dict[str, Any]]:
    """The recorded runs of more than one rank."""
    record = read(ROOT, backend, name)
    assert record is not None, f"no {backend} record of {name}"
    yield from (made for made in record["runs"] if made["p"] > 1)


def rounded(figures: dict[int, float]) -> dict[int, float]:
    """A p-th of a byte has no last digit; a millionth of one is nothing."""
    return {rank: round(figure, 6) for rank, figure in figures.items()}


def test_every_exemplar_has_a_case_and_every_case_an_exemplar() -> None:
    assert sorted(CASES) == NAMES


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_prediction_is_what_the_meter_counted(name: str, backend: str) -> None:
    seen = 0
    for made in runs(name, backend):
        for claim, figure in CASES[name](made["p"], made["given"]).items():
            found = {rank["rank"]: counted(rank, claim) for rank in made["ranks"]}
            if isinstance(figure, Most):
                found, figure = {0: max(found.values())}, figure.figure
            says = {r: figure(r) if callable(figure) else figure for r in found}
            assert rounded(found) == rounded(says), (claim, made["p"])
            seen += 1
    assert seen


@pytest.mark.parametrize("name", NAMES)
def test_a_measure_is_compared_or_has_a_reason(name: str) -> None:
    every = list(runs(name, "gloo"))
    compared = {c for made in every for c in CASES[name](made["p"], made["given"])}
    measured = {m for made in every for rank in made["ranks"] for m in rank["measured"]}
    beside = BESIDE.get(name, {}).keys()
    assert measured - compared == beside
