"""A run is placed by what it did; each family has a log that only it could have."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from atlas import taxonomy
from atlas.classify import classify, share, study
from atlas.classify.judged import SIGNS, judge
from atlas.classify.shape import shape
from atlas.taxonomy import Technique

ROOT = Path(__file__).resolve().parents[2]
ATLAS = taxonomy.load(ROOT)
WRITTEN = study.written(ATLAS)
KEPT = study.read(ROOT)

Log = list[dict[str, Any]]


# Logs by hand: weights are letters, and their digests too


def digest(weights: str) -> str:
    return f"shape:{weights}"


def log(*events: Any) -> Log:
    """('read', 'a'), ('update', 'b'), ('to', 1, 'a'), ('from', 1), ('all', 4)."""
    made: Log = [{"kind": "start"}]
    for kind, *more in events:
        match kind:
            case "to":
                event = {"kind": "send", "peer": more[0], "bytes": 8}
                made.append(event | {"what": digest(more[1])})
            case "from":
                made.append({"kind": "recv", "peer": more[0]})
            case "all":
                group = list(range(more[0]))
                made.append({"kind": "collective", "group": group, "bytes": 8})
            case _:
                made.append({"kind": kind, "what": digest(more[0])})
    return [*made, {"kind": "stop"}]


def family(logs: Sequence[Log], facet: str = "consistency") -> str | None:
    found: str | None = getattr(classify(logs), facet).family
    return found


def replicas(*versions: Sequence[str], met: int = 4) -> list[Log]:
    """Ranks that meet and update, with what each has read in turn."""
    return [
        log(*(e for v in line for e in (("read", v), ("all", met), ("update", v))))
        for line in versions
    ]


def test_equal_weights_in_every_step_are_synchronous() -> None:
    logs = replicas(*["abc"] * 4)
    assert family(logs) == "synchronous"
    assert family(logs, "optimizer") == "central"


def test_equal_weights_now_and_then_are_periodic() -> None:
    logs = replicas("abcd", "axcy", "auct", "arcs")
    assert family(logs) == "periodic"
    assert family(logs, "optimizer") == "per-worker"


def test_copies_that_all_meet_at_times_are_periodic() -> None:
    lines = [
        log(
            ("read", "a"),
            ("update", f"{r}1"),
            ("read", f"{r}1"),
            ("all", 4),
            ("update", f"{r}2"),
            ("read", f"{r}2"),
        )
        for r in range(4)
    ]
    assert family(lines) == "periodic"


def test_parts_that_all_meet_in_every_step_are_synchronous() -> None:
    logs = replicas("abc", "xyz", "uvw", "rst")
    assert family(logs) == "synchronous"


def test_copies_that_meet_neighbors_alone_are_a_consensus() -> None:
    def rank(r: int) -> Log:
        near = [(r + 1) % 4, (r - 1) % 4]
        events: list[Any] = [("read", "a")]
        for step in range(2):
            new = f"{r}{step}"
            events += [("to", q, new) for q in near] + [("from", q) for q in near]
            events += [("update", new), ("read", new)]
        return log(*events)

    logs = [rank(r) for r in range(4)]
    assert family(logs) == "consensus"
    assert family(logs, "optimizer") == "per-worker"


def served(order: Sequence[tuple[str, int]]) -> list[Log]:
    """A server that takes gradients and answers in this order, and its workers."""
    workers: dict[int, list[Any]] = {1: [], 2: []}
    server: list[Any] = []
    version = 0
    for what, q in order:
        if what == "answer":
            server.append(("to", q, f"v{version}"))
            workers[q] += [("from", 0), ("read", f"v{version}"), ("to", 0, "gradient")]
        elif what == "take":
            server.append(("from", q))
        else:
            version += 1
            server.append(("update", f"v{version}"))
    return [log(*server), *(log(*workers[q]) for q in (1, 2))]


START = [("answer", 1), ("answer", 2)]


def test_a_server_that_waits_for_all_is_synchronous() -> None:
    both = [("take", 1), ("take", 2), ("update", 0)]
    logs = served([*START, *both, *START, *both, *START])
    assert family(logs) == "synchronous"
    assert classify(logs).topology.shapes == ("star",)


def test_a_server_that_waits_for_nobody_is_asynchronous() -> None:
    def turn(q: int) -> list[tuple[str, int]]:
        return [("take", q), ("update", 0), ("answer", q)]

    logs = served([*START, *turn(1), *turn(1), *turn(2)])
    found = classify(logs).consistency
    assert found.family == "asynchronous"
    assert found.figures is not None
    assert found.figures["oldest"] == 2


def test_a_server_that_lets_the_fast_wait_bounds_staleness() -> None:
    order = [*START, ("take", 1), ("update", 0), ("answer", 1), ("take", 1)]
    order += [("update", 0), ("take", 2), ("update", 0), ("answer", 1), ("answer", 2)]
    assert family(served(order)) == "bounded-staleness"


def test_an_update_told_after_its_weights_were_sent_counts_before() -> None:
    """A step is told of when it is over: the worker has the new weights by then."""
    server = [("to", 1, "v0")]
    worker = []
    for n in (1, 2):
        server += [("from", 1), ("to", 1, f"v{n}"), ("update", f"v{n}")]
        worker += [("from", 0), ("to", 0, "gradient")]
    logs = [log(*server), log(*worker, ("from", 0))]
    assert family(logs) == "synchronous"


def test_ranks_that_trade_copies_serve_nobody() -> None:
    """What they send may be a mean: nobody has computed with it, as with a gradient."""

    def rank(r: int) -> Log:
        events: list[Any] = [("read", "a")]
        for new in (f"{r}0", f"{r}1", f"{r}2"):
            events += [("to", r ^ 1, f"mean {new}"), ("from", r ^ 1)]
            events += [("update", new), ("read", new)]
            events += [("to", r ^ 1, new), ("from", r ^ 1)]
        return log(*events)

    found = classify([rank(r) for r in range(4)])
    assert found.optimizer.family == "per-worker"
    assert found.consistency.figures == {"versions": 3, "equal": 0}


def stages(*events: Sequence[Any]) -> list[Log]:
    """Two stages; of the first, what it does; the second answers."""
    first = log(*events)
    second: list[Any] = []
    for kind, *_ in events:
        second += [("from", 0)] if kind == "to" else []
        second += [("to", 0, "slope")] if kind == "from" else []
    return [first, log(*second, ("update", "z"))]


GO, BACK = ("to", 1, "activations"), ("from", 1)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([GO, BACK, ("update", "b"), GO, BACK, ("update", "c")], "none"),
        ([GO, GO, BACK, BACK, ("update", "b")], "pipeline-flush"),
        ([GO, GO, BACK, ("update", "b"), BACK, ("update", "c")], "pipeline-stale"),
        ([GO, ("update", "b"), GO, ("update", "c")], None),
    ],
    ids=["one at a time", "flushed", "stale", "one way"],
)
def test_what_is_in_flight_tells_pipelines_apart(
    events: list[Any], expected: str | None
) -> None:
    logs = stages(*events)
    assert family(logs, "pipelining") == expected
    assert family(logs, "credit") == ("layer-local" if expected is None else None)
    consistent = {"pipeline-stale": "bounded-staleness", None: None}
    assert family(logs) == consistent.get(expected, "synchronous")


def test_of_several_trainings_the_first_is_placed() -> None:
    first, second = replicas("abc", "abc"), replicas("abcd", "axyz")
    logs = [[*a, *b] for a, b in zip(first, second, strict=True)]
    assert family(logs) == "synchronous"


def test_a_run_that_updates_nothing_has_no_consistency() -> None:
    logs = [log(("all", 2)), log(("all", 2))]
    found = classify(logs)
    assert found.consistency.family is found.pipelining.family is None
    assert found.topology.shapes == ("group",)


# Shapes and shares


@pytest.mark.parametrize(
    ("name", "edges"),
    {
        "line": {(r, r + 1) for r in range(7)},
        "ring": {(r, (r + 1) % 8) for r in range(8)},
        "star": {(r, 0) for r in range(1, 8)},
        "hypercube": {(r, r ^ d) for r in range(8) for d in (1, 2, 4)},
        "all pairs": {(a, b) for a in range(8) for b in range(a)},
        "two levels": {
            (a, b)
            for a in range(8)
            for b in range(a)
            if a // 4 == b // 4 or a % 4 == b % 4
        },
        "graph": {(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7)},
    }.items(),
)
def test_a_shape_has_its_name_whichever_way_edges_point(
    name: str, edges: set[tuple[int, int]]
) -> None:
    assert shape(frozenset(edges), 8) == name
    assert shape(frozenset((b, a) for a, b in edges), 8) == name


def test_several_lines_are_lines() -> None:
    assert shape(frozenset({(0, 2), (2, 4), (1, 3), (3, 5)}), 6) == "line"
    assert shape(frozenset({(0, 1), (1, 2), (2, 0), (3, 4)}), 5) == "graph"


@pytest.mark.parametrize(
    ("fewer", "more", "word"),
    [(100, 100, "whole"), (100, 50, "1/p"), (100, 75, "partly"), (0, 0, "none")],
)
def test_bytes_on_twice_the_ranks_tell_who_holds_what(
    fewer: int, more: int, word: str
) -> None:
    assert share(fewer, more) == word


# Every exemplar


def test_every_exemplar_is_placed_by_runs_of_its_present_source() -> None:
    assert list(study.stale(ATLAS)) == [], "run `python -m atlas.classify` again"


PLACED = [t for t in WRITTEN if t.id in KEPT]


@pytest.mark.parametrize("technique", PLACED, ids=lambda t: t.id)
def test_a_technique_stands_where_its_runs_place_it(technique: Technique) -> None:
    found = list(judge(ATLAS, technique, KEPT[technique.id]))
    assert [j for j in found if j.ok is False] == []
    told = {"topology", "pipelining"} - set(technique.unseen)  # those give a reason
    asked = [j for j in found if j.what in told]
    assert all(j.ok for j in asked) or not technique.axis.startswith("sync")


def test_every_facet_that_can_be_measured_is_measured_somewhere() -> None:
    seen = {
        (j.what, j.declared)
        for t in PLACED
        for j in judge(ATLAS, t, KEPT[t.id])
        if j.ok
    }
    for axis in ATLAS.axes:
        for facet in axis.facets:
            if facet.id in ("consistency", "pipelining", "credit", "topology"):
                for f in facet.families:
                    assert (facet.id, f.id) in seen, f.path
    assert set(SIGNS) <= {declared for _, declared in seen}


@pytest.mark.parametrize("name", ["downpour", "zero-3", "weight-stashing"])
def test_a_run_today_says_what_was_kept(name: str) -> None:
    found = study.place(ATLAS.techniques[name], ROOT)
    kept = KEPT[name]
    assert list(found["topology"]["shapes"]) == kept["topology"]["shapes"]
    for facet in ("consistency", "pipelining", "credit", "optimizer"):
        assert found[facet]["family"] == kept[facet]["family"], facet
    assert found["held"] == kept["held"]
