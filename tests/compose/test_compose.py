"""Pairs of techniques: each equals one process, and a wrong composition does not."""

import importlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from atlas.compose import study
from atlas.launch import launch
from atlas.taxonomy import find_root
from atlas.views import composition as view
from atlas.views.composition import ENTRIES, REFUSED, Pair
from exemplars.runtime import World

ROOT = find_root()
#: Every technique is in one of them; the other pairs run every night.
SAMPLE: set[Pair] = {
    ("data", "zero-3"),
    ("zero-1", "offload"),
    ("zero-2", "1f1b"),
    ("zero-3", "zero-bubble"),
    ("zero-3", "expert"),
    ("zero-3", "checkpointing"),
    ("hsdp", "tensor"),
    ("hsdp", "compression"),
    ("tensor", "ring"),
    ("tensor", "clipping"),
    ("tensor", "compression"),
    ("sequence", "expert"),
    ("sequence", "vocabulary"),
    ("ring", "ulysses"),
    ("gathered", "weighting"),
    ("ulysses", "mixed"),
    ("1f1b", "tied"),
    ("1f1b", "accumulation"),
    ("zero-bubble", "vocabulary"),
    ("offload", "mixed"),
}


def marked(pairs: list[Pair], daily: set[Pair]) -> list[Any]:
    """The pairs as parameters, those of the night marked."""
    return [
        pytest.param(
            pair,
            marks=[] if pair in daily else [pytest.mark.nightly],
            id="-and-".join(pair),
        )
        for pair in pairs
    ]


# --- the table


def test_the_list_has_22_techniques_and_231_pairs() -> None:
    assert len(ENTRIES) == 22
    assert len(list(view.pairs())) == 231


def test_every_refusal_is_of_a_pair_and_gives_its_reason_in_a_line() -> None:
    assert set(REFUSED) <= set(view.pairs())
    for reason in REFUSED.values():
        assert 20 < len(reason) < 100
        assert "\n" not in reason
        assert not reason.endswith(".")


def test_the_sample_is_of_20_open_pairs_with_every_technique() -> None:
    assert len(SAMPLE) == 20
    assert set(view.open_pairs()) >= SAMPLE
    assert {name for pair in SAMPLE for name in pair} == set(ENTRIES)


@pytest.mark.parametrize(
    ("pair", "box"),
    [
        (("accumulation", "clipping"), {"data": 4}),
        (("tensor", "clipping"), {"tensor": 4}),
        (("tensor", "compression"), {"data": 2, "tensor": 2}),
        (("hsdp", "tensor"), {"data": 2, "shard": 2, "tensor": 2}),
        (("ring", "ulysses"), {"context": 2, "heads": 2}),
        (("weighting", "tied"), {"data": 4}),
        (("expert", "weighting"), {"expert": 4}),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, tuple) else "",
)
def test_a_pair_gets_the_axes_that_it_needs(pair: Pair, box: dict[str, int]) -> None:
    assert view.lengths(pair) == box


def test_every_pair_takes_4_or_8_ranks() -> None:
    assert {view.ranks(pair) for pair in view.open_pairs()} == {4, 8}


# --- the runs


@pytest.mark.parametrize("pair", marked(view.open_pairs(), SAMPLE))
def test_a_step_by_both_equals_a_step_of_one_process(pair: Pair) -> None:
    found = study.run(pair)
    assert "failed" not in found, found


# --- a wrong composition is seen

#: In the order in which they import one another.
CHAIN = ("mesh", "model", "truth", "exchange", "step")


@dataclass(frozen=True)
class Mutant:
    """One mistake in how mechanisms are put together, and a pair that shows it."""

    says: str
    module: str
    find: str
    replace: str
    pair: Pair


MUTANTS = [
    Mutant(
        "copies compressed with what is cut",
        "exchange",
        "cut, experts = p in self.kinds.cut, p in",
        "cut, experts = False, p in",
        ("tensor", "compression"),
    ),
    Mutant(
        "copies along tensor counted in the norm",
        "exchange",
        "return frozenset(self.mesh.long) - cut",
        "return frozenset(self.mesh.long) - cut - {'tensor'}",
        ("tensor", "clipping"),
    ),
    Mutant(
        "only one end of the tied embedding learns",
        "exchange",
        "if p is self.net.tied:",
        "if False:",
        ("1f1b", "tied"),
    ),
    Mutant(
        "gradients of a rank's own tokens not summed",
        "exchange",
        "if self.net.sequence is not None and p not in self.kinds.cut:",
        "if False:",
        ("zero-2", "sequence"),
    ),
    Mutant(
        "different experts' gradients summed",
        "exchange",
        'own = "expert" if p in self.kinds.experts else ""',
        'own = ""',
        ("zero-1", "expert"),
    ),
    Mutant(
        "replicas of a shard drift apart",
        "exchange",
        "        dist.all_reduce(mine, group=self.replicas)\n",
        "",
        ("hsdp", "clipping"),
    ),
    Mutant(
        "buckets leave after the backward of one layer",
        "exchange",
        'bool(has & {"zero-bubble", "compression"})',
        'bool(has & {"compression"})',
        ("data", "zero-bubble"),
    ),
    Mutant(
        "each rank divides by its own tokens",
        "step",
        "dist.all_reduce(count, group=self.mesh.over([*SAMPLES, *TOKENS]))",
        "count *= self.w.size",
        ("data", "weighting"),
    ),
    Mutant(
        "places counted as if tokens were in order",
        "model",
        "self.at = held(has, mesh)[mesh.part(TOKENS)[0]]",
        "self.at = torch.arange(TOKENS_WHOLE).chunk(mesh.part(TOKENS)[1])"
        "[mesh.part(TOKENS)[0]]",
        ("ring", "checkpointing"),
    ),
    Mutant(
        "gathered keys masked as if they were in order",
        "model",
        "future = mine[:, None] < order",
        "future = mine[:, None] < order.sort().values",
        ("gathered", "clipping"),
    ),
    Mutant(
        "experts cut by columns where each rank has its own tokens",
        "model",
        "columns = self.tensor if self.sequence is None else mesh.over([])",
        "columns = self.tensor",
        ("sequence", "expert"),
    ),
    Mutant(
        "the loss scaled for one rank",
        "step",
        "factor = self.w.size * (",
        "factor = (",
        ("accumulation", "offload"),
    ),
]
DAILY = {
    "copies compressed with what is cut",
    "only one end of the tied embedding learns",
}


def broken(w: World, name: str, text: str, pair: Pair) -> dict[str, float]:
    """A cell where one module of the package has another text."""
    modules = [importlib.import_module(f"atlas.compose.{n}") for n in CHAIN]
    at = CHAIN.index(name)
    become(modules[at], text)
    for later in modules[at + 1 :]:
        importlib.reload(later)
    found: dict[str, float] = modules[-1].cell(w, pair)
    return found


def become(module: ModuleType, text: str) -> None:
    """In this process, which ends with its rank."""
    exec(compile(text, str(module.__file__), "exec"), vars(module))  # noqa: S102


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(
            m,
            marks=[] if m.says in DAILY else [pytest.mark.nightly],
            id=m.says.replace(" ", "-"),
        )
        for m in MUTANTS
    ],
)
def test_a_wrong_composition_is_not_equal(mutant: Mutant) -> None:
    text = (ROOT / view.ROOM / f"{mutant.module}.py").read_text()
    assert text.count(mutant.find) == 1
    seen = launch(
        broken,
        view.ranks(mutant.pair),
        mutant.module,
        text.replace(mutant.find, mutant.replace),
        mutant.pair,
        env={"CUDA_VISIBLE_DEVICES": ""},
        needs=study.NEEDS,
    )
    assert "not equal" in study.judged(seen).get("failed", "")


# --- the study


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of what the study is of, which may be changed."""
    for part in ("atlas/compose", "atlas/views", "exemplars"):
        shutil.copytree(ROOT / part, tmp_path / part)
    return tmp_path


def test_at_least_100_pairs_are_proven_and_none_failed() -> None:
    made = view.study(ROOT)
    assert made is not None
    assert made["sources"] == view.sources(ROOT), "run: python -m atlas.compose"
    assert not study.missing(made)
    assert not [key for key, cell in made["cells"].items() if "failed" in cell]
    assert len(made["cells"]) >= 100


def test_a_study_that_was_broken_off_goes_on_where_it_was(copy: Path) -> None:
    made = study.begun(copy)
    assert study.missing(made) == view.open_pairs()
    made["cells"] = {view.key(p): {} for p in view.open_pairs()[1:]}
    study.keep(copy, made)
    assert study.missing(study.begun(copy)) == view.open_pairs()[:1]


@pytest.mark.parametrize(
    "path",
    [
        "atlas/compose/step.py",
        "exemplars/parameter_distribution/sharded/zero_1.py",
        "exemplars/sync_strategy/pipeline_flush/schedule_as_data.py",
    ],
)
def test_a_change_of_what_is_run_begins_it_anew(copy: Path, path: str) -> None:
    made = study.begun(copy)
    made["cells"] = {view.key(p): {} for p in view.open_pairs()}
    study.keep(copy, made)
    with (copy / path).open("a") as file:
        file.write("\nCHANGED = True\n")
    assert study.missing(study.begun(copy)) == view.open_pairs()


def test_the_rank_that_is_farthest_off_decides() -> None:
    good = {"gradient": 0.1, "norm": 0.0, "update": 0.2, "missing": 0}
    assert study.judged([good, {**good, "norm": 0.3}])["norm"] == 0.3
    assert "norm" in study.judged([good, {**good, "norm": 2.0}])["failed"]
    assert "update" in study.judged([good, {**good, "update": float("inf")}])["failed"]
    assert "no rank" in study.judged([{**good, "missing": 3}])["failed"]


def test_what_is_kept_is_json(copy: Path) -> None:
    path = study.keep(copy, study.begun(copy))
    assert json.loads(path.read_text())["cells"] == {}
