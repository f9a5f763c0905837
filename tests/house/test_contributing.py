"""CONTRIBUTING.md's five steps, followed in a copy: nothing else is needed."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import clone as clones
import pytest
from clone import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PLACE = "communication-pattern/collective/my-all-reduce"
NAME = "my-all-reduce"
ALSO = ("tests", "measurements", "docs", "notebooks", ".github", ".ci")


def steps() -> list[str]:
    """The text of each step."""
    section = TEXT.partition("## Add a technique in five steps")[2].partition("\n## ")[
        0
    ]
    return re.split(r"^\d\. ", section, flags=re.M)[1:]


def commands(text: str) -> list[str]:
    """The commands that a step prints."""
    return re.findall(r"^       (\S.*)$", text, re.M)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The repository, but for what is built."""
    made = clones.make(tmp_path)
    ignore = shutil.ignore_patterns("__pycache__")
    for part in ALSO:
        shutil.copytree(ROOT / part, made / part, ignore=ignore)
    for path in ROOT.glob("*.*"):
        if path.is_file():
            shutil.copy(path, made)
    return made


def run(copy: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=copy,
        env=clones.environment(PYTHONPATH=str(copy)),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, (
        f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    )
    return done.stdout


def say_what_is_to_be_said(copy: Path) -> None:
    """Steps 2 to 4, for one whose technique is the scaffold's own all-reduce."""
    axis_family = PLACE.rpartition("/")[0].replace("-", "_")
    files = (
        copy / f"taxonomy/techniques/{PLACE}.yaml",
        copy / f"atlas/formulas/{axis_family}.py",
        copy / f"exemplars/{axis_family}/{NAME.replace('-', '_')}.py",
    )
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert re.search("say here", text, re.I), file
        file.write_text(re.sub(r"[Ss]ay here", "Written", text), encoding="utf-8")


def test_the_five_steps_are_all_there_is_to_do(copy: Path) -> None:
    assert len(steps()) == 5
    assert commands(steps()[0]) == [f"atlas new {PLACE}"]
    run(copy, "atlas", "new", PLACE)
    say_what_is_to_be_said(copy)
    for line in commands(steps()[3])[1:]:
        run(copy, *line.replace("NAME", NAME).split())
    run(copy, "atlas", "record", NAME)
    assert json.loads((copy / f"measurements/gloo/{NAME}.json").read_text())["runs"]
    snake = NAME.replace("-", "_")
    said = run(
        copy,
        "pytest",
        *("-q", "-m", "not browser and not nccl and not emulated"),
        *("-p", "no:cacheprovider", "-k", f"{NAME} or {snake}", "tests"),
    )
    assert re.search(r"\d\d+ passed", said), said[-2000:]
