"""Every exemplar's `train`: the same interface, weights that a claim checks."""

import importlib
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from atlas.launch import launch
from atlas.mutants.parts import parts
from atlas.taxonomy import Technique, load
from exemplars.runtime import World, run
from exemplars.workload import Step, Task, Train

ROOT = Path(__file__).resolve().parents[2]
RANKS = 3
#: A worker whose gradient comes too late misses steps.
LATE = {"backup-workers"}


def trains(technique: Technique) -> bool:
    path = ROOT / technique.exemplar
    return path.exists() and "train" in parts(path.read_text()).functions


TRAINING = [t for t in load(ROOT).techniques.values() if trains(t)]
each = pytest.mark.parametrize("technique", TRAINING, ids=lambda t: t.id)


class Calls:
    """Every call of `train`, and every value that a claim checks."""

    def __init__(self, train: Train) -> None:
        self.train = train
        self.seen: list[dict[str, Any]] = []
        self.checked: list[list[Tensor]] = []

    def __call__(self, w: World, task: Task, **sizes: Any) -> Iterator[Step]:
        call: dict[str, Any] = {"sizes": sizes, "steps": 0, "weights": []}
        self.seen.append(call)
        for step in self.train(w, task, **sizes):
            assert isinstance(step, Step)
            call["steps"] += 1
            yield step
            call["weights"] = flat(step.weights)

    def check(self, claim: str, value: Any, *_: Any, **__: Any) -> None:
        """Take down what is checked: with a reference, or among the ranks."""
        self.checked.append(flat([value] if isinstance(value, Tensor) else value))

    def claims(self, weights: list[Tensor]) -> bool:
        """Whether some claim checks these numbers, from the start of a tensor on."""
        wanted = torch.cat(weights)
        return any(
            torch.equal(torch.cat(value[i:])[: len(wanted)], wanted)
            for value in self.checked
            for i in range(len(value))
        )


def flat(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t.detach().cpu().double().flatten() for t in tensors]


def on_rank(w: World, module: str) -> list[tuple[dict[str, Any], int, bool]]:
    """Run main with its `train` watched: sizes, steps, and whether claims see it."""
    exemplar = importlib.import_module(module)
    calls = Calls(exemplar.train)
    with (
        mock.patch.object(exemplar, "train", calls),
        mock.patch.object(w, "check", calls.check),
        mock.patch.object(w, "check_same", calls.check),
    ):
        run(w, exemplar.main)
    return [
        (
            {k: v for k, v in call["sizes"].items() if isinstance(v, int | float)},
            call["steps"],
            not call["weights"] or calls.claims(call["weights"]),
        )
        for call in calls.seen
    ]


@each
def test_train_takes_its_sizes_by_keyword(technique: Technique) -> None:
    train = importlib.import_module(technique.module).train
    first, second, *sizes = inspect.signature(train).parameters.values()
    assert (first.name, second.name) == ("w", "task")
    assert {p.kind for p in sizes} == {inspect.Parameter.KEYWORD_ONLY}
    assert inspect.signature(train).return_annotation == Iterator[Step]


@pytest.mark.nightly
@each
def test_every_step_is_told_and_claims_check_its_weights(technique: Technique) -> None:
    ranks = launch(on_rank, RANKS, technique.module, timeout=120)
    for rank, calls in enumerate(ranks):
        assert calls, "main does not train by `train`"
        for sizes, steps, _ in calls:
            # A server's step is one push. Where a clock decides, steps have no number.
            asked = sizes.get("steps", steps)
            if technique.id in LATE and rank > 0:
                asked = min(asked, steps)
            assert steps in (asked, asked * (RANKS - 1)), sizes
            assert steps, sizes
        assert any(claimed for *_, claimed in calls), f"rank {rank}"
