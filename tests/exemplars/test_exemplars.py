"""Every exemplar's claims hold, at every rank count it allows; its mutants fail."""

import ast
import importlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import warm
from daily import allowed, marks, one_of

from atlas import emulate, record
from atlas import measure as measuring
from atlas.launch import LaunchError, torchrun
from atlas.ranks import PRELOAD
from atlas.taxonomy import Mutant, Technique, load
from atlas.verdict import failed, judge

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = [t for t in load(ROOT).techniques.values() if (ROOT / t.exemplar).exists()]


def cases(
    written: list[tuple[Technique, list[int]]], daily: Callable[[list[int]], list[int]]
) -> list[object]:
    """(technique, rank count); those that are not daily are left to the night."""
    return [
        pytest.param(t, p, id=f"{t.id}-{p}", marks=marks(p in daily(counts)))
        for t, counts in written
        for p in counts
    ]


def on(*counts: int) -> list[tuple[Technique, list[int]]]:
    """Every technique, with those of these rank counts that it can have."""
    return [(t, allowed(t, counts)) for t in WRITTEN]


def odd(counts: list[int]) -> list[int]:
    """Three ranks tell the most: nothing divides evenly, and both neighbors differ."""
    return [3] if 3 in counts else counts[-1:]


def check(technique: Technique, ranks: int, mode: str) -> None:
    verdicts = judge(technique, measuring.measure(technique, ranks, mode=mode))
    wrong = [v for v in verdicts if v.ok is False]
    assert not wrong, "\n".join(map(str, wrong))
    assert any(v.ok for v in verdicts), "nothing was judged"


@pytest.mark.parametrize(("technique", "ranks"), cases(on(1, 2, 3, 4, 8), odd))
def test_claims_hold_on_gloo(technique: Technique, ranks: int) -> None:
    check(technique, ranks, "gloo")


@pytest.mark.parametrize(
    ("technique", "ranks"),
    cases([(t, list(t.dry)) for t in WRITTEN], lambda counts: [min(counts)]),
)
def test_counts_hold_dry(technique: Technique, ranks: int) -> None:
    check(technique, ranks, "dry")


@pytest.mark.emulated
@pytest.mark.skipif(
    emulate.unavailable() is not None, reason=str(emulate.unavailable())
)
@pytest.mark.parametrize(("technique", "ranks"), cases(on(2, 4), lambda c: c[-1:]))
def test_claims_hold_on_the_emulated_gpu(technique: Technique, ranks: int) -> None:
    check(technique, ranks, "emulated")


@pytest.mark.nccl
@pytest.mark.parametrize(("technique", "ranks"), cases(on(*range(1, 17)), list))
def test_claims_hold_on_nccl(technique: Technique, ranks: int) -> None:
    import torch

    if ranks > torch.cuda.device_count():
        pytest.skip(f"{ranks} ranks need {ranks} GPUs, not {torch.cuda.device_count()}")
    check(technique, ranks, "nccl")


@pytest.mark.parametrize(
    ("technique", "mutant"),
    [
        pytest.param(t, m, id=f"{t.id}-{m.id}", marks=marks(m == one_of(t, t.mutants)))
        for t in WRITTEN
        for m in t.mutants
    ],
)
def test_mutants_are_caught(technique: Technique, mutant: Mutant) -> None:
    found = measuring.try_mutant(ROOT, technique, mutant, record.SHOWN)
    assert found["ended"] == ("deadline" if mutant.deadline else "claims"), found
    assert set(found["failed"]) == set(mutant.fails)


def test_a_slow_mutant_is_not_taken_for_one_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No run is as fast as this: only what is meant to hang ends so early."""
    monkeypatch.setattr(measuring, "HANG_DEADLINE", 0.001)
    techniques = load(ROOT).techniques
    for name, end in (
        ("ring-all-reduce", "claims"),
        ("stale-synchronous-parallel", "deadline"),
    ):
        technique = techniques[name]
        found = measuring.try_mutant(ROOT, technique, technique.mutants[0], 2)
        assert found["ended"] == end, name


@pytest.mark.parametrize("technique", WRITTEN, ids=lambda t: t.id)
def test_every_technique_has_a_mutant(technique: Technique) -> None:
    assert technique.mutants


def outside() -> list[object]:
    """(technique, the rank count just beyond a limit of its), where it has one."""
    beyond = [(t, t.min_ranks - 1) for t in WRITTEN if t.min_ranks > 1]
    beyond += [(t, t.max_ranks + 1) for t in WRITTEN if t.max_ranks is not None]
    return [pytest.param(t, p, id=f"{t.id}-{p}") for t, p in beyond]


@pytest.mark.parametrize(("technique", "ranks"), outside())
def test_rank_counts_that_cannot_work_are_refused_in_one_line(
    technique: Technique, ranks: int
) -> None:
    with pytest.raises(LaunchError) as refusal:
        measuring.measure(technique, ranks, mode="dry")
    assert refusal.value.refused
    assert str(ranks) in refusal.value.summary
    assert "\n" not in str(refusal.value)


def torchrun_line(technique: Technique) -> tuple[int, str]:
    """The rank count and the module of the line in the docstring."""
    text = (ROOT / technique.exemplar).read_text()
    line = re.search(r"torchrun --standalone --nproc-per-node (\d) -m (\S+)\n", text)
    assert line is not None
    assert line[2] == technique.module
    return int(line[1]), line[2]


def says_that_it_holds(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr[-2000:]
    assert "holds" in done.stdout
    assert "FAILS" not in done.stdout


@pytest.fixture(scope="session")
def warm_python(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, dict[str, str]]]:
    with warm.python(tmp_path_factory.mktemp("warm")) as made:
        yield made


@pytest.mark.torchrun
@pytest.mark.nightly
@pytest.mark.parametrize("technique", WRITTEN, ids=lambda t: t.id)
def test_the_torchrun_line_in_the_docstring_runs_as_written(
    technique: Technique, warm_python: tuple[str, dict[str, str]]
) -> None:
    python, variables = warm_python
    ranks, module = torchrun_line(technique)
    says_that_it_holds(
        torchrun(["-m", module], ranks=ranks, python=python, env=variables)
    )


@pytest.mark.torchrun
def test_a_warm_python_ends_as_a_cold_one_would(
    warm_python: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    """One rank fails: torchrun hears of it and kills the others, who would wait."""
    source = (
        "import os, threading\nif os.environ['RANK'] == '1':\n    raise OSError(5)\n"
    )
    (tmp_path / "one_fails.py").write_text(source + "threading.Event().wait(60)\n")
    python, variables = warm_python
    variables = {**variables, "PYTHONPATH": str(tmp_path)}
    start = time.monotonic()
    done = torchrun(["-m", "one_fails"], ranks=2, python=python, env=variables)
    assert done.returncode == 1
    assert "OSError: 5" in done.stderr
    assert time.monotonic() - start < 30


@pytest.mark.torchrun
@pytest.mark.parametrize(
    "name",
    [
        "ring-all-reduce",
        pytest.param("zero-3", marks=pytest.mark.nightly),
        pytest.param("local-sgd", marks=pytest.mark.nightly),
    ],
)
def test_the_torchrun_line_runs_where_no_python_is_warm(name: str) -> None:
    """One of each axis: the whole line with interpreters that start from nothing."""
    ranks, module = torchrun_line(load(ROOT).techniques[name])
    says_that_it_holds(torchrun(["-m", module], ranks=ranks))


def dotted(text: str) -> Iterator[tuple[str, bool]]:
    """The modules and what is in them that a source names; whether to import them."""
    tree = ast.parse(text)
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for a in node.names:
                yield a.name, True
                names[a.asname or a.name.split(".")[0]] = (
                    a.name if a.asname else a.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module), True
            for a in node.names:
                yield f"{node.module}.{a.name}", True
                names[a.asname or a.name] = f"{node.module}.{a.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            root, _, rest = ast.unparse(node).partition(".")
            if root in names:
                yield f"{names[root]}.{rest}", False


def test_an_exemplar_imports_what_it_names() -> None:
    """Warm or cold: it leans on no module that something else has imported."""
    asked = (
        "import importlib, sys, exemplars.runtime; print(*sys.modules);"
        f"[importlib.import_module(m) for m in {warm.PRELOAD + PRELOAD}];"
        "print(*sys.modules)"
    )
    command = [sys.executable, "-c", asked]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    cold, all_ = (set(line.split()) for line in done.stdout.splitlines())
    assert "torch._dynamo" in all_ - cold
    for technique in WRITTEN:
        found = list(dotted((ROOT / technique.exemplar).read_text()))
        own = {name for name, imported in found if imported}
        own |= {f"exemplars.{name}" for name in ("runtime", "workload", "elastic")}
        for name, _ in found:
            parts = name.split(".")
            above = {".".join(parts[:i]) for i in range(1, len(parts) + 1)}
            assert not (above & all_) - cold - own, f"{technique.exemplar}: {name}"


def test_the_table_in_the_docstring_is_the_schedule() -> None:
    from atlas.schedule import simulate

    name = "exemplars.sync_strategy.pipeline_flush.one_f_one_b"
    module = importlib.import_module(name)
    stages = [list(module.one_f_one_b(s, 3, 4)) for s in range(3)]
    drawn = simulate(stages, {"F": 1, "B": 2})
    for s in range(3):
        cells = [". "] * int(drawn.makespan)
        for x in (x for x in drawn.spans if x.rank == s):
            for second in range(int(x.start), int(x.end)):
                cells[second] = f"{x.name}{x.label}"
        assert f"    stage {s}  {' '.join(cells).rstrip()}\n" in (module.__doc__ or "")


def test_the_waits_of_the_server_are_the_waits_in_the_trace() -> None:
    """Two witnesses: the server's own count, and virtual time from the messages."""
    from atlas.timeline import virtual

    technique = load(ROOT).techniques["stale-synchronous-parallel"]
    run = measuring.measure(technique, 4)
    waits = virtual([r["events"] for r in run["ranks"]]).waits
    seen = sum(w.rank > 0 and w.end > w.start for w in waits)
    assert seen == run["ranks"][0]["measured"]["waits"] > 0


def test_two_runs_differ_only_in_time() -> None:
    technique = load(ROOT).techniques["stale-synchronous-parallel"]
    runs = [measuring.measure(technique, 4) for _ in range(2)]
    for run in runs:
        del run["times"]
        for rank in run["ranks"]:
            for event in rank["events"]:
                event.pop("at", None), event.pop("until", None)
    assert runs[0] == runs[1]


def test_all_claims_fail_when_nothing_is_measured() -> None:
    technique = load(ROOT).techniques["ring-all-reduce"]
    run = measuring.measure(technique, 2)
    for rank in run["ranks"]:
        rank["measured"], rank["checks"] = {}, {}
    run["derived"] = {}
    assert failed(judge(technique, run)) == [c.id for c in technique.claims]
