"""Same bits across ranks, runs and p: what counts as the same, and was it asked?"""

from dataclasses import replace
from pathlib import Path

import pytest

from atlas.determinism import kept
from atlas.determinism.study import across_p, across_ranks, study
from atlas.taxonomy import Technique, load
from atlas.views import context
from atlas.views.determinism import answers

ROOT = Path(__file__).resolve().parents[2]
ATLAS = load(ROOT)
WRITTEN = kept.written(ATLAS)
KEPT = kept.read(ROOT)

each = pytest.mark.parametrize("technique", WRITTEN, ids=lambda t: t.id)


def rank(value: str, reference: str) -> dict[str, tuple[list[str], list[str]]]:
    """A rank that checked one value."""
    return {"sum": ([value], [reference])}


@pytest.mark.parametrize(
    ("ranks", "word"),
    [
        ([rank("8:a", "8:t"), rank("8:a", "8:t")], "equal"),
        ([rank("8:a", "8:t"), rank("8:b", "8:t")], "different"),
        ([rank("8:a", "8:t"), rank("8:b", "8:u")], "own"),
        ([rank("8:a", ""), rank("8:a", "")], "equal"),
        ([rank("8:a", "8:t"), {}], "one"),
    ],
)
def test_ranks_with_the_same_reference_are_compared(ranks, word: str) -> None:  # type: ignore[no-untyped-def]
    assert across_ranks("sum", ranks) == word


@pytest.mark.parametrize(
    ("one", "two", "found"),
    [
        (rank("8:a", "8:t"), rank("8:a", "8:t"), [[1, 2]]),
        (rank("8:a", "8:t"), rank("8:b", "8:t"), [[1], [2]]),
        (rank("8:a", "8:t"), rank("8:a", "8:u"), "other"),
        (rank("8:a", "8:t"), rank("4:a", "4:t"), "parts"),
        (rank("8:a", ""), rank("8:a", ""), "none"),
        ({}, rank("8:a", "8:t"), "one"),
    ],
)
def test_numbers_of_ranks_with_the_same_reference_are_compared(one, two, found) -> None:  # type: ignore[no-untyped-def]
    assert across_p("sum", {1: [one], 2: [two, two]}) == found


def told(**value: object) -> list[str]:
    """The answers when one value was checked."""
    facts = {"ranks": "equal", "runs": True, "p": [[1, 2, 4]], **value}
    found = answers({"ranks": [1, 2, 4], "values": {"sum": facts}})
    return [a.answer for a in found]


def test_an_answer_is_yes_no_only_or_does_not_apply() -> None:
    assert told() == ["yes", "yes", "yes"]
    assert told(ranks="different", runs=False, p=[[1], [2], [4]]) == ["no"] * 3
    assert told(p=[[1], [2, 4]])[2] == "only for p = 2 and 4"
    assert told(ranks="own", p="other")[::2] == ["does not apply"] * 2


@each
def test_every_exemplar_was_asked_with_its_present_source(technique: Technique) -> None:
    again = "run `python -m atlas.determinism`"
    assert technique.id in KEPT, again
    assert not kept.stale(ROOT, technique, KEPT[technique.id]), again


@each
def test_a_claim_that_all_ranks_hold_the_same_bits_is_the_answer(
    technique: Technique,
) -> None:
    """Two witnesses: the exemplar's own check, and the digests of its values."""
    values = KEPT[technique.id]["values"]
    if "same" in values:
        assert values["same"]["ranks"] == "equal"


def test_an_older_source_is_a_warning() -> None:
    ctx = context.read(ROOT)
    assert not [line for line in ctx.warnings() if "determinism" in line]
    old = replace(ctx)
    found = {**KEPT["ring-all-reduce"], "source": "sha256:0"}
    vars(old)["determinism"] = {**KEPT, "ring-all-reduce": found}
    (line,) = [line for line in old.warnings() if "determinism" in line]
    assert "run `python -m atlas.determinism`" in line


@pytest.mark.parametrize(
    "name",
    ["ring-all-reduce", pytest.param("downpour", marks=pytest.mark.nightly)],
)
def test_a_run_today_says_what_was_kept(name: str) -> None:
    found = study(ATLAS.techniques[name], ROOT)
    assert found["values"] == KEPT[name]["values"]
