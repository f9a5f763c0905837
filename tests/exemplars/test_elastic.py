"""Workers that die: peers hear of it, supervisors go on, nothing is left."""

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from leftovers import wait_until

from atlas.launch import LaunchError, launch
from atlas.record import source_hash
from atlas.taxonomy import load
from exemplars.elastic import Crew
from exemplars.runtime import World, meter

#: How long the system may take to take away processes that it was told to kill.
SWEEP = 2.0
ROOT = Path(__file__).resolve().parents[2]


class Adder:
    """Adds ones over the group; may be told to die before it does."""

    def pid(self) -> int:
        return os.getpid()

    def threads_where_it_was_forked(self) -> int:
        return len(os.listdir(f"/proc/{os.getppid()}/task"))

    def add(self, dies: bool = False) -> float:
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        x = torch.ones(1000)
        dist.all_reduce(x)
        return float(x[0])

    def fail(self) -> None:
        raise ValueError("a mistake of its own")


def one_dies(w: World) -> dict[str, Any]:
    """In turn, every worker dies in a collective and is replaced."""
    found: dict[str, Any] = {"broken": [], "living": [], "again": []}
    with meter() as moved, Crew(w, Adder) as crew:
        crew.form(range(w.size))
        for victim in range(w.size):
            found["broken"].append(crew.ask("add", w.rank == victim))
            living = [r for r, alive in crew.agree(crew.alive).items() if alive]
            crew.form(living)
            found["living"].append(crew.ask("add"))
            if not crew.alive:
                crew.start()
            crew.agree(crew.alive)
            crew.form(range(w.size))
            found["again"].append(crew.ask("add"))
        found["pid"] = crew.ask("pid")
    found["killed"] = sum(e.kind == "killed" for e in moved.events)
    found["groups"] = {e.group for e in moved.events if e.group}
    return found


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_survivors_hear_of_a_death_and_go_on(ranks: int) -> None:
    for rank, found in enumerate(launch(one_dies, ranks)):
        fewer = [None if v == rank else ranks - 1.0 for v in range(ranks)]
        assert found["broken"] == [None] * ranks
        assert found["living"] == fewer
        assert found["again"] == [float(ranks)] * ranks
        assert found["killed"] == 1
        every = frozenset(range(ranks))
        others = {every - {v} for v in every - {rank}} | {every}
        assert {frozenset(g) for g in found["groups"]} == others
        assert not Path(f"/proc/{found['pid']}").exists()


def forked(w: World) -> Any:
    """Where the first worker of a rank and its second were forked."""
    found = []
    with Crew(w, Adder) as crew:
        crew.form(range(w.size))
        found.append(crew.ask("threads_where_it_was_forked"))
        crew.ask("add", w.rank == 0)
        if not crew.alive:
            crew.start()
        found.append(crew.ask("threads_where_it_was_forked"))
    return found


def test_workers_are_forked_where_no_thread_can_hold_a_lock() -> None:
    """The store's server holds one of the C library while somebody connects."""
    assert launch(forked, 2) == [[1, 1]] * 2


def reads_late(w: World) -> bytes:
    with Crew(w, Adder) as crew:
        if w.rank == 0:
            crew.store.set("word", "heard")
        else:
            time.sleep(1)
        return bytes(crew.store.get("word"))


def test_the_store_outlives_the_last_who_reads_from_it() -> None:
    assert launch(reads_late, 2) == [b"heard"] * 2


def told_of_a_worker(w: World, folder: str) -> None:
    """Its supervisor is killed while it lives."""
    with Crew(w, Adder) as crew:
        Path(folder, str(w.rank)).write_text(str(crew.ask("pid")))
        crew.agree(True)
        os.kill(os.getpid(), signal.SIGKILL)


def test_workers_die_with_their_supervisors(tmp_path: Path) -> None:
    with pytest.raises(LaunchError):
        launch(told_of_a_worker, 2, str(tmp_path))
    pids = [(tmp_path / str(rank)).read_text() for rank in range(2)]
    # The kernel kills the keeper when its rank is gone, then the worker: neither
    # is awaited by the launcher, so each takes as long as a busy machine needs.
    assert wait_until(lambda: not any(_runs(pid) for pid in pids), SWEEP)


def _runs(pid: str) -> bool:
    """Whether it is a process that still computes; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def fails(w: World) -> None:
    with Crew(w, Adder) as crew:
        crew.form(range(w.size))
        crew.ask("fail")


def test_a_mistake_in_a_worker_is_no_death() -> None:
    with pytest.raises(LaunchError) as failure:
        launch(fails, 2)
    assert "ValueError: a mistake of its own" in str(failure.value)


def test_workers_are_not_counted_dry() -> None:
    with pytest.raises(LaunchError) as failure:
        launch(fails, 2, dry=True)
    assert failure.value.refused


def test_a_record_is_stale_when_its_exemplars_tool_has_changed(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "exemplars", tmp_path / "exemplars")
    techniques = load(ROOT).techniques
    names = ("quorum-step", "bsp-synchronous-sgd")
    before = [source_hash(tmp_path, techniques[name]) for name in names]
    assert before == [source_hash(ROOT, techniques[name]) for name in names]
    with (tmp_path / "exemplars" / "elastic.py").open("a") as tool:
        tool.write("CHANGED = True\n")
    after = [source_hash(tmp_path, techniques[name]) for name in names]
    assert after[0] != before[0]
    assert after[1] == before[1]
