"""A run's folder is gone with the run, whatever ends it."""

import os
import signal
import time
from pathlib import Path

import pytest

from atlas.launch import LaunchError, launch
from exemplars.runtime import World
from exemplars.scratch import scratch, shared

DEADLINE = 30.0


def gone(folder: Path) -> bool:
    """Whether it is, in the end; who removes it outlives the run for a moment."""
    deadline = time.monotonic() + DEADLINE
    while folder.exists() and time.monotonic() < deadline:
        os.sched_yield()
    return not folder.exists()


def writes(w: World) -> tuple[str, list[str]]:
    with shared(w) as folder:
        (folder / str(w.rank)).write_text("here")
        w.check_same("all", w.randn(1, seed=0))  # all have written
        return str(folder), sorted(path.name for path in folder.iterdir())


def test_all_ranks_share_a_folder_that_the_run_removes() -> None:
    found = launch(writes, 3)
    assert len({folder for folder, _ in found}) == 1
    assert found[0][1] == ["0", "1", "2"]
    assert gone(Path(found[0][0]))


def is_killed(w: World, told: str) -> None:
    with scratch() as folder:
        (folder / "state").write_bytes(bytes(1000))
        Path(told, str(w.rank)).write_text(str(folder))
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_rank_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="SIGKILL"):
        launch(is_killed, 1, str(tmp_path))
    folder = Path((tmp_path / "0").read_text())
    assert folder.name.startswith("atlas-")
    assert gone(folder)


def fails(w: World, told: str) -> None:
    with scratch() as folder:
        Path(told, str(w.rank)).write_text(str(folder))
        raise ValueError("a mistake")


def test_an_error_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="a mistake"):
        launch(fails, 1, str(tmp_path))
    assert gone(Path((tmp_path / "0").read_text()))
