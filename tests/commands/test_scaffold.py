"""`atlas new`: what it begins loads, runs and holds; what it refuses stays away."""

import errno
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import clone as clones
import pytest
from clone import ROOT
from command_line import app
from typer.testing import CliRunner

from atlas import scaffold, taxonomy

HOME = "communication-pattern/neighbor"  # a family without a technique as yet
NAME = "gossip-ring"
PLACE = f"{HOME}/{NAME}"


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = clones.make(tmp_path)
    monkeypatch.chdir(made)
    return made


def new(place: str) -> Any:
    return CliRunner().invoke(app, ["new", place], env={"COLUMNS": "160"})


def files(clone: Path) -> set[Path]:
    folders = ("taxonomy", "exemplars", "atlas/formulas")
    return {p for folder in folders for p in (clone / folder).rglob("*.*")}


def test_what_is_begun_loads_with_claims_formulas_and_a_mutant(clone: Path) -> None:
    done = new(PLACE)
    assert done.exit_code == 0, done.stderr
    technique = taxonomy.load(clone).techniques[NAME]
    assert technique.path == PLACE
    assert (clone / technique.exemplar).is_file()
    assert (clone / technique.exemplar).with_name("__init__.py").read_text()
    assert f"wrote {technique.yaml}\n" in done.stdout
    assert f"wrote {technique.exemplar}\n" in done.stdout
    assert re.findall(r"^(\d)\. ", done.stdout, re.M) == list("12345")


def test_what_is_begun_runs_and_its_mutant_is_caught(clone: Path) -> None:
    begun = clones.atlas(clone, "new", PLACE)
    assert begun.returncode == 0, begun.stderr
    found = clones.several(
        clone,
        ["run", NAME, "--ranks", "3", "--json"],
        ["run", NAME, "--ranks", "1", "--json"],
        ["run", NAME, "--dry", "1024", "--json"],
        ["run", NAME, "--ranks", "3", "--mutant", "largest-not-sum"],
        ["record", NAME],
    )
    three, one, dry, mutant, recorded = found["said"]
    for run in (three, one, dry):
        assert run["code"] == 0, run["err"]
        assert json.loads(run["out"])["holds"]
    assert all(c["ok"] for c in json.loads(three["out"])["claims"])
    assert mutant["code"] == 1
    assert "caught by sum" in mutant["out"]
    assert recorded["code"] == 0, recorded["err"]
    kept = json.loads((clone / f"measurements/gloo/{NAME}.json").read_text())
    assert [m["failed"] for m in kept["mutants"]] == [["sum"], ["calls", "payload"]]


def test_what_is_begun_keeps_the_rules_for_exemplars(clone: Path) -> None:
    new(PLACE)
    path = clone / taxonomy.load(clone).techniques[NAME].exemplar
    lines = path.read_text().splitlines()
    assert len(lines) <= 150
    long = [line for line in lines if len(line) > 79]
    assert all(line.startswith("    torchrun --standalone ") for line in long)
    compile(path.read_text(), path.name, "exec")


PLANNED = "communication-pattern/collective/planned-all-reduce"
KNOWN = """\
name: Planned all-reduce
summary: A technique that is described, and that nobody has written as yet.
since: 2009
papers: [patarasuk2009bandwidth]
use_when: It is known.
avoid_when: It must run.
pros: Its data are there.
cons: Its exemplar is not.
claims:
  - {id: same, says: all ranks hold the same bits, kind: equal, per: run}
  - {id: bytes_sent, says: bytes this rank sends, kind: exact, unit: bytes, of: traffic}
see_also: [ring-all-reduce]
"""


@pytest.fixture
def data(clone: Path) -> Path:
    """The data of a technique without an exemplar."""
    path = clone / f"taxonomy/techniques/{PLANNED}.yaml"
    path.write_text(KNOWN)
    return path


def test_of_what_is_known_the_claims_become_comments_and_the_rest_stays(
    clone: Path, data: Path
) -> None:
    before, known = (
        data.read_text(),
        taxonomy.load(clone).techniques[Path(PLANNED).name],
    )
    done = new(PLANNED)
    assert done.exit_code == 0, done.stderr
    begun = taxonomy.load(clone).techniques[known.id]
    assert [c.id for c in begun.claims] == ["sum", "calls", "payload"]
    assert replace(begun, claims=known.claims, mutants=known.mutants) == known
    after = data.read_text()
    assert [line for line in before.splitlines() if line not in after] == []
    for claim in known.claims:
        assert re.search(rf"^#   - .*id: {claim.id},", after, re.M)
    found = clones.several(clone, ["run", known.id, "--ranks", "2", "--json"])
    assert json.loads(found["said"][0]["out"])["holds"]
    again = new(PLANNED)
    assert again.exit_code == 2
    assert "is there already" in again.stderr
    assert data.read_text() == after


def test_known_data_come_back_if_the_exemplar_cannot_be_written(
    clone: Path, data: Path
) -> None:
    before = data.read_text()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.open", _full(data))
        done = new(PLANNED)
    assert done.exit_code == 2
    assert "No space left on device; nothing was written" in done.stderr
    assert data.read_text() == before
    known = taxonomy.load(clone).techniques[Path(PLANNED).name]
    assert not (clone / known.exemplar).exists()


def _full(path: Path) -> Any:
    """An `open` for which this file's disk is full."""
    real = open

    def opened(name: Any, mode: str = "r", **more: Any) -> Any:
        if Path(name) == path and mode == "w":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(name, mode, **more)

    return opened


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("communication-pattern/collective/ring-all-reduce", "is there already"),
        ("sync-strategy/synchronous/tree-all-reduce", "is there already"),
        ("sync-strategy/synchronous/ring-all-reduce", "is there already"),
        ("sync-strategy/synchronous/horovod", "is a system's name"),
        ("communication-pattern/collectve/x", "did you mean collective?"),
        ("communication-pattern/sharded/x", "it is parameter-distribution/sharded"),
        ("communication-pattern/qqqq/x", "there are star, collective"),
        ("comunication-pattern/collective/x", "did you mean communication-pattern?"),
        ("tree-all-reduce", "expected AXIS/FAMILY/NAME"),
        ("communication-pattern/collective/Tree_All", "expected a name like"),
        ("communication-pattern/collective/../x", "expected AXIS/FAMILY/NAME"),
        ("communication-pattern/collective/", "expected a name like"),
    ],
)
def test_what_cannot_be_begun_is_one_line_and_no_file(
    clone: Path, place: str, expected: str
) -> None:
    before = files(clone)
    done = new(place)
    assert done.exit_code == 2
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1
    assert files(clone) == before


def test_what_stands_in_the_way_is_not_overwritten(clone: Path) -> None:
    exemplar = clone / "exemplars/communication_pattern/neighbor/gossip_ring.py"
    exemplar.parent.mkdir(exist_ok=True)
    exemplar.write_text("mine\n")
    before = files(clone)
    done = new(PLACE)
    assert done.exit_code == 2
    assert "gossip_ring.py: File exists; nothing was written" in done.stderr
    assert exemplar.read_text() == "mine\n"
    assert files(clone) == before


def test_no_technique_still_has_the_scaffolds_sentences() -> None:
    paths = [*ROOT.glob("taxonomy/techniques/*/*/*"), *ROOT.glob("exemplars/*/*/*.py")]
    assert paths
    for path in paths:
        text = path.read_text(encoding="utf-8").casefold()
        assert scaffold.UNWRITTEN.casefold() not in text, path
