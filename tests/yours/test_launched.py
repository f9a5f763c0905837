"""The meter under a launcher that is not ours: the same figures, errors in a line."""

import json
from pathlib import Path

import pytest

from atlas.commands.common import Wrong
from atlas.commands.launched import main
from atlas.launch import torchrun
from atlas.yours import Script, run
from atlas.yours.report import expectation, report
from atlas.yours.steps import steps

TRAIN = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

assert sys.argv[1:] == ["--epochs", "1"]
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(10, 5))
rate = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    rate.zero_grad()
    model(torch.ones(2, 10)).sum().backward()
    rate.step()
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def test_torchrun_and_our_own_launcher_see_the_same(script: Path) -> None:
    ran = run(Script(script, ("--epochs", "1")), 2, watch=[steps], timeout=60)
    ours = script.with_name("ours.json")
    ours.write_text(json.dumps(expectation(report(ran))))
    line = ["-m", "atlas.meter", "--expect", str(ours), str(script), "--epochs", "1"]
    done = torchrun(line, ranks=2)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "train.py on 2 ranks (gloo)" in done.stdout
    assert "3 optimizer steps" in done.stdout
    assert f"as {ours} says" in " ".join(done.stdout.split())


def test_without_a_launcher_it_says_what_to_do(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(Wrong, match="atlas meter SCRIPT"):
        main([str(script)])


def test_a_script_that_does_not_exist_is_one_line(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(Wrong, match=r"cannot read .*nope\.py"):
        main([str(script.with_name("nope.py"))])
