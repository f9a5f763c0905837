"""A reader's script, unchanged: it runs as under torchrun, and nothing of it stays."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from leftovers import wait_until

from atlas.yours import Here, Ran, Script, ScriptError, run

JOIN = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, p = dist.get_rank(), dist.get_world_size()
"""


def ran(folder: Path, source: str, ranks: int = 2, *given: str, **how: Any) -> Ran:
    path = folder / "train.py"
    path.write_text(source)
    return run(Script(path, given), ranks, **how)


def test_a_script_has_what_torchrun_gives_it(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("word = 'beside it'")
    lines: list[tuple[int, str]] = []
    source = JOIN + (
        "import helper, __main__\n"
        "x = torch.ones(1); dist.all_reduce(x)\n"
        "assert os.environ['LOCAL_RANK'] == str(rank) and __name__ == '__main__'\n"
        "dist.destroy_process_group()\n"
        "dist.init_process_group('gloo')\n"  # again, and the ranks meet again
        "print(x.item(), sys.argv[1:], helper.word, __main__.p)\n"
    )
    found = ran(tmp_path, source, 3, "--a", "b", tell=lambda r, s: lines.append((r, s)))
    assert found.well, [r.end for r in found.ranks]
    assert sorted(lines) == [(r, "3.0 ['--a', 'b'] beside it 3") for r in range(3)]


def add_to(numbers: list[int]) -> Callable[[Here], Any]:
    """A watcher whose value is one number more than there are."""

    @contextlib.contextmanager
    def watch(here: Here) -> Iterator[Callable[[], int]]:
        yield lambda: sum(numbers) + here.rank

    return watch


def test_each_watcher_brings_back_its_value(tmp_path: Path) -> None:
    found = ran(tmp_path, "pass", 2, watch=[add_to([1]), add_to([1, 2])])
    assert [r.value for r in found.ranks] == [[1, 3], [2, 4]]


def test_what_is_no_script_is_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match=r"cannot read .*nowhere.py: No such file"):
        run(Script(tmp_path / "nowhere.py"), 2)
    with pytest.raises(ScriptError, match="is a folder, not a script"):
        run(Script(tmp_path), 2)
    with pytest.raises(ScriptError, match=r"train.py:2 is not Python"):
        ran(tmp_path, "x = 1\nif x\n")
    with pytest.raises(ScriptError, match="0 ranks: at least 1 is needed"):
        ran(tmp_path, "pass", 0)


def test_the_cause_of_a_failure_has_its_own_traceback(tmp_path: Path) -> None:
    source = JOIN + (
        "def fail():\n    raise ValueError('boom')\n"
        "if rank == 1: fail()\n"
        "dist.all_reduce(torch.ones(1))\n"
    )
    found = ran(tmp_path, source, 3)
    assert found.cause
    assert found.cause.rank == 1
    end = found.cause.end
    assert end.line.startswith("ValueError: boom at ")
    assert end.site.endswith("train.py:7")
    assert "atlas" not in end.trace.replace(str(tmp_path), "")
    assert end.trace.endswith("ValueError: boom\n")
    assert [r.end.well for r in found.ranks] == [False] * 3


@pytest.mark.parametrize(
    ("source", "kind", "line"),
    [
        ("import nothing_of_this_name", "raised", "No module named"),
        ("import sys; sys.exit(3)", "returned", "exit code 3"),
        ("import sys; sys.exit('no data')", "returned", "exit code 1"),
        ("import os; os._exit(5)", "killed", "left at once with 5"),
        ("import os; os.kill(os.getpid(), 9)", "killed", "was killed by SIGKILL"),
        (
            "import torch.multiprocessing as mp\nmp.spawn(print, nprocs=2)",
            "refused",
            "starts its own processes",
        ),
    ],
)
def test_however_a_script_ends_its_end_is_known(
    tmp_path: Path, source: str, kind: str, line: str
) -> None:
    found = ran(tmp_path, source, 1)
    assert found.cause
    assert found.cause.end.kind == kind
    assert line in found.cause.end.line


def test_a_script_for_gpus_only_is_known_as_such(tmp_path: Path) -> None:
    found = ran(tmp_path, "import torch\ntorch.ones(1).cuda()", 1)
    assert found.cause
    assert found.cause.end.no_gpu


def test_a_silent_script_is_ended_with_what_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    source = JOIN + (
        "import subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(note)!r}, 'a').write(f'{{child.pid}} {{os.getpid()}}\\n')\n"
        "time.sleep(600)\n"
    )
    found = ran(tmp_path, source, 2, timeout=1.0)
    assert found.stopped == "late"
    assert [r.end.kind for r in found.ranks] == ["unfinished"] * 2
    assert all("time.sleep" in r.stack or "train.py" in r.stack for r in found.ranks)
    pids = [int(n) for n in note.read_text().split()]
    assert len(pids) == 4
    assert wait_until(lambda: not any(_alive(n) for n in pids), seconds=5)


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_environment_of_the_launcher_reaches_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATLAS_TEST_WORD", "heard")
    source = "import os\nassert os.environ['ATLAS_TEST_WORD'] == 'heard'"
    assert ran(tmp_path, source, 1).well
    assert "ATLAS_TEST_WORD" in os.environ
