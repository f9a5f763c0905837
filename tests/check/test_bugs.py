"""Every bug of the atlas is shown by its program, and `atlas check` names it."""

import functools
import shlex
import tempfile
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from atlas.check import checking
from atlas.check.checking import Order, Result
from atlas.check.detectors import PECULIAR, read, stale
from atlas.taxonomy import Bug, load

ROOT = Path(__file__).parents[2]
BUGS = load(ROOT).bugs
PROGRAMS = ROOT / "atlas" / "check" / "programs"
RANKS, LINES, SAMPLE = 3, 60, 6
FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


@pytest.fixture(scope="module", autouse=True)
def _references_are_kept_for_the_module() -> Any:
    yield
    reference.cache_clear()
    while FOLDERS:
        FOLDERS.pop().cleanup()


@functools.cache
def reference(text: str, arguments: str) -> Path:
    """One process and its perturbed runs."""
    FOLDERS.append(tempfile.TemporaryDirectory(prefix="kept-"))
    place = Path(FOLDERS[-1].name)
    script = place / "program.py"
    script.write_text(text)
    checking.reference(Order(script, tuple(shlex.split(arguments))), place)
    return place


def program(bug: Bug) -> str:
    return (PROGRAMS / f"{bug.program}.py").read_text()


def found(bug: Bug, text: str, place: Path, right: str) -> Result:
    script = place / "program.py"
    script.write_text(text)
    many = Order(script, tuple(shlex.split(bug.many)))
    checking.captured(many, place / "many", RANKS)
    return checking.compared(reference(right, bug.one), place / "many", bug.id)


def daily(bugs: list[str]) -> list[Any]:
    """Some with every change, all of them every night."""
    some = set(sorted(bugs, key=lambda id: crc32(id.encode()))[:SAMPLE])
    return [
        pytest.param(id, marks=[] if id in some else [pytest.mark.nightly])
        for id in bugs
    ]


@pytest.mark.parametrize("id", daily(list(BUGS)))
def test_a_bug_is_found_and_named(id: str, tmp_path: Path) -> None:
    bug = BUGS[id]
    wrong = program(bug).replace(bug.find, bug.replace)
    right = wrong if id in PECULIAR else program(bug)
    result = found(bug, wrong, tmp_path, right)
    assert not result.holds
    assert result.bug == bug.diagnosis, result


@pytest.mark.parametrize("name", sorted(p.stem for p in PROGRAMS.glob("[a-z]*.py")))
def test_the_right_program_holds(name: str, tmp_path: Path) -> None:
    bug = next(b for b in BUGS.values() if b.program == name)
    result = found(bug, program(bug), tmp_path, program(bug))
    assert result.holds, result
    assert len(program(bug).splitlines()) <= LINES


def test_the_study_of_detectors_is_of_these_bugs() -> None:
    assert not stale(load(ROOT)), "python -m atlas.check makes it anew"


def test_the_check_sees_every_bug_and_the_loss_does_not() -> None:
    rows = read(ROOT)["bugs"]
    assert all(row["seen"]["atlas check"] for row in rows.values())
    assert not all(row["seen"]["loss"] for row in rows.values())
