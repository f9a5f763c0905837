"""Launch: values come back, failures name their rank, nothing stays."""

import importlib
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from scripts import run

from atlas import launch as launcher
from atlas.launch import LaunchError, launch
from exemplars.runtime import World


def rank(w: World) -> int:
    return w.rank


def total(w: World) -> int:
    x = torch.tensor(w.rank)
    dist.all_reduce(x)
    return int(x)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8, 16])
def test_values_come_in_rank_order(p: int) -> None:
    assert launch(rank, p) == list(range(p))


@pytest.mark.parametrize("p", [1, 2, 5])
def test_ranks_share_one_group(p: int) -> None:
    assert launch(total, p) == [p * (p - 1) // 2] * p


def test_arguments_reach_every_rank() -> None:
    assert launch(lambda w, a, b: a * w.rank + b, 3, 10, 7) == [7, 17, 27]


def test_every_rank_is_a_fresh_process() -> None:
    def leave_a_mark(w: World) -> tuple[int, bool]:
        seen = "MARK" in os.environ
        os.environ["MARK"] = "1"
        return os.getpid(), seen

    runs = launch(leave_a_mark, 2) + launch(leave_a_mark, 2)
    assert len({pid for pid, _ in runs} | {os.getpid()}) == 5
    assert not any(seen for _, seen in runs)


def test_the_environment_is_torchruns_and_the_callers() -> None:
    def environment(w: World) -> list[str]:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "COLOUR")
        return [os.environ[n] for n in names]

    found = launch(environment, 2, env={"COLOUR": "green"})
    assert found == [["0", "2", "0", "2", "green"], ["1", "2", "1", "2", "green"]]


def test_what_ranks_print_is_shown_with_their_rank(
    capsys: pytest.CaptureFixture[str],
) -> None:
    launch(lambda w: print(f"hello from {w.rank}\nand again"), 2)
    assert capsys.readouterr().out.splitlines() == [
        "[rank 0] hello from 0", "[rank 0] and again",
        "[rank 1] hello from 1", "[rank 1] and again",
    ]  # fmt: skip


def test_the_guilty_ranks_traceback_comes_first_and_its_peers_after() -> None:
    def fail_on_two(w: World) -> None:
        if w.rank == 2:
            raise KeyError("the missing one")
        dist.all_reduce(torch.zeros(3))

    with pytest.raises(LaunchError) as caught:
        launch(fail_on_two, 4)
    first, *rest = str(caught.value).splitlines()
    assert first == caught.value.summary == "rank 2: KeyError: 'the missing one'"
    assert rest[:2] == ["--- rank 2", "Traceback (most recent call last):"]
    assert 'raise KeyError("the missing one")' in str(caught.value)
    # Each of the others, even one that is still waiting for the lost one to join.
    peers = sorted(line[:11] for line in rest[-3:])
    assert peers == ["then rank 0", "then rank 1", "then rank 3"]


def test_who_lets_no_thread_run_shows_its_stack_too() -> None:
    def match_for_ever(w: World) -> None:
        re.match("(a+)+b", "a" * 60)  # without letting go of the interpreter's lock

    with pytest.raises(LaunchError) as caught:
        launch(match_for_ever, 2, timeout=1.0)
    assert str(caught.value).count("in match_for_ever") == 2


def test_who_has_not_noticed_the_end_is_named_too() -> None:
    def fail_alone(w: World) -> None:
        dist.barrier()
        if w.rank == 1:
            raise KeyError("the missing one")
        threading.Event().wait(30)

    with pytest.raises(LaunchError) as caught:
        launch(fail_alone, 3)
    assert caught.value.summary == "rank 1: KeyError: 'the missing one'"
    assert str(caught.value).splitlines()[-2:] == [
        "then rank 0 was still at work",
        "then rank 2 was still at work",
    ]


def test_the_guilty_rank_comes_first_when_its_peers_are_deep_in_work() -> None:
    def fail_while_others_work(w: World) -> None:
        if w.rank == 1:
            raise ValueError("only I am to blame")
        threading.Event().wait(30)

    with pytest.raises(LaunchError) as caught:
        launch(fail_while_others_work, 3)
    assert caught.value.summary == "rank 1: ValueError: only I am to blame"


def test_several_failures_are_all_listed() -> None:
    def fail(w: World) -> None:
        dist.barrier()  # else the first to fail may keep the others from joining
        raise ValueError(f"number {w.rank}")

    with pytest.raises(LaunchError) as caught:
        launch(fail, 3)
    text = str(caught.value)
    assert caught.value.summary.endswith("ValueError: number 0")
    assert "then rank 1: ValueError: number 1" in text
    assert "then rank 2: ValueError: number 2" in text


def test_a_segmentation_fault_is_named_with_its_stack() -> None:
    def read_address_zero(w: World) -> None:
        if w.rank == 1:
            import ctypes

            print("about to fall")
            ctypes.string_at(0)
        dist.barrier()

    with pytest.raises(LaunchError) as caught:
        launch(read_address_zero, 2)
    assert caught.value.summary == "rank 1 was killed by SIGSEGV"
    assert "in read_address_zero" in str(caught.value)
    assert "about to fall" in str(caught.value)


@pytest.mark.parametrize("code", [0, 3])
def test_a_rank_that_leaves_without_a_value_is_named_with_its_code(code: int) -> None:
    def leave(w: World) -> None:
        if w.rank == 1:
            os._exit(code)
        dist.barrier()

    with pytest.raises(LaunchError) as caught:
        launch(leave, 2)
    assert caught.value.summary == f"rank 1 died with exit code {code}"


def test_the_deadline_shows_every_ranks_stack() -> None:
    def reduce_without_rank_two(w: World) -> None:
        if w.rank == 2:
            threading.Event().wait(30)
        else:
            dist.all_reduce(torch.zeros(3))

    start = time.monotonic()
    with pytest.raises(LaunchError) as caught:
        launch(reduce_without_rank_two, 3, timeout=1.0)
    assert time.monotonic() - start < 1 + 5
    text = str(caught.value)
    assert caught.value.summary.startswith("no end after 1 s: ranks [0, 1, 2]")
    stacks = text.split("--- rank ")[1:]
    assert [s[0] for s in stacks] == ["0", "1", "2"]
    assert all("in reduce_without_rank_two" in s for s in stacks)
    assert ["in all_reduce" in s for s in stacks] == [True, True, False]


def test_the_deadline_says_which_ranks_had_ended() -> None:
    def linger(w: World) -> None:
        dist.barrier()
        if w.rank == 0:
            dist.destroy_process_group()
            dist.init_process_group("fake", rank=0, world_size=2)
        else:
            threading.Event().wait(30)

    with pytest.raises(LaunchError, match=r"ranks \[1\] are still at work") as caught:
        launch(linger, 2, timeout=1.0)
    assert "--- rank 0 had ended" in str(caught.value)


def test_a_rank_stopped_while_it_answers_does_not_hold_up_the_deadline() -> None:
    def stop_in_the_middle(w: World) -> bytes:
        from atlas import ranks

        def half(sock, message, fds=None):  # type: ignore[no-untyped-def]
            sock.sendall(b"\0\0\0\0\0\0\1\0" + b"half of 256 bytes")
            os.kill(os.getpid(), signal.SIGSTOP)

        ranks.send = half
        return b""

    start = time.monotonic()
    with pytest.raises(LaunchError, match="rank 0 is stopped"):
        launch(stop_in_the_middle, 1, timeout=1.0)
    assert time.monotonic() - start < 1 + 5


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        (0, "0 ranks: at least 1 is needed"),
        (-3, "-3 ranks: at least 1 is needed"),
        (65, "65 ranks: at most 64 run on one machine; "
             "a dry run (--dry 65) counts any number"),
    ],
)  # fmt: skip
def test_an_impossible_number_of_ranks_is_refused_in_one_line(
    ranks: int, says: str
) -> None:
    with pytest.raises(LaunchError) as caught:
        launch(rank, ranks)
    assert str(caught.value) == says
    assert caught.value.refused


def test_what_a_rank_refuses_is_one_line() -> None:
    with pytest.raises(LaunchError) as caught:
        launch(lambda w: w.require(w.size == 5, f"{w.size} ranks: 5 are needed"), 2)
    assert str(caught.value) == "2 ranks: 5 are needed"
    assert caught.value.refused


@pytest.mark.parametrize(
    ("p", "places"), [(1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (1024, [0, 1, 1023])]
)
def test_a_dry_run_is_ranks_0_1_and_the_last(p: int, places: list[int]) -> None:
    found = launch(lambda w: (w.rank, w.size, w.dry, dist.get_backend()), p, dry=True)
    assert found == [(r, p, True, "fake") for r in places]


def test_two_threads_launch_at_once() -> None:
    found: dict[int, list[int]] = {}

    def run(p: int) -> None:
        found[p] = launch(total, p)

    threads = [threading.Thread(target=run, args=(p,)) for p in (2, 3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert found == {2: [1, 1], 3: [3, 3, 3]}


def test_a_dead_server_is_reported_and_the_next_launch_works() -> None:
    def kill_the_server(w: World) -> None:
        os.kill(os.getppid(), signal.SIGKILL)
        threading.Event().wait(30)

    with pytest.raises(LaunchError, match="the rank server ended"):
        launch(kill_the_server, 2)
    assert launch(rank, 2) == [0, 1]


def test_a_server_that_died_between_launches_is_replaced() -> None:
    launch(rank, 1)
    server = launcher._servers[os.getpid(), False]
    server.process.kill()
    server.process.wait(5)
    assert launch(rank, 2) == [0, 1]


def test_what_a_rank_had_to_import_the_next_ones_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def new(w: World) -> bool:
        """Whether a rank that needs it has to import it."""
        there = "sklearn.datasets" in sys.modules
        importlib.import_module("sklearn.datasets")
        return not there

    monkeypatch.setattr(launcher, "_servers", {})  # with a server that has done nothing
    try:
        assert launch(rank, 1) == [0]
        assert launch(new, 2) == [True, True]
        assert launch(new, 2) == [False, False]
    finally:
        launcher._close_servers()


def test_what_ranks_will_need_is_imported_once() -> None:
    def has(w: World) -> bool:
        return "sklearn.datasets" in sys.modules

    assert launch(has, 2, needs=["sklearn.datasets", "there.is.no.such"]) == [True] * 2


def test_a_large_value_comes_back_whole() -> None:
    found = launch(lambda w: bytes([w.rank]) * 5_000_000, 2)
    assert [(len(b), set(b)) for b in found] == [(5_000_000, {0}), (5_000_000, {1})]


def test_a_value_that_cannot_travel_names_its_rank() -> None:
    with pytest.raises(LaunchError, match="rank 0: TypeError"):
        launch(lambda w: sys._getframe(), 1)


def test_functions_of_a_script_and_beside_it_reach_ranks_without_torch_here(
    tmp_path: Path,
) -> None:
    (tmp_path / "beside.py").write_text("def triple(w):\n    return 3 * w.rank\n")
    source = """
        import sys
        from beside import triple
        from atlas.launch import launch

        offset = 10
        print(launch(lambda w: w.rank + offset, 2))
        print(launch(triple, 2))
        print([m for m in ("torch", "numpy", "sklearn") if m in sys.modules])
    """
    assert run(tmp_path, source) == (0, "[10, 11]\n[0, 3]\n[]\n", "")


def test_ranks_are_spawned_where_forking_is_forbidden(tmp_path: Path) -> None:
    source = """
        import os, psutil, time
        from atlas.launch import LaunchError, launch

        def total(w):
            import torch, torch.distributed as dist
            x = torch.tensor(w.rank + 1)
            dist.all_reduce(x)
            return int(x), psutil.Process().cmdline()[1:4]

        def fail(w):
            if w.rank == 0:
                os._exit(3)
            time.sleep(60)

        print(launch(total, 2))
        try:
            launch(fail, 2)
        except LaunchError as error:
            print(error.summary)
    """
    code, out, err = run(tmp_path, source, ATLAS_SPAWN="1", CUDA_VISIBLE_DEVICES="0")
    spawned = ["-m", "atlas.ranks", "rank"]
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        str([(3, spawned), (3, spawned)]),
        "rank 0 died with exit code 3",
    ]
