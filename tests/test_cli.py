"""The command line: what it prints, how it ends, and what it leaves behind."""

import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import clone as clones
import psutil
import pytest
from clone import ROOT
from leftovers import wait_until
from typer.testing import CliRunner

from atlas import __version__, knowledge, record
from atlas.cli import app
from atlas.commands import browse, common, new, run, serve, show
from atlas.commands import record as recording
from atlas.launch import LaunchError

RING = "ring-all-reduce"
MODULES = (browse, new, recording, run, serve, show)


def atlas(*arguments: str) -> Any:
    """One command in this process, on a terminal wide enough for its lines."""
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "160"})


@pytest.fixture(autouse=True)
def _in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy that may be changed; commands in this process read it too."""
    made = clones.make(tmp_path)
    monkeypatch.chdir(made)
    return made


def row(text: str, claim: str) -> str:
    """The line of the table about a claim."""
    (line,) = [x for x in text.splitlines() if x.split()[:1] == [claim]]
    return line


def strict(text: str) -> Any:
    """JSON that has no Infinity or NaN in it."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


# --- list, show, stats


def test_list_has_every_technique_with_its_sentence() -> None:
    done = atlas("list")
    assert done.exit_code == 0
    said = " ".join(done.stdout.split())  # a long sentence goes over lines
    for t in knowledge.load(ROOT).techniques.values():
        assert t.id in said
        assert t.summary in said


def test_list_keeps_to_what_was_asked() -> None:
    by_axis = strict(atlas("list", "--axis", "sync-strategy", "--json").stdout)
    assert {t["axis"] for t in by_axis} == {"sync-strategy"}
    by_family = strict(atlas("list", "--family", "collective", "--json").stdout)
    assert RING in [t["id"] for t in by_family]
    assert {t["family"] for t in by_family} == {"collective"}
    by_text = strict(atlas("list", "--text", "ALL-REDUCE", "--json").stdout)
    assert RING in [t["id"] for t in by_text]
    assert "no technique fits" in atlas("list", "--text", "no such text").stdout


def test_show_has_formulas_commands_and_papers() -> None:
    text = atlas("show", RING).stdout
    assert "ring_all_reduce_rounds(p) = 2 * (p - 1)" in text
    assert f"atlas run {RING} --ranks 4\n" in text
    module = "exemplars.communication_pattern.collective.ring_all_reduce"
    assert f"torchrun --standalone --nproc-per-node 4 -m {module}\n" in text
    assert "Patarasuk" in text
    shown = strict(atlas("show", RING, "--json").stdout)
    assert shown["kind"] == "technique"
    assert any(c["latex"] for c in shown["claims"])


def test_every_technique_and_system_can_be_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = knowledge.load(ROOT)
    monkeypatch.setattr(knowledge, "load", lambda: known)
    for name in (*known.techniques, *known.systems):
        assert atlas("show", name).exit_code == 0
        assert strict(atlas("show", name, "--json").stdout)["id"] == name


def test_a_systems_cells_say_whether_their_source_was_read() -> None:
    text = atlas("show", "horovod").stdout
    assert "Horovod" in text
    assert re.search(r"read in https?://|not yet verified in https?://", text)
    assert "is ours" in text


def test_a_formula_with_steps_is_shown_with_its_steps() -> None:
    assert show.formula("ring_all_reduce_rounds") == [
        "ring_all_reduce_rounds(p) = 2 * (p - 1)"
    ]
    assert all(show.formula(name) for name in show.FORMULAS)


def test_stats_count_what_is_there() -> None:
    known = knowledge.load(ROOT)
    counted = strict(atlas("stats", "--json").stdout)
    files = [t for t in known.techniques.values() if (ROOT / t.exemplar).is_file()]
    assert counted["techniques"] == len(known.techniques)
    assert counted["exemplars"] == len(files)
    assert counted["claims"] == sum(len(t.claims) for t in known.techniques.values())
    assert counted["papers"] == len(known.papers)
    kept = len(list((ROOT / "measurements" / "gloo").glob("*.json")))
    assert counted["records"]["gloo"] == kept
    assert f"{len(known.systems)}  systems" in atlas("stats").stdout


# --- run


@pytest.fixture(scope="module")
def ring() -> dict[str, Any]:
    """One real run, to be doctored."""
    technique = knowledge.load(ROOT).techniques[RING]
    return record.measure(technique, 4)


def test_run_prints_predicted_measured_and_verdict() -> None:
    done = atlas("run", RING, "--ranks", "4")
    assert done.exit_code == 0, done.stderr
    sent = row(done.stdout, "bytes_sent")
    assert sent.count("1,200,032 to 1,200,040") == 2
    assert sent.rstrip().endswith("holds")
    assert row(done.stdout, "rounds").split() == ["rounds", "6", "6", "holds"]
    count = len(knowledge.load(ROOT).techniques[RING].claims)
    assert f"all {count} claims hold on 4 ranks (gloo)" in done.stdout


def test_all_ranks_have_a_line_each_where_asked() -> None:
    lines = atlas("run", RING, "--ranks", "2", "--all-ranks").stdout.splitlines()
    sent = [line.split() for line in lines if line.strip().startswith("bytes_sent")]
    assert sent == [
        ["bytes_sent", str(r), "800,024", "800,024", "holds"] for r in (0, 1)
    ]


def test_a_dry_run_counts_and_says_that_values_mean_nothing() -> None:
    done = atlas("run", RING, "--dry", "64")
    assert done.exit_code == 0, done.stderr
    assert "holds" in row(done.stdout, "bytes_sent")
    assert "not judged" in row(done.stdout, "sum")
    assert "on ranks 0, 1, 63 of 64 (dry: values mean nothing)" in done.stdout


def test_run_as_json_has_every_claim_of_every_rank() -> None:
    done = atlas("run", RING, "--ranks", "3", "--json")
    found = strict(done.stdout)
    assert (found["p"], found["mode"], found["holds"]) == (3, "gloo", True)
    sent = [c for c in found["claims"] if c["claim"] == "bytes_sent"]
    assert [c["rank"] for c in sent] == [0, 1, 2]
    assert all(c["predicted"] == c["measured"] for c in sent)


def doctor(monkeypatch: pytest.MonkeyPatch, found: dict[str, Any], **said: Any) -> None:
    """Let the run have found something else on rank 2."""
    changed = json.loads(json.dumps(found))
    changed["ranks"][2]["measured"].update(said.get("measured", {}))
    changed["ranks"][2]["checks"].update(said.get("checks", {}))
    changed["mode"] = said.get("mode", "gloo")
    monkeypatch.setattr(record, "measure", lambda *_, **__: changed)


def test_a_failed_claim_is_exit_code_1_and_names_its_rank(
    ring: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    doctor(monkeypatch, ring, measured={"bytes_sent": 1})
    done = atlas("run", RING)
    assert done.exit_code == 1
    assert "FAILS on rank 2" in row(done.stdout, "bytes_sent")
    assert re.search(
        r"1 of \d claims fails on 4 ranks \(gloo\): bytes_sent", done.stdout
    )
    told = atlas("run", RING, "--json")
    assert told.exit_code == 1
    assert strict(told.stdout)["failed"] == ["bytes_sent"]


def test_an_infinite_error_is_still_json(
    ring: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = {"sum": {"ok": False, "error": float("inf"), "limit": 1e-15}}
    doctor(monkeypatch, ring, checks=endless)
    assert strict(atlas("run", RING, "--json").stdout)["failed"] == ["sum"]
    assert "off by inf" in row(atlas("run", RING).stdout, "sum")


def test_emulated_and_nccl_runs_are_labelled(
    ring: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for mode in ("emulated", "nccl"):
        doctor(monkeypatch, ring, mode=mode)
        title, *_, conclusion = atlas("run", RING).stdout.splitlines()
        assert title.endswith(f"on 4 ranks ({mode})")
        assert f"hold on 4 ranks ({mode})" in conclusion


def test_modes_and_counts_follow_the_options(
    ring: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, str, float]] = []

    def measure(_: Any, p: int, *, mode: str, source: Any, timeout: float) -> Any:
        asked.append((p, mode, timeout))
        return ring

    monkeypatch.setattr(record, "measure", measure)
    atlas("run", RING)
    atlas("run", RING, "--ranks", "2", "--emulate-gpu", "--timeout", "5")
    atlas("run", RING, "--dry", "1024")
    assert asked == [(4, "gloo", 60.0), (2, "emulated", 5.0), (1024, "dry", 60.0)]
    monkeypatch.setattr(run, "cuda_present", lambda: True)
    atlas("run", RING)
    assert asked[-1] == (4, "nccl", 60.0)


def test_a_failing_run_says_why_first_and_shows_the_trace_where_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise LaunchError("rank 2: ValueError: no such chunk", "--- rank 2\nTraceback")

    monkeypatch.setattr(record, "measure", fail)
    short = atlas("run", RING)
    assert short.exit_code == 1
    assert short.stderr == "rank 2: ValueError: no such chunk (--verbose shows where)\n"
    long = atlas("run", RING, "--verbose")
    assert long.exit_code == 1
    first, *rest = long.stderr.splitlines()
    assert first == "rank 2: ValueError: no such chunk"
    assert rest == ["--- rank 2", "Traceback"]


@pytest.mark.parametrize("ranks", ["0", "-1", "65"])
def test_a_refused_rank_count_is_one_line_and_exit_code_2(ranks: str) -> None:
    done = atlas("run", RING, "--ranks", ranks)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"{ranks} ranks: ")
    assert done.stderr.count("\n") == 1


def test_what_ranks_print_stays_out_of_the_json(
    ring: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*_: Any, **__: Any) -> Any:
        print("[rank 0] hello")
        return ring

    monkeypatch.setattr(record, "measure", measure)
    done = atlas("run", RING, "--json")
    assert strict(done.stdout)["holds"]
    assert "[rank 0] hello" in done.stderr


# --- wrong use


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "ring-al"], "did you mean ring-all-reduce"),
        (["run", "ring"], "did you mean ring-all-reduce"),
        (["run", "qqqq"], "atlas list shows all"),
        (["run", "horovod"], "a system, not a technique: atlas show horovod"),
        (["show", "horovd"], "did you mean horovod?"),
        (["record", "zero"], "did you mean zero-3"),
        (["record", RING, "--mode", "glo"], "did you mean gloo?"),
        (["record"], "name some techniques, or give --all"),
        (["record", RING, "--all"], "give one of them"),
        (["list", "--axis", "sync"], "did you mean sync-strategy?"),
        (["list", "--family", "shard"], "did you mean sharded"),
        (["run", RING, "--mutant", "qqqq"], "there is no mutant"),
        (["run", RING, "--dry", "8", "--ranks", "2"], "give one of them"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    arguments: list[str], expected: str
) -> None:
    done = atlas(*arguments)
    assert done.exit_code == 2
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_technique_without_an_exemplar_cannot_be_run(clone: Path) -> None:
    (clone / knowledge.load(clone).techniques[RING].exemplar).unlink()
    assert "not written yet" in atlas("run", RING).stderr
    assert "exemplar not written yet" in atlas("list").stdout


def test_another_trees_exemplars_are_not_run_by_mistake(clone: Path) -> None:
    done = atlas("run", RING)
    assert done.exit_code == 2
    assert f"pip install -e {clone}" in done.stderr


def test_problems_of_the_taxonomy_are_one_line_each(clone: Path) -> None:
    file = clone / knowledge.load(clone).techniques[RING].yaml
    text = (
        file.read_text().replace("name:", "nmae:", 1).replace("since: 2009", "since: 9")
    )
    file.write_text(text)
    done = atlas("list")
    assert done.exit_code == 2
    lines = done.stderr.splitlines()
    assert len(lines) >= 2
    place = re.escape(file.relative_to(clone).as_posix())
    assert all(re.match(rf"{place}:\d+:\d+: ", line) for line in lines)


def test_an_unexpected_error_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(knowledge, "load", fail)
    assert isinstance(atlas("list").exception, ZeroDivisionError)


# --- record


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A clone in which the ring was recorded, and then its exemplar changed."""
    made = clones.make(tmp_path_factory.mktemp("recorded"))
    said = clones.several(
        made,
        ["record", RING, "--mode", "gloo,dry"],
        ["list", "--text", RING, "--json"],
    )
    exemplar = made / knowledge.load(made).techniques[RING].exemplar
    exemplar.write_text(exemplar.read_text() + "\nCHANGED = True\n")
    return {"clone": made, **said}


def test_record_writes_and_names_what_it_wrote(recorded: dict[str, Any]) -> None:
    wrote, listed = recorded["said"]
    assert wrote["code"] == 0, wrote["err"]
    names = [f"measurements/{mode}/{RING}.json" for mode in ("gloo", "dry")]
    assert wrote["out"].splitlines() == [f"wrote {name}" for name in names]
    (technique,) = [t for t in json.loads(listed["out"]) if t["id"] == RING]
    assert technique["proven"]["gloo"]["ranks"] == [1, 2, 3, 4, 8]
    assert technique["proven"]["dry"]["ranks"] == [64, 1024]
    assert not technique["proven"]["gloo"]["stale"]


def test_no_torch_is_imported_even_to_record(
    recorded: dict[str, Any],
) -> None:
    assert recorded["torch"] is False


def test_a_record_of_older_source_says_so(
    recorded: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recorded["clone"])
    assert "gloo 1 2 3 4 8 (older source)" in atlas("list").stdout
    assert "gloo 1 2 3 4 8 (older source): 20" in atlas("show", RING).stdout
    assert f"gloo/{RING}" in strict(atlas("stats", "--json").stdout)["stale"]


def test_nothing_is_recorded_where_a_claim_fails(clone: Path) -> None:
    exemplar = clone / knowledge.load(clone).techniques[RING].exemplar
    text = exemplar.read_text()
    assert text.count("into.add_(") == 1
    exemplar.write_text(text.replace("into.add_(", "into.sub_("))
    done = clones.atlas(clone, "record", RING, "--mode", "gloo")
    assert done.returncode == 1
    assert "failed; nothing was written" in done.stderr
    assert not list(clone.glob("measurements/*/*"))


def test_a_read_only_measurements_folder_is_one_line(clone: Path) -> None:
    before = clones.without_override()
    if not before:
        pytest.skip("root without CAP_SETPCAP: permissions cannot be made to bind")
    folder = clone / "measurements"
    folder.mkdir(mode=0o555)
    done = clones.atlas(clone, "record", RING, before=before)
    assert done.returncode == 2
    expected = r"measurements/(gloo|dry) cannot be written: Permission denied\n"
    assert re.fullmatch(expected, done.stderr)
    assert not list(folder.iterdir())


def test_a_file_in_place_of_the_measurements_folder_is_one_line(clone: Path) -> None:
    (clone / "measurements").write_text("not a folder")
    done = clones.atlas(clone, "record", RING)
    assert done.returncode == 2
    assert re.fullmatch(r"measurements/\w+ cannot be written: .+\n", done.stderr)


# --- serve


def test_serve_takes_the_next_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    executed: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, command: executed.append(command))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = atlas("serve", "--port", str(port))
    address = executed[0][-1]
    assert address.startswith("127.0.0.1:")
    assert int(address.partition(":")[2]) > port
    assert f"port {port} is taken" in done.stdout
    assert f"http://{address}" in done.stdout


def test_serve_without_mkdocs_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda _: None)
    done = atlas("serve")
    assert done.exit_code == 2
    assert 'pip install -c constraints.txt -e ".[docs]"' in done.stderr


# --- help and completion


def test_the_version_is_the_packages() -> None:
    assert atlas("--version").stdout == f"atlas {__version__}\n"


def examples() -> list[list[str]]:
    """Every command that the help texts show."""
    found = []
    for module in MODULES:
        for _, fn in inspect.getmembers(module, inspect.isfunction):
            lines = (fn.__doc__ or "").splitlines()
            found += [x.split() for x in lines if x.strip().startswith("atlas ")]
    return found


def test_every_command_has_help_with_examples_that_name_real_things() -> None:
    known = knowledge.load(ROOT)
    commands = {line[1] for line in examples()}
    assert commands == {"list", "show", "run", "record", "serve", "stats", "new"}
    for command in commands:
        text = atlas(command, "--help").stdout
        assert re.search(rf"Examples:\s+atlas {command}", text)
    for _, command, *rest in examples():
        if command in ("show", "run", "record") and rest[0] != "--all":
            assert rest[0] in {**known.techniques, **known.systems}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("atlas run ring-all", RING),
        ("atlas show horo", "horovod"),
        ("atlas list --axis com", "communication-pattern"),
        ("atlas list --family shar", "sharded"),
        ("atlas new sync-strategy/syn", "sync-strategy/synchronous/"),
        ("atlas st", "stats"),
    ],
)
def test_the_shell_completes_names(words: str, expected: str) -> None:
    count = str(len(words.split()) - 1)
    done = clones.atlas(
        ROOT, _ATLAS_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=count
    )
    assert done.stdout.split() == [expected]


def test_completion_outside_a_clone_or_in_a_broken_one_is_silent(clone: Path) -> None:
    (clone / "taxonomy" / "axes.yaml").write_text("axes: 3")
    assert common.complete_axis("") == []
    assert RING in common.complete_technique("")


def test_list_imports_no_torch() -> None:
    found = clones.several(ROOT, ["list"], ["show", RING], ["stats"])
    assert [one["code"] for one in found["said"]] == [0, 0, 0]
    assert found["torch"] is False


# --- Ctrl-C

HANGS = """
import os, time
from pathlib import Path
from exemplars.runtime import World
def main(w: World) -> None:
    Path(os.environ["STARTED"], str(w.rank)).touch()
    time.sleep(600)
"""


def interrupt(process: subprocess.Popen[str]) -> tuple[str, float]:
    """Press Ctrl-C: what was said, and how long the end took."""
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    return said, time.monotonic() - begun


@pytest.fixture
def hanging(clone: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run on two ranks that never ends."""
    (clone / knowledge.load(clone).techniques[RING].exemplar).write_text(HANGS)
    process = subprocess.Popen(
        [sys.executable, "-m", "atlas", "run", RING, "--ranks", "2"],
        cwd=clone,
        env=clones.environment(STARTED=str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process
        process.kill()


def test_ctrl_c_ends_a_run_with_130_no_traceback_and_nothing_left(
    hanging: subprocess.Popen[str], tmp_path: Path
) -> None:
    started = [tmp_path / "0", tmp_path / "1"]
    assert wait_until(lambda: all(p.exists() for p in started), 60)
    below = psutil.Process(hanging.pid).children(recursive=True)
    assert len(below) >= 3  # the server and two ranks
    said, seconds = interrupt(hanging)
    assert hanging.returncode == 130
    assert "Traceback" not in said
    assert seconds < 5
    assert not psutil.wait_procs(below, timeout=2)[1]


def test_ctrl_c_while_the_ranks_start_leaves_nothing(
    hanging: subprocess.Popen[str],
) -> None:
    process = psutil.Process(hanging.pid)
    assert wait_until(process.children, 60)
    below = process.children(recursive=True)
    said, _ = interrupt(hanging)
    assert hanging.returncode == 130
    assert "Traceback" not in said
    assert not psutil.wait_procs(below, timeout=2)[1]
