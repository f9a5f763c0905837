"""Labs: guesses are answered, exercises fail as they stand, and solutions pass."""

import ast
import json
import math
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from atlas import lab, notebooks
from atlas.lab import Grade, LabError, experiment, grade, predict, watch
from atlas.verdict import Verdict, judge
from exemplars.communication_pattern.collective.ring_all_reduce import ring_all_reduce

ROOT = Path(__file__).resolve().parents[2]
LABS = ["10-communication", "20-synchronization", "30-distribution"]
EXERCISES = [(name, i) for name in LABS for i in range(4)]


@pytest.fixture(autouse=True)
def _devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lab may hide the GPUs from its ranks; the other tests still see them."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before or "")
    if before is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")


@cache
def cells(name: str) -> list[Any]:
    import jupytext

    return list(jupytext.read(ROOT / notebooks.SOURCES / f"{name}.py").cells)


def tagged(name: str, tag: str) -> list[str]:
    return [c.source for c in cells(name) if tag in c.metadata.get("tags", ())]


def shown(source: str, namespace: dict[str, Any]) -> Any:
    """Run a cell; the value of its last line, which Jupyter would show."""
    tree = ast.parse(source)
    last = tree.body.pop()
    assert isinstance(last, ast.Expr)
    exec(compile(tree, "<cell>", "exec"), namespace)  # noqa: S102 - our own text
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), namespace)  # noqa: S307


# --- the notebooks


def test_every_notebook_but_the_tour_and_the_last_is_a_lab() -> None:
    others = {"00-tour", "50-your-own-code"}
    assert sorted({*notebooks.names(ROOT)} - others) == LABS


@pytest.mark.parametrize("name", LABS)
def test_every_section_has_a_guess_and_its_answer(name: str) -> None:
    sections: list[dict[str, Any]] = []
    for cell in cells(name):
        if cell.cell_type == "markdown":
            heads = [x for x in cell.source.splitlines() if x.startswith("## ")]
            sections += [{"head": h, "guess": 0, "answer": 0} for h in heads]
        elif sections:
            sections[-1]["guess"] += cell.source.count("= predict(")
            sections[-1]["answer"] += cell.source.count("guess.against(")
    numbered = [s for s in sections if s["head"][3].isdigit()]
    assert 4 <= len(numbered) <= 6
    assert all((s["guess"], s["answer"]) == (1, 1) for s in numbered), numbered


@pytest.mark.parametrize("name", LABS)
def test_every_exercise_is_followed_by_a_folded_solution(name: str) -> None:
    tags = [c.metadata.get("tags", [""])[0] for c in cells(name)]
    graded = [t for t in tags if t in ("exercise", "solution")]
    assert graded == ["exercise", "solution"] * 4
    for i, cell in enumerate(cells(name)):
        if tags[i] == "solution":
            assert cell.metadata["jupyter"]["source_hidden"]
            assert cells(name)[i - 1].source.startswith("<details")
            assert cells(name)[i + 1].source.startswith("</details>")


@pytest.mark.parametrize(("name", "number"), EXERCISES)
def test_an_exercise_fails_as_it_stands_and_its_solution_passes(
    name: str, number: int
) -> None:
    namespace: dict[str, Any] = {"__name__": "cells"}
    shown(tagged(name, "setup")[0], namespace)
    unsolved = shown(tagged(name, "exercise")[number], namespace)
    # Wrong by a claim, not by falling over: the reader is told what is wrong.
    assert not unsolved.ok
    assert unsolved.ended == ""
    assert "not yet" in unsolved._repr_markdown_()
    solved = shown(tagged(name, "solution")[number], namespace)
    assert solved.ok, solved._repr_markdown_()
    assert "solved" in solved._repr_markdown_()


@pytest.mark.parametrize("name", LABS)
def test_what_is_kept_shows_red_and_then_green(name: str) -> None:
    path = ROOT / notebooks.KEPT / f"{name}.ipynb"
    seen = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        tags = cell["metadata"].get("tags", [])
        if "exercise" in tags or "solution" in tags:
            text = "".join(cell["outputs"][-1]["data"]["text/markdown"])
            seen.append("not yet" in text)
            assert ("solved" in text) != ("not yet" in text)
    assert seen == [True, False] * 4


# --- predictions


@pytest.mark.parametrize("wrong", ["three", None, True, math.inf, math.nan])
def test_a_guess_is_a_number(wrong: Any) -> None:
    with pytest.raises(LabError, match="such as 3"):
        predict("rounds", wrong)


@pytest.mark.parametrize(
    ("guess", "answer", "said"),
    [
        (6, 6, "that is it"),
        (6, 7, "14% too low"),
        (9, 3, "3 times too high"),
        (1, 126.5, "130 times too low"),
        (0, 4, "off by 4"),
    ],
)
def test_a_guess_hears_how_far_off_it_was(
    guess: float, answer: float, said: str
) -> None:
    text = str(predict("rounds", guess).against(answer).data)
    assert text.startswith("Rounds: you guessed")
    assert text.endswith(f"{said}.")


def test_the_formula_and_its_value_are_beside_the_answer() -> None:
    guess = predict("percent idle", 20)
    sizes = {"ranks": 4, "microbatches": 6}
    told = guess.against(33, "Why.", "pipeline_bubble", scale=0.01, **sizes)
    assert "Why." in told.data
    assert r"\frac{p - 1}{m + p - 1}" in told.data
    said = "With ranks = 4, microbatches = 6 that is 0.333"
    assert f"{said}; in the unit of your guess, 33.3." in told.data


# --- functions of a cell, and exemplars with something replaced


def test_what_a_function_of_a_cell_sends_is_counted() -> None:
    def pass_on(w: Any) -> int:
        import torch.distributed as dist

        x = w.randn(10)
        if w.rank > 0:
            dist.recv(x, w.rank - 1)
        if w.rank < w.size - 1:
            dist.send(x, w.rank + 1)
        return int(w.rank)

    seen = watch(pass_on, ranks=3)
    assert seen.values == [0, 1, 2]
    assert seen.sent == [80, 80, 0]
    assert seen.rounds == 2
    assert watch(pass_on, ranks=64, dry=True).sent == [80, 80, 0]


def test_an_experiment_is_a_run_that_can_be_judged() -> None:
    run = experiment("gpipe", 2, microbatches=3)
    assert run["given"]["microbatches"] == 3
    verdicts = judge(lab.atlas().techniques["gpipe"], run)
    assert all(v.ok for v in verdicts), verdicts


def test_a_name_that_is_not_there_gives_the_nearest() -> None:
    with pytest.raises(LabError, match=r"gpipe has no 'microbatch' to replace.*es"):
        experiment("gpipe", microbatch=3)
    with pytest.raises(LabError, match=r"no technique 'gpip'; there is gpipe"):
        experiment("gpip")


# --- grades


def test_nothing_and_the_atlas_s_own_work_are_not_graded() -> None:
    with pytest.raises(LabError, match=r"hand in your function.*ring_all_reduce"):
        grade("ring-all-reduce")
    with pytest.raises(LabError, match=r"ring_all_reduce is the atlas's own"):
        grade("ring-all-reduce", ring_all_reduce=ring_all_reduce)
    with pytest.raises(LabError, match=r"SIZE = 0: hand in a function"):
        grade("ring-all-reduce", SIZE=0)
    with pytest.raises(LabError, match=r"no 'ring_allreduce'.*ring_all_reduce"):
        grade("ring-all-reduce", ring_allreduce=lambda x: None)


def test_work_that_does_nothing_differs_from_the_reference() -> None:
    found = grade("gpipe", run_batch=lambda w, stage, micros, cost: 0.0)
    assert not found.ok
    assert "parameters" in {v.claim for v in found.verdicts if not v.ok}


def test_work_that_fails_is_told_by_its_rank() -> None:
    def broken(x: Any) -> None:
        raise RuntimeError("I cannot add")

    found = grade("ring-all-reduce", ring_all_reduce=broken)
    assert not found.ok
    assert "rank 0: RuntimeError: I cannot add" in found._repr_markdown_()


def test_work_that_hangs_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(x: Any) -> None:
        import torch.distributed as dist

        if dist.get_rank() == 0:
            dist.recv(x, 1)

    grade("ring-all-reduce", 2, ring_all_reduce=lambda x: None)  # the server is up
    monkeypatch.setattr(lab, "DEADLINE", 3.0)
    found = grade("ring-all-reduce", 2, ring_all_reduce=waits)
    assert not found.ok
    assert found.ended.startswith("no end after 3 s")


def test_only_claims_that_were_judged_and_hold_are_a_pass() -> None:
    def verdict(ok: bool | None) -> Verdict:
        return Verdict("c", "", "exact", None, 1, 1, ok)

    assert Grade("t", (verdict(True),)).ok
    assert not Grade("t", ()).ok
    assert not Grade("t", (verdict(True), verdict(None))).ok
    assert not Grade("t", (verdict(True), verdict(False))).ok
    assert not Grade("t", (verdict(True),), "it died").ok
