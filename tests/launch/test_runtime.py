"""The runtime: checks that can fail, one-line refusals, a run as plain data."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from scripts import run
from torch import Tensor

from atlas.launch import launch
from atlas.timeline import rounds
from exemplars import runtime
from exemplars.runtime import Refused, World, meter, report, span

EPS = torch.finfo(torch.double).eps


@pytest.fixture
def w() -> World:
    return World(0, 4, torch.device("cpu"))


def held(w: World, value: Any, reference: Any, slack: float) -> bool:
    w.checks.clear()
    w.check("claim", value, lambda: reference, slack=slack)
    return w.checks["claim"].ok


def test_slack_is_a_number_of_roundings_for_each_rank(w: World) -> None:
    x = torch.tensor([3.0, 1000.0], dtype=torch.double)
    off = torch.tensor([3 * EPS * 1000, 0.0], dtype=torch.double)
    assert held(w, x + off, x, slack=1)
    assert not held(w, x + off, x, slack=0.5)
    found = w.checks["claim"]
    assert found.limit == 2 * EPS
    assert found.error == pytest.approx(3 * EPS, rel=0.2)


def test_slack_0_means_the_same_bits(w: World) -> None:
    x = torch.tensor([1.0, 0.0], dtype=torch.double)
    assert held(w, x.clone(), x, slack=0)
    assert not held(w, x * (1 + EPS), x, slack=0)
    assert not held(w, x * -1 + torch.tensor([2.0, -0.0]), x, slack=0)


def test_a_sign_of_zero_is_no_rounding_error(w: World) -> None:
    zero = torch.zeros(1)
    assert held(w, -zero, zero, slack=1)


def test_whole_numbers_are_compared_exactly(w: World) -> None:
    x = torch.arange(5)
    assert held(w, x.clone(), x, slack=0)
    assert not held(w, x + 1, x, slack=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_a_number_fails_whatever_the_slack(w: World, bad: float) -> None:
    x = torch.tensor([1.0, bad])
    one = torch.ones(2)
    assert not held(w, x, one, slack=1e30)
    assert not held(w, one, x, slack=1e30)
    if math.isnan(bad):
        assert not held(w, x, x.clone(), slack=0)


def test_another_shape_fails_and_another_number_of_tensors_raises(w: World) -> None:
    assert not held(w, torch.ones(3), torch.ones(3, 1), slack=10)
    with pytest.raises(ValueError, match="zip"):
        held(w, [torch.ones(3)], [torch.ones(3)] * 2, slack=10)


def test_a_failed_check_is_not_mended_by_a_later_one(w: World) -> None:
    one = torch.ones(1)
    for value in (one, one + 1, one):
        w.check("claim", value, lambda: one, slack=0)
    assert not w.checks["claim"].ok


def test_a_dry_run_does_not_even_compute_the_reference() -> None:
    dry = World(0, 4, torch.device("cpu"), dry=True)

    def reference() -> Tensor:
        raise AssertionError("computed")

    dry.check("claim", torch.ones(1), reference, slack=0)
    dry.check_same("same", torch.ones(1))
    assert dry.checks == {}


@pytest.mark.parametrize("other", [None, 0, 2])
def test_check_same_finds_one_rank_with_other_bits(other: int | None) -> None:
    def differ(w: World) -> bool:
        x = torch.zeros(5)
        if w.rank == other:
            x[3] = -0.0
        w.check_same("same", [torch.ones(2), x])
        return w.checks["same"].ok

    assert launch(differ, 3) == [other is None] * 3


def test_require_refuses_in_the_words_given(w: World) -> None:
    w.require(True, "never said")
    with pytest.raises(Refused, match=r"^4 ranks: 3 are needed$"):
        w.require(False, "4 ranks: 3 are needed")


def test_random_numbers_are_a_ranks_own_and_known_to_all(w: World) -> None:
    other = World(2, 4, torch.device("cpu"))
    assert torch.equal(other.randn(3, 4), w.randn(3, 4, seed=2))
    assert not torch.equal(w.randn(3, 4), other.randn(3, 4))
    assert w.randn(2, dtype=torch.float32).dtype == torch.float32


def exchange_twice(w: World) -> dict[str, Any]:
    peer = 1 - w.rank
    for step in range(2):
        with meter(), span("swap", label=step):
            pair = [
                dist.P2POp(dist.isend, torch.ones(3), peer),
                dist.P2POp(dist.irecv, torch.empty(3), peer),
            ]
            for work in dist.batch_isend_irecv(pair):
                work.wait()
    x = w.randn(4)
    w.check("sum", x, lambda: x, slack=0)
    with w.memory(parameters=lambda: [x]):
        x.clone()
    report(w, given={"n": 3}, swaps=2)
    return w.outcome()


def test_the_outcome_is_plain_data_and_joins_its_meters() -> None:
    found = launch(exchange_twice, 2)
    assert json.loads(json.dumps(found)) == found
    for rank, one in enumerate(found):
        assert (one["rank"], one["given"], one["measured"]) == (
            rank, {"n": 3}, {"swaps": 2},
        )  # fmt: skip
        assert one["checks"] == {"sum": {"ok": True, "error": 0.0, "limit": 0.0}}
        assert one["calls"]["send"] == {"count": 2, "payload": 24, "wire": 24}
        assert one["memory"]["peak"]["parameters"] == 32
        times = [e["at"] for e in one["events"]]
        assert times == sorted(times)
    joined = rounds(one["events"] for one in found)
    assert joined.makespan == 2
    assert [(s.label, s.start) for s in joined.spans if s.rank == 0] == [
        ("0", 0.0), ("1", 1.0),
    ]  # fmt: skip


ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
ALONE |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}


def test_a_refusal_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    source = """
        from exemplars.runtime import world
        with world() as w:
            w.require(w.size == 3, f"{w.size} ranks: 3 are needed")
    """
    where = f"1 rank, cpu, gloo, torch {torch.__version__}\n"
    assert run(tmp_path, source, **ALONE) == (2, where, "1 ranks: 3 are needed\n")


def test_a_rank_without_a_device_is_refused_by_itself_in_one_line(
    tmp_path: Path,
) -> None:
    source = """
        import torch
        from exemplars.runtime import world
        torch.accelerator.current_accelerator = lambda check=False: torch.device("cuda")
        torch.accelerator.device_count = lambda: 2
        with world():
            pass
    """
    env = {**ALONE, "RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "2"}
    code, out, err = run(tmp_path, source, **env)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "rank 2 " in err
    assert "start at most 2 ranks here" in err


def test_a_rank_takes_the_device_of_its_local_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen: list[int] = []
    device = torch.device("cuda")
    accelerator = torch.accelerator
    monkeypatch.setattr(accelerator, "current_accelerator", lambda check: device)
    monkeypatch.setattr(accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(accelerator, "set_device_index", chosen.append)
    assert runtime._device(1, dry=False) == torch.device("cuda", 1)
    assert chosen == [1]
    assert runtime._device(5, dry=True) == torch.device("cpu")
    with pytest.raises(Refused, match="start at most 2 ranks"):
        runtime._device(2, dry=False)
    #: Slurm may show each task one GPU, its own: device 0 for every local rank.
    monkeypatch.setattr(accelerator, "device_count", lambda: 1)
    with pytest.raises(Refused, match="start at most 1 ranks"):
        runtime._device(3, dry=False)
    monkeypatch.setenv("SLURM_LOCALID", "3")
    assert runtime._device(3, dry=False) == torch.device("cuda", 0)


def test_ranks_on_many_nodes_have_longer_to_meet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ATLAS_TIMEOUT", raising=False)
    assert runtime._timeout(size=8, here=8) == 60
    assert runtime._timeout(size=16, here=8) == 600
    monkeypatch.setenv("ATLAS_TIMEOUT", "7.5")
    assert runtime._timeout(size=16, here=8) == 7.5
    for bad in ("soon", "-1", "0", "nan", "inf"):
        monkeypatch.setenv("ATLAS_TIMEOUT", bad)
        with pytest.raises(SystemExit, match=f"ATLAS_TIMEOUT={bad}: give a number"):
            runtime._timeout(size=1, here=1)


@pytest.mark.torchrun
def test_a_failed_check_stops_no_rank_and_ends_in_exit_code_1(tmp_path: Path) -> None:
    source = """
        import torch
        import torch.distributed as dist
        from exemplars.runtime import report, world
        with world() as w:
            right = torch.ones(1)
            w.check("sum", right + w.rank, lambda: right, slack=1)
            dist.barrier()  # nobody is missing
            report(w, given={}, answer=42)
    """
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    code, out, _ = run(tmp_path, source, *torchrun)
    assert code == 1
    assert sorted(out.splitlines()) == [
        f"2 ranks, cpu, gloo, torch {torch.__version__}",
        "rank 0 of 2: answer = 42",
        "rank 0 of 2: sum holds (off by 0, may be 2.4e-07)",
        "rank 1 of 2: sum FAILS (off by 1, may be 2.4e-07)",
    ]
