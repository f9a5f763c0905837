"""Any launcher will do: torchrun, Slurm's srun, or a group that is there already."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import app
from scripts import run
from typer.testing import CliRunner

from atlas import launchers, taxonomy
from atlas.launch import launch
from atlas.launchers import LauncherError, found, hosts, slurm, tasks
from exemplars.runtime import World

RING = "exemplars.communication_pattern.collective.ring_all_reduce"
STEP = {
    "SLURM_JOB_ID": "42",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_TASKS_PER_NODE": "2(x2)",
}


# --- Slurm's words


def test_a_task_of_a_step_is_a_rank() -> None:
    assert slurm(STEP) == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "n1",
        "MASTER_PORT": "21302",
    }


def test_a_step_is_smaller_than_its_job() -> None:
    step = {"SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NODELIST": "n2,n9"}
    made = slurm({**STEP, **step, "SLURM_STEP_TASKS_PER_NODE": "1,2"})
    assert (made["WORLD_SIZE"], made["MASTER_ADDR"]) == ("3", "n2")
    assert made["LOCAL_WORLD_SIZE"] == "2"


def test_two_steps_and_two_jobs_meet_at_different_ports() -> None:
    ports = {
        slurm({**STEP, "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)})[
            "MASTER_PORT"
        ]
        for job in range(100)
        for step in range(20)
    }
    assert len(ports) == 100 * 20
    assert all(int(p) in launchers.PORTS for p in ports)


def test_a_meeting_place_that_was_given_is_kept() -> None:
    given = {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "1234"}
    assert given.items() <= slurm({**STEP, **given}).items()


def test_torchrun_goes_before_slurm_and_a_batch_script_is_no_rank() -> None:
    assert found({**STEP, "RANK": "0"}) == {}
    assert found({}) is None
    assert found({k: v for k, v in STEP.items() if k != "SLURM_STEP_ID"}) is None


@pytest.mark.parametrize(
    ("short", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("gpu-[08-10,15],login", ["gpu-08", "gpu-09", "gpu-10", "gpu-15", "login"]),
        ("r[1-2]n[1-2].x", ["r1n1.x", "r1n2.x", "r2n1.x", "r2n2.x"]),
    ],
)
def test_slurms_shorthand_of_hosts_is_read(short: str, names: list[str]) -> None:
    assert hosts(short) == names


def test_slurms_shorthand_of_tasks_is_read() -> None:
    assert tasks("2(x3),1,4(x2)") == [2, 2, 2, 1, 4, 4]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"SLURM_TASKS_PER_NODE": "two"}, '"two" are no numbers of tasks'),
        ({"SLURM_NODEID": "7"}, "make no sense"),
        ({"SLURM_LOCALID": None}, "Slurm has set no SLURM_LOCALID"),
    ],
)
def test_what_makes_no_sense_is_one_line(bad: dict[str, Any], said: str) -> None:
    step = {k: v for k, v in {**STEP, **bad}.items() if v is not None}
    with pytest.raises(LauncherError, match=said) as caught:
        slurm(step)
    assert "\n" not in str(caught.value)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def outside(**more: str) -> dict[str, str]:
    """An environment in which nobody has been told to be a rank."""
    known = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "SLURM_", "TORCHELASTIC")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(known)}
    return {**kept, "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": "", **more}


def srun(*command: str, ranks: int, **more: str) -> list[tuple[int, str, str]]:
    """What `srun -n RANKS COMMAND` starts on one node; exit code, output, errors."""
    port, started = free_port(), []
    for rank in range(ranks):
        step = {**STEP, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
        step |= {"SLURM_NTASKS": str(ranks), "SLURM_TASKS_PER_NODE": str(ranks)}
        step |= {"SLURM_JOB_NODELIST": "localhost", "SLURM_NODEID": "0"}
        started.append(
            subprocess.Popen(
                [sys.executable, *command],
                env=outside(**step, MASTER_PORT=port, **more),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    said = [process.communicate(timeout=60) for process in started]
    return [(p.returncode, *s) for p, s in zip(started, said, strict=True)]


def atlas(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "300"})


@pytest.mark.torchrun
def test_plain_srun_runs_an_exemplar_and_records_it(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    said = srun("-m", RING, ranks=2, ATLAS_RECORD=str(file))
    assert [code for code, _, _ in said] == [0, 0], said
    assert "2 ranks, cpu, gloo" in said[0][1]
    judged = atlas("judge", str(file))
    assert judged.exit_code == 0, judged.output
    assert "all 4 claims hold on 2 ranks (gloo)" in judged.output
    host = socket.gethostname()
    assert f"ranks on {host} (2)" in judged.output
    plain = json.loads(atlas("judge", str(file), "--json").output)
    assert [p["host"] for p in plain["places"]] == [host] * 2
    assert plain["given"]["elements"] == 100_003


# --- a group that is there already


THERE = """
import torch.distributed as dist
dist.init_process_group(init_method="file://{store}", rank={rank}, world_size=2)
from exemplars.runtime import run, world
from exemplars.communication_pattern.collective import ring_all_reduce as ring
{before}
try:
    with world() as w:
        run(w, ring.main, elements=1000)
    dist.barrier()
    print("the group is", "there" if dist.is_initialized() else "gone")
finally:
    # Whose group it is ends it. With a group of gloo left standing, an exception that
    # ends the interpreter ends 1 in 3 times in an abort of torch 2.13's own.
    dist.destroy_process_group()
"""


def attend(folder: Path, before: str = "", **more: str) -> list[tuple[int, str, str]]:
    started = []
    for rank in range(2):
        text = THERE.format(store=folder / "store", rank=rank, before=before)
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", text],
                env=outside(**more),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    said = [process.communicate(timeout=60) for process in started]
    return [(p.returncode, *s) for p, s in zip(started, said, strict=True)]


def test_a_group_that_is_there_is_used_and_left_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    said = attend(tmp_path, ATLAS_RECORD=str(file))
    for code, out, err in said:
        assert code == 0, err
        assert out.endswith("the group is there\n")
    judged = atlas("judge", str(file), "--json")
    assert judged.exit_code == 0
    assert json.loads(judged.output)["given"]["elements"] == 1000


def test_there_a_failed_claim_is_raised_and_not_an_exit(tmp_path: Path) -> None:
    wrong = "ring.reference = lambda w, elements: w.randn(elements, seed=99)"
    for code, out, err in attend(tmp_path, before=wrong):
        assert code == 1
        assert "sum FAILS" in out
        assert "ClaimsFailError" in err


def test_nobodys_rank_is_told_how_to_start(tmp_path: Path) -> None:
    source = """
        from exemplars.runtime import world
        with world():
            pass
    """
    code, out, err = run(tmp_path, source)
    assert (code, out) == (1, "")
    assert err.startswith("start it with: torchrun --standalone")


# --- what is judged


def kept(w: World, path: str) -> None:
    from exemplars import runtime
    from exemplars.communication_pattern.collective import ring_all_reduce as ring

    os.environ["ATLAS_RECORD"] = path
    runtime.run(w, ring.main, elements=100)
    runtime._keep(w)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kept") / "run.json"
    launch(kept, 3, str(path))
    return path


def test_a_failed_claim_is_exit_code_1(file: Path, tmp_path: Path) -> None:
    made = json.loads(file.read_text())
    made["ranks"][1]["measured"]["bytes_sent"] += 1
    other = tmp_path / "other.json"
    other.write_text(json.dumps(made))
    judged = atlas("judge", str(other))
    assert judged.exit_code == 1
    assert "bytes_sent" in judged.output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not JSON"),
        ("[]", "was not written by"),
        ('{"format": 1, "module": "train"}', "which is no exemplar"),
    ],
)
def test_what_is_no_run_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    judged = atlas("judge", str(path))
    assert judged.exit_code == 2
    assert said in judged.stderr
    assert judged.stderr.count("\n") == 1


def test_a_run_on_gloo_is_no_record_of_nccl(file: Path) -> None:
    judged = atlas("judge", "--keep", str(file))
    assert judged.exit_code == 2
    assert "a run on gloo is not kept" in judged.stderr


def test_a_run_on_nccl_is_kept_beside_those_on_other_numbers_of_ranks(
    file: Path, tmp_path: Path
) -> None:
    from atlas import record

    made = {**json.loads(file.read_text()), "backend": "nccl"}
    technique = taxonomy.load().techniques["ring-all-reduce"]
    for part in ("exemplars", "taxonomy"):
        (tmp_path / part).symlink_to(taxonomy.find_root() / part)
    for p in (3, 2, 3):
        ranks = [{**r} for r in made["ranks"]]
        record.add(tmp_path, technique, {"p": p, "ranks": ranks}, made)
    found = record.read(tmp_path, "nccl", "ring-all-reduce")
    assert found
    assert [r["p"] for r in found["runs"]] == [2, 3]
    assert "events" not in found["runs"][0]["ranks"][0]


# --- a script of the reader's


TRAIN = """
import torch, torch.distributed as dist
dist.init_process_group()
x = torch.ones(8)
dist.all_reduce(x)
print(x[0].item())
dist.destroy_process_group()
"""


@pytest.mark.torchrun
def test_plain_srun_meters_a_script_that_knows_nothing_of_slurm(tmp_path: Path) -> None:
    script, report = tmp_path / "train.py", tmp_path / "report.json"
    script.write_text(TRAIN)
    said = srun("-m", "atlas.meter", "--json", str(report), str(script), ranks=2)
    assert [code for code, _, _ in said] == [0, 0], said
    assert "train.py on 2 ranks (gloo)" in said[0][1]
    assert json.loads(report.read_text())["rows"][0]["calls"] == [1, 1]


FUNCTION = """
import torch, torch.distributed as dist
from atlas.yours import metered
dist.init_process_group(init_method="file://{store}", rank={rank}, world_size=2)
with metered("{folder}", script="train.py"):
    dist.all_reduce(torch.ones(8))
dist.all_reduce(torch.ones(8))  # after it: not counted
dist.barrier()
"""


def test_a_function_is_metered_where_there_is_no_script(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    started = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                FUNCTION.format(store=tmp_path / "store", rank=rank, folder=folder),
            ],
            env=outside(),
        )
        for rank in range(2)
    ]
    assert [process.wait(timeout=60) for process in started] == [0, 0]
    report = atlas("meter", "--from", str(folder))
    assert report.exit_code == 0, report.output
    assert "train.py on 2 ranks (gloo)" in report.output
    assert f"{socket.gethostname()} (2)" in report.stderr
    total = atlas("meter", "--from", str(folder), "--json", str(tmp_path / "r.json"))
    assert total.exit_code == 0
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert [(row["op"], row["calls"]) for row in rows] == [("all_reduce", [1, 1])]


def test_a_run_that_lacks_a_rank_says_which(tmp_path: Path) -> None:
    end = {"rank": 0, "ranks": 3, "script": "t.py", "arguments": [], "seconds": 1}
    end |= {"host": "h", "end": {"kind": "returned"}}
    (tmp_path / "end.0").write_text(json.dumps(end))
    report = atlas("meter", "--from", str(tmp_path))
    assert report.exit_code == 2
    assert "ranks [1, 2] of 3 have not ended" in report.stderr
