"""A copy of the parts that commands read and write, for tests that change them."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("taxonomy", "exemplars", "atlas")

#: Several commands in one process, so that the ranks' server starts once.
SEVERAL = """
import json, sys
from typer.testing import CliRunner
from atlas.cli import made
app = made()
said = []
for arguments in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, arguments)
    said.append({"code": done.exit_code, "out": done.stdout, "err": done.stderr})
print(json.dumps({"said": said, "torch": "torch" in sys.modules}))
"""

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1
#: Root may write anywhere; without this capability it keeps to permissions.
UNPRIVILEGED = f"""
import ctypes, os, sys
if os.geteuid() == 0:
    ctypes.CDLL(None).prctl({PR_CAPBSET_DROP}, {CAP_DAC_OVERRIDE}, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def make(folder: Path) -> Path:
    """Copy the parts into a new folder."""
    clone = folder / "clone"
    clone.mkdir()
    ignore = shutil.ignore_patterns("__pycache__")
    for part in PARTS:
        shutil.copytree(ROOT / part, clone / part, ignore=ignore)
    return clone


def environment(**more: str) -> dict[str, str]:
    """Ours, in a terminal wide enough that no line is broken."""
    return {**os.environ, "COLUMNS": "160", **more}


def atlas(
    clone: Path, *arguments: str, before: tuple[str, ...] = (), **more: str
) -> subprocess.CompletedProcess[str]:
    """One command, run by the clone's own code."""
    return subprocess.run(
        [*before, sys.executable, "-m", "atlas", *arguments],
        cwd=clone,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def several(clone: Path, *commands: list[str]) -> dict[str, Any]:
    """Some commands in one process: what each said, and whether torch came in."""
    ran = subprocess.run(
        [sys.executable, "-c", SEVERAL, json.dumps(commands)],
        cwd=clone,
        env=environment(PYTHONPATH=str(clone)),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert isinstance(found, dict)
    return found


def without_override() -> tuple[str, ...]:
    """What to put before a command so that permissions bind it; () if impossible."""
    if os.geteuid() == 0 and ctypes.CDLL(None).prctl(23, CAP_DAC_OVERRIDE) != 1:
        return ()
    return (sys.executable, "-c", UNPRIVILEGED)
