"""The study of collectives: it goes on where it was broken off, and nodes are nodes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atlas.collectives import study, timed
from atlas.collectives.study import Plan, Unit
from atlas.launch import launch
from atlas.planner.accuracy import nodes
from atlas.planner.accuracy.wire import Wire
from atlas.record import RecordError
from atlas.taxonomy import find_root
from atlas.views.collectives import PLACE

NAMES = ("gloo all-reduce", "ring-all-reduce")
SMALL = Plan(NAMES, ranks=(2,), sizes=(4096, 8192), shaped=())


def test_a_study_that_was_broken_off_goes_on_where_it_was() -> None:
    made: dict[str, Any] = {"constants": {"2": {"alpha": 1.0}}}
    begun: list[str] = []
    for _ in study.study(SMALL, made, begun.append):
        break
    assert begun == ["2 ranks, 4 KiB"]
    assert SMALL.units(made) == [Unit("cells", 2, 8192, NAMES)]
    more = replace(SMALL, names=(*NAMES, "hierarchical"), sizes=(4096,))
    assert more.units(made) == [Unit("cells", 2, 4096, ("hierarchical",))]
    row = made["cells"]["2"]["4096"]
    assert list(row) == list(NAMES)
    for seen in row.values():
        assert 0 < seen["low"] <= seen["median"] <= seen["high"]


def test_only_what_is_of_another_source_is_measured_again(tmp_path: Path) -> None:
    root = find_root()
    for name in ("taxonomy", "exemplars"):
        (tmp_path / name).symlink_to(root / name)
    row = {"4096": {key: {"median": 1.0} for key in [*NAMES, "no longer there"]}}
    whole = {**study.begun(tmp_path), "cells": {"2": row}, "shaped": {}}
    study.keep(tmp_path, whole)
    assert list(study.begun(tmp_path)["cells"]["2"]["4096"]) == list(NAMES)
    study.keep(tmp_path, {**whole, "sources": {"ring-all-reduce": "sha256:other"}})
    assert list(study.begun(tmp_path)["cells"]["2"]["4096"]) == [NAMES[0]]
    study.keep(tmp_path, {**whole, "machine": {"cores": 1000}})
    assert "cells" not in study.begun(tmp_path)


def test_a_broken_study_is_told_in_one_line(tmp_path: Path) -> None:
    place = tmp_path / PLACE
    place.parent.mkdir(parents=True)
    place.write_text("{")
    with pytest.raises(RecordError, match=r"collectives\.json: .*measure again$"):
        study.kept(tmp_path)


def test_constants_are_seconds_of_a_round_and_of_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(study, "MESSAGES", (2**12, 2**18, 2**23))
    monkeypatch.setattr(study, "FITTED_REPEATS", 5)
    found = study.constants(2)
    assert 0 <= found["alpha"] < 1
    assert 0 < found["beta"] < 1e-6
    assert 0 < found["gamma"] < 1e-6


def test_what_ranks_of_one_node_send_each_other_never_leaves_it() -> None:
    if lacking := nodes.missing():
        pytest.skip(lacking)
    n, wire = 2**18, Wire(500_000_000)
    names = ["hierarchical", "ring-all-reduce"]
    seen = launch(timed.between_nodes, 4, wire, 2, [(n, 1)], names, 30.0)
    left = {name: max(rank[0][name]["wire"] for rank in seen) for name in names}
    # What has to cross is n and 1.5 n; headers and what is sent again come on top.
    # If what is sent inside a node left it too, it would be 3 n in either case.
    assert n < left["hierarchical"] < 2 * n
    assert 1.5 * n < left["ring-all-reduce"] < 2.5 * n
