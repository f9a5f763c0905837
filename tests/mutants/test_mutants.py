"""A sample of the mutations, chosen from the sources by a fixed seed: none survives."""

import ast
from functools import cache
from pathlib import Path

import pytest

from atlas.mutants import equivalent, score, study, trial
from atlas.mutants.equivalent import EquivalentError
from atlas.mutants.mutations import Mutants, Mutation, chosen
from atlas.mutants.parts import parts
from atlas.taxonomy import Technique, load

ROOT = Path(__file__).resolve().parents[2]
ATLAS = load(ROOT)
WRITTEN = study.written(ATLAS)
SAMPLE, SEED = 40, 2026
#: Longer than the study's: here no honest run tells how busy the machine is.
DEADLINE = 6.0


@cache
def mutants(name: str) -> Mutants:
    """An exemplar's mutations, made once."""
    return study.mutants(ROOT, ATLAS.techniques[name])


def sample() -> list[object]:
    """Some mutations, spread over the exemplars that the study has tried whole.

    What it lists as survivors is counted against the score, not tried again here.
    """
    known = {name: set(found.survived) for name, found in score.scores(ROOT).items()}
    every = [(t.id, m) for t in WRITTEN if t.id in known for m in mutants(t.id).all]
    return [
        pytest.param(ATLAS.techniques[name], m, id=f"{name}-{m.id}")
        for name, m in chosen(every, SAMPLE, SEED)
        if m.id not in equivalent.listed(ROOT, name) and m.change not in known[name]
    ]


@pytest.mark.parametrize(("technique", "mutation"), sample())
def test_a_mutation_is_noticed(technique: Technique, mutation: Mutation) -> None:
    source = mutants(technique.id).source(mutation)
    found = trial.trial(technique, source, DEADLINE)
    place = f"{technique.exemplar} {mutation.id} ({mutation.kind})"
    assert found.killed, f"{place}\n{mutation.diff}"


@pytest.mark.nightly
@pytest.mark.parametrize("technique", WRITTEN, ids=lambda t: t.id)
def test_the_truth_apart_from_the_mechanism_still_holds(technique: Technique) -> None:
    """Else every mutation would seem to be noticed."""
    unchanged = mutants(technique.id).unchanged
    first = trial.counts(technique)[:1]
    only = trial.trial(technique, unchanged, deadline=60.0, ranks=first)
    assert not only.killed, only


@pytest.mark.parametrize("technique", WRITTEN, ids=lambda t: t.id)
def test_every_equivalent_is_still_a_mutation(technique: Technique) -> None:
    equivalent.check(ROOT, technique.id, mutants(technique.id).all)


def test_there_are_no_equivalents_of_unknown_techniques() -> None:
    assert not equivalent.strays(ROOT, (t.id for t in WRITTEN))


SOURCE = '''"""Adds."""
import torch.distributed as dist

RATE = 0.5

def step(x: float, rate: float = 2.0) -> float:
    """One step of 1."""
    if x > 9:
        raise ValueError(f"{x + 1}")
    dist.all_reduce(x)
    x += 1
    return x / 2

def seldom(x):
    return x * 3

def reference(w):
    return step(w.rank) + 1

def main(w, *, steps=4):
    x = seldom(w.rank)
    with meter() as moved:
        step(x)
        for i in range(steps):
            x = x - i
    w.check("x", x, lambda: reference(w), slack=1 + 1)
    report(w, x=x - 1)
'''


def diffs(source: str) -> set[tuple[str, str]]:
    return {(m.was, m.now) for m in Mutants(source).all}


def test_the_mechanism_is_changed_and_nothing_else() -> None:
    assert diffs(SOURCE) == {
        ("dist.all_reduce(x)", "pass"),
        ("dist.all_reduce(x)", "dist.all_reduce(x, op=dist.ReduceOp.MAX)"),
        ("dist.all_reduce(x)", "dist.all_reduce(x, op=dist.ReduceOp.MIN)"),
        ("x += 1", "pass"),
        ("x += 1", "x = 1"),
        ("x += 1", "x -= 1"),
        ("x += 1", "x += 0"),
        ("x += 1", "x += 2"),
        ("return x / 2", "return x * 2"),
        ("return x / 2", "return x"),
        ("return x / 2", "return x / 3"),
        ("return x / 2", "return x / 1"),
        ("return x * 3", "return x + 3"),
        ("return x * 3", "return x"),
        ("return x * 3", "return x * 4"),
        ("return x * 3", "return x * 2"),
        ("for i in range(steps):", "for i in range(steps - 1):"),
        ("x = x - i", "pass"),
        ("x = x - i", "x = x + i"),
    }


def test_the_truth_has_copies_of_what_it_shares() -> None:
    made = Mutants(SOURCE)
    for mutation in made.all:
        of = parts(made.source(mutation))
        assert not of.truth & of.mechanism
        truth = ast.unparse(of.definitions["true_step"])
        assert truth.endswith("x += 1\n    return x / 2")


def test_a_local_name_is_not_taken_for_a_function_of_the_module() -> None:
    source = SOURCE.replace("return step(w.rank) + 1", "step = w.rank\n    return step")
    assert not parts(source).shared


def test_each_mutation_has_an_id_that_does_not_depend_on_other_lines() -> None:
    before = {m.id for m in Mutants(SOURCE).all}
    moved = SOURCE.replace("RATE = 0.5", "RATE = 0.7\n\n# More lines.\n")
    assert {m.id for m in Mutants(moved).all} == before
    assert len(before) == len(Mutants(SOURCE).all)


def test_the_ids_of_the_exemplars_are_unique() -> None:
    for technique in WRITTEN:
        ids = [m.id for m in mutants(technique.id).all]
        assert ids, technique.id
        assert len(ids) == len(set(ids)), technique.id


def test_a_sample_takes_from_every_technique_in_turn() -> None:
    every = [(t.id, m) for t in WRITTEN for m in mutants(t.id).all]
    first = chosen(every, len(WRITTEN), seed=1)
    assert {name for name, _ in first} == {t.id for t in WRITTEN}
    assert chosen(every, 30, seed=1) == first[:30]
    assert chosen(every, 30, seed=2) != first[:30]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{id: '0', diff: x, reason: y}", "no mutation of"),
        ("{id: '0', diff: x}", "an entry has id, diff, reason"),
        ("{id: %s, diff: wrong, reason: y}", "its diff is"),
    ],
)
def test_an_equivalent_that_does_not_fit_is_refused(
    tmp_path: Path, entry: str, said: str
) -> None:
    every = Mutants(SOURCE).all
    path = tmp_path / equivalent.FOLDER / "adding.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(f"- {entry.replace('%s', repr(every[0].id))}\n")
    with pytest.raises(EquivalentError, match=said):
        equivalent.check(tmp_path, "adding", every)


def test_a_score_leaves_out_what_is_equivalent() -> None:
    found = score.Score(10, 6, 2, ("x  ->  y", "a  ->  b"), "sha256:0")
    assert found.score == 0.75
    assert found.line == "6 of 8 automatic mutants caught (2 more are equivalent)"


def test_the_study_keeps_what_was_not_tried_again(tmp_path: Path) -> None:
    assert score.scores(tmp_path) == {}
    first, second = WRITTEN[:2]
    (tmp_path / "taxonomy").symlink_to(ROOT / "taxonomy")
    (tmp_path / "exemplars").symlink_to(ROOT / "exemplars")
    for technique, by in ((first, "claims"), (second, "")):
        m = mutants(technique.id).all[0]
        study.keep(tmp_path, [study.Case(technique.id, m, trial.Outcome(by, 2))])
    found = score.scores(tmp_path)
    assert found[first.id].killed == 1
    assert found[second.id].survived == (m.change,)
    assert found[second.id].score == 0
