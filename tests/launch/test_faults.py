"""Faults: whatever is killed, stopped or interrupted, the rest ends and says why."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
from leftovers import alive, wait_until
from scripts import ROOT, line_with, run, script

from atlas import launch as launcher
from atlas.launch import LaunchError, launch
from exemplars.runtime import World

MODULE = "exemplars.communication_pattern.collective.ring_all_reduce"


def die(note: str | None = None) -> None:
    """At once; the note says when, by the clock that all processes share."""
    if note:
        Path(note).write_text(str(time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)


class DiesOnArrival:
    """Kills the rank that unpickles it: before it has joined the group."""

    def __init__(self, victim: int, note: str) -> None:
        self.victim, self.note = victim, note

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if os.environ.get("RANK") == str(self.victim):
            die(self.note)


def train_until_killed(
    w: World, victim: int, moment: str, note: str, _: object
) -> None:
    """Five collectives, then the way out; the victim dies at one moment."""
    for step in range(5):
        if w.rank == victim and moment == f"collective {step}":
            die(note)
        dist.all_reduce(torch.zeros(1000))
    if w.rank == victim and moment == "leaving":  # with whatever call it leaves
        dist.all_reduce = dist.barrier = lambda *_, **__: die(note)


@pytest.mark.parametrize("victim", range(4))
@pytest.mark.parametrize(
    "moment", ["before joining", "collective 0", "collective 2", "leaving"]
)
def test_a_killed_rank_ends_the_run_and_is_named(
    victim: int, moment: str, tmp_path: Path
) -> None:
    note = tmp_path / "death"
    bomb = DiesOnArrival(victim, str(note)) if moment == "before joining" else None
    with pytest.raises(LaunchError) as caught:
        launch(train_until_killed, 4, victim, moment, str(note), bomb)
    assert time.monotonic() - float(note.read_text()) < 5  # from the death on
    assert caught.value.summary == f"rank {victim} was killed by SIGKILL"


def of_the_server(w: World) -> int:
    return os.getppid()


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_an_idle_server_that_was_killed_or_stopped_is_replaced(
    sent: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "PATIENCE", 1.0)
    before = launch(of_the_server, 1)[0]
    os.kill(before, sent)
    after = launch(of_the_server, 2)
    assert before not in after
    assert not psutil.pid_exists(before)


def test_a_server_that_is_stopped_at_work_ends_the_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop_the_server(w: World) -> None:
        os.kill(os.getppid(), signal.SIGSTOP)

    monkeypatch.setattr(launcher, "PATIENCE", 1.0)
    start = time.monotonic()
    with pytest.raises(LaunchError, match="the rank server gave no answer in 1 s"):
        launch(stop_the_server, 2, timeout=2)
    assert time.monotonic() - start < 20


def test_what_a_rank_started_ends_with_it() -> None:
    def leave_a_child(w: World) -> int:
        return subprocess.Popen(["sleep", "600"]).pid

    children = launch(leave_a_child, 2)
    assert wait_until(lambda: not any(map(psutil.pid_exists, children)), 10)


def test_two_killed_ranks_are_both_named() -> None:
    def die_in_pairs(w: World) -> None:
        dist.barrier()  # else the first to die may keep the other from joining
        if w.rank in (1, 3):
            die()
        dist.all_reduce(torch.zeros(3))

    with pytest.raises(LaunchError) as caught:
        launch(die_in_pairs, 4)
    assert caught.value.summary == "rank 1 was killed by SIGKILL"
    assert "then rank 3 was killed by SIGKILL" in str(caught.value)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_stopped_rank_is_named_soon_after_the_groups_timeout(victim: int) -> None:
    def stop(w: World) -> None:
        if w.rank == victim:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.all_reduce(torch.zeros(3))

    start = time.monotonic()
    with pytest.raises(LaunchError) as caught:
        launch(stop, 4, group_timeout=3.0)
    assert time.monotonic() - start < 3 + 5
    assert caught.value.summary.startswith(f"rank {victim} is stopped (process ")


def test_a_rank_stopped_outside_collectives_is_named_at_the_deadline() -> None:
    def stop_alone(w: World) -> None:
        if w.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        threading.Event().wait(30)

    with pytest.raises(LaunchError) as caught:
        launch(stop_alone, 2, timeout=1.0)
    assert caught.value.summary.startswith("rank 1 is stopped (process ")
    assert "--- rank 0\n" in str(caught.value)
    assert "in stop_alone" in str(caught.value)


LAUNCHER = """
    import os
    from pathlib import Path
    from atlas.launch import launch

    def hang(w, out):
        import torch.distributed as dist
        dist.barrier()
        line = f"rank {os.getpid()} of {os.getppid()}\\n".encode()
        os.write(os.open(out, os.O_WRONLY | os.O_APPEND), line)
        __import__("threading").Event().wait(60)

    if __name__ == "__main__":
        out = Path(__file__).with_name("pids")
        out.touch()
        print("launching", flush=True)
        launch(hang, 3, str(out))
"""


def processes(folder: Path) -> list[psutil.Process]:
    """The three ranks and their server, once all have said who they are."""
    out = folder / "pids"
    assert wait_until(lambda: out.exists() and out.read_text().count("\n") == 3, 30)
    words = [line.split() for line in out.read_text().splitlines()]
    pids = {int(w[1]) for w in words} | {int(w[3]) for w in words}
    assert len(pids) == 4
    found = [psutil.Process(pid) for pid in sorted(pids)]
    assert all(alive(p) for p in found)
    return found


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_no_rank_and_no_file_outlives_its_launcher(
    tmp_path: Path, how: signal.Signals
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with script(tmp_path, LAUNCHER, env={"TMPDIR": str(temporary)}) as process:
        ours = processes(tmp_path)
        assert list(temporary.glob("atlas-*"))
        process.send_signal(how)
        assert process.wait(5) == -how
        assert wait_until(lambda: not any(alive(p) for p in ours), 2), ours
        assert wait_until(lambda: not list(temporary.glob("atlas-*")), 2)


@pytest.mark.parametrize("module", ["torch", "late"])
def test_a_server_in_the_middle_of_an_import_ends_with_its_launcher(
    tmp_path: Path, module: str
) -> None:
    """Of what it always imports, or of what the ranks will need.

    The import is in C, as the loading of a library is: Python could answer no signal.
    """
    temporary, here = tmp_path / "temporary", tmp_path / "here"
    temporary.mkdir()
    (tmp_path / f"{module}.py").write_text(
        f"import itertools, os; open({str(here)!r}, 'w').write(f'{{os.getpid()}}\\n')\n"
        "any(itertools.repeat(0, 5 * 10**9))\n"
    )
    source = """
        from atlas.launch import launch
        launch(lambda w: w.rank, 1, needs=["late"])
    """
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    env = {"PYTHONPATH": path, "TMPDIR": str(temporary)}
    with script(tmp_path, source, env=env) as process:
        assert wait_until(lambda: here.exists() and "\n" in here.read_text(), 30)
        server = psutil.Process(int(here.read_text()))
        assert alive(server)
        process.kill()
        assert wait_until(lambda: not alive(server), 2)
        assert not list(temporary.glob("atlas-*"))


def test_ctrl_c_ends_the_ranks_and_is_a_keyboard_interrupt(tmp_path: Path) -> None:
    with script(tmp_path, LAUNCHER) as process:
        ours = processes(tmp_path)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=5)
        assert process.returncode == -signal.SIGINT
        assert err.splitlines()[-1] == "KeyboardInterrupt"
        assert wait_until(lambda: not any(alive(p) for p in ours), 2), ours


def test_a_launch_after_ctrl_c_works(tmp_path: Path) -> None:
    source = """
        import os, signal, threading
        from atlas.launch import launch

        def interrupt(w):
            os.kill(launcher, signal.SIGINT)
            threading.Event().wait(30)

        launcher = os.getpid()
        try:
            launch(interrupt, 1)
        except KeyboardInterrupt:
            print(launch(lambda w: w.rank, 2))
    """
    assert run(tmp_path, source)[:2] == (0, "[0, 1]\n")


TRAIN = """
    import os, sys, threading
    import torch, torch.distributed as dist
    from exemplars.runtime import world

    def linger(w):
        dist.barrier()
        os.write(1, f"worker {os.getpid()}\\n".encode())  # in one piece
        threading.Event().wait(60)

    with world() as w:
        linger(w)
"""
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.mark.torchrun
def test_no_worker_outlives_a_killed_torchrun(tmp_path: Path) -> None:
    with script(tmp_path, TRAIN, *TORCHRUN) as agent:
        said = [line_with(agent, "worker") for _ in range(2)]
        workers = [psutil.Process(int(line.split()[1])) for line in said]
        assert all(alive(p) for p in workers)
        agent.kill()
        assert wait_until(lambda: not any(alive(p) for p in workers), 2), workers


def test_sigusr1_prints_a_workers_stacks(tmp_path: Path) -> None:
    env = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}
    env |= {"MASTER_PORT": "0", "LOCAL_RANK": "0"}
    with script(tmp_path, TRAIN, env=env) as process:
        line_with(process, "worker")
        process.send_signal(signal.SIGUSR1)
        assert process.stderr
        # With a comma: as a thread writes it, and not the handler of the signal.
        assert any(", in linger" in line for line in process.stderr)


def test_an_exemplar_without_torchrun_says_how_to_start_it(tmp_path: Path) -> None:
    source = f"""
        import runpy, sys
        sys.argv[0] = "{MODULE}"
        runpy.run_module("{MODULE}", run_name="__main__", alter_sys=True)
    """
    code, out, err = run(tmp_path, source)
    start = "start it with: torchrun --standalone --nproc-per-node 4 -m "
    assert (code, out, err) == (1, "", f"{start}{MODULE}\n")
    assert (ROOT / f"{MODULE.replace('.', '/')}.py").exists()


WATCH = """
import os, socket, sys, time
from atlas.ranks import _watched
ours, theirs = socket.socketpair()
watched, life = os.pipe()
with _watched(watched):
    theirs.send(b"an order")
    print(ours.recv(8).decode(), flush=True)
    os.close(life)
    time.sleep(60)
print("it lived on")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is seen afterwards")
def test_an_import_ends_with_the_launcher_and_not_with_an_order() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCH],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("an order\n", -signal.SIGIO), done.stderr
