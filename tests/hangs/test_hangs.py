"""Twelve ways to hang: each ends by itself, and the guilty rank is named."""

import re
from pathlib import Path

import pytest

from atlas.yours import Script, run
from atlas.yours.hang import Edge, circle, judge, proven
from atlas.yours.script import End

HANGS = sorted((Path(__file__).parents[2] / "docs" / "hangs").glob("*.py"))
#: How the verdict is reached; what is in no journal (a wait in C++, a data loader's)
#: is only known by its silence.
KINDS = {
    "barrier-in-a-branch": "order",
    "collective-in-a-data-loader-worker": "child",
    "dead-rank": "dead",
    "early-exit": "left",
    "exception-on-one-rank": "error",
    "groups-in-another-order": "groups",
    "mismatched-sizes": "sizes",
    "rank-0-only": "extra",
    "send-send": "cycle",
    "swapped-order": "order",
    "uneven-batches": "extra",
    "unused-parameter": "unused",
}


def guilty(path: Path) -> tuple[int, ...]:
    """As its docstring says."""
    found = re.search(r"^Guilty: ([\d, ]+)\.$", path.read_text(), re.MULTILINE)
    assert found, path
    return tuple(int(n) for n in found[1].split(","))


def test_there_are_twelve() -> None:
    assert [path.stem for path in HANGS] == sorted(KINDS)


@pytest.mark.parametrize("path", HANGS, ids=lambda p: p.stem)
def test_a_canonical_hang_ends_and_its_guilty_rank_is_named(path: Path) -> None:
    ran = run(Script(path), 3, timeout=4)
    assert not ran.well  # it does hang, or fail
    assert ran.verdict, [r.end for r in ran.ranks]
    assert ran.verdict.guilty == guilty(path), ran.verdict
    assert ran.verdict.kind == KINDS[path.stem]
    assert len(ran.verdict.where) == 3
    assert path.name in "".join(ran.verdict.where) + ran.verdict.says


# Journals made by hand


def op(
    i: int, turn: int, name: str = "all_reduce", **more: object
) -> dict[str, object]:
    line: dict[str, object] = {
        "k": "op", "at": float(i), "i": i, "op": name, "site": "train.py:9", "by": "",
        "bytes": 4, "elements": 1, "dtype": "float32", "group": "0", "turn": turn,
    }  # fmt: skip
    return line | more


def wait(i: int) -> dict[str, object]:
    return {"k": "wait", "at": float(i), "i": i}


MEMBERS = {"k": "members", "group": "0", "ranks": [0, 1, 2]}
WORKING = End("unfinished")


def test_ranks_in_the_same_collective_are_not_called_a_hang() -> None:
    journals = [[MEMBERS, op(0, 0), wait(0)] for _ in range(3)]
    assert judge(journals, [WORKING] * 3) is None
    assert not proven(journals, [WORKING] * 3)


def test_a_rank_still_at_work_is_no_proof_and_is_named_at_the_deadline() -> None:
    waiting = [MEMBERS, op(0, 0), wait(0)]
    journals = [waiting, [MEMBERS], waiting]
    assert not proven(journals, [WORKING] * 3)
    stack = 'MainThread (most recent call last):\n  File "/home/me/train.py", line 7\n'
    found = judge(journals, [WORKING] * 3, ["", stack, ""])
    assert found
    assert (found.kind, found.guilty) == ("elsewhere", (1,))
    assert "train.py:7" in found.says


def test_another_thread_may_still_send_so_nothing_is_proven() -> None:
    lines = [MEMBERS, op(0, 0, thread="helper"), op(1, 1), wait(1)]
    ends = [WORKING, End("returned"), End("returned")]
    assert not proven([lines, [MEMBERS], [MEMBERS]], ends)
    assert proven([[MEMBERS, op(0, 0), wait(0)], [MEMBERS], [MEMBERS]], ends)


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"dtype": "float64"}, "sizes"),
        ({"elements": 2}, "sizes"),
        ({"op": "reduce"}, "order"),
        ({"op": "broadcast"}, "order"),
    ],
)
def test_the_rank_that_differs_from_most_is_guilty(
    more: dict[str, object], kind: str
) -> None:
    usual = [MEMBERS, op(0, 0), wait(0)]
    odd = [MEMBERS, op(0, 0) | more, wait(0)]
    found = judge([usual, usual, odd], [WORKING] * 3)
    assert found
    assert (found.kind, found.guilty) == (kind, (2,))
    assert sorted(found.first) == [0, 1, 2]


def test_an_all_to_all_may_be_uneven() -> None:
    lines = [[MEMBERS, op(0, 0, "all_to_all", elements=n), wait(0)] for n in (1, 2, 3)]
    assert judge(lines, [WORKING] * 3) is None


@pytest.mark.parametrize(
    ("pairs", "found"),
    [
        ([(0, 1), (1, 2)], []),
        ([(0, 1), (1, 0)], [0, 1]),
        ([(0, 1), (1, 2), (2, 1)], [1, 2]),
        ([(0, 1), (1, 2), (2, 0)], [0, 1, 2]),
    ],
)
def test_a_circle_is_found_wherever_one_begins(
    pairs: list[tuple[int, int]], found: list[int]
) -> None:
    assert circle([Edge(a, b, "") for a, b in pairs]) == found
