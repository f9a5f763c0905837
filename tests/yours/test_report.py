"""What a reader's script sends, line by line, against what it must."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import app
from typer.testing import CliRunner

from atlas.yours import Script, run
from atlas.yours.report import changes, expectation, length, report, union
from atlas.yours.steps import steps

TRAIN = """
import threading
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(10, 5))
rate = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(3):
    rate.zero_grad()
    model(torch.ones(2, 10)).sum().backward()  # line 12
    rate.step()
thread = threading.Thread(target=lambda: dist.all_reduce(torch.ones(7)))  # 14
thread.start()
thread.join()
parts = [torch.empty(3) for _ in range(2)] if dist.get_rank() == 0 else None
dist.gather(torch.ones(3), parts)  # line 18
print("done")
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("yours") / "train.py"
    path.write_text(TRAIN)
    return path


@pytest.fixture(scope="module")
def made(script: Path) -> dict[str, Any]:
    ran = run(Script(script), 2, watch=[steps], timeout=60)
    assert ran.well, [r.end for r in ran.ranks]
    return report(ran)


def row(made: dict[str, Any], op: str, line: int) -> dict[str, Any]:
    found = [
        r for r in made["rows"]
        if r["op"] == op and r["site"].endswith(f"train.py:{line}")
    ]  # fmt: skip
    assert len(found) == 1, made["rows"]
    return found[0]


GRADIENTS = 4 * (10 * 5 + 5)


def test_gradients_are_charged_to_ddp_and_to_the_line_of_backward(
    made: dict[str, Any],
) -> None:
    found = row(made, "all_reduce", 12)
    assert found["by"] == "DistributedDataParallel"
    assert found["calls"] == [3, 3]
    assert found["per_step"] == [1, 1]
    assert found["payload"] == [3 * GRADIENTS] * 2
    assert found["wire"] == [3 * GRADIENTS] * 2  # 2(p-1)/p of it, and p is 2


def test_a_collective_of_another_thread_is_counted(made: dict[str, Any]) -> None:
    found = row(made, "all_reduce", 14)
    assert (found["calls"], found["payload"], found["by"]) == ([1, 1], [28, 28], "")


def test_the_root_of_a_gather_sends_nothing(made: dict[str, Any]) -> None:
    assert row(made, "gather", 18)["wire"] == [0, 12]


def test_steps_and_what_is_held_are_known(made: dict[str, Any]) -> None:
    assert made["steps"] == 3
    assert made["memory"] == {
        "parameters": [GRADIENTS] * 2,
        "gradients": [GRADIENTS] * 2,
        "optimizer": [GRADIENTS] * 2,
    }
    assert all(0 <= share <= 1 for share in made["overlap"])


def test_a_change_names_the_line_that_changed(made: dict[str, Any]) -> None:
    assert changes(expectation(made), made) == []
    other = json.loads(json.dumps(made))
    row(other, "gather", 18)["payload"] = [12, 24]
    [said] = changes(expectation(made), other)
    assert said.startswith("gather at ")
    assert "train.py:18" in said
    assert said.endswith("1 calls of 12 bytes before, 1 calls of 24 bytes now")


def test_time_that_is_counted_twice_is_counted_once() -> None:
    assert length(union([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])) == 4.0


# The command


def test_the_command_shows_writes_and_holds_to_what_was_expected(
    script: Path, tmp_path: Path
) -> None:
    kept, full = tmp_path / "bytes.json", tmp_path / "run.json"
    page = tmp_path / "run.html"
    first = CliRunner().invoke(
        app,
        ["meter", "--ranks", "2", "--write-expected", str(kept), "--json", str(full),
         "--html", str(page), str(script)],
    )  # fmt: skip
    assert first.exit_code == 0, first.output
    assert "DistributedDataParallel" in first.stdout
    assert "3 optimizer steps" in first.stdout
    assert "[rank 0] done" in first.stderr
    assert "consistency: synchronous" in first.stdout
    text = page.read_text()
    assert 'figure class="replay"' in text
    assert "class Replay" in text  # its script is in it, and nothing is fetched
    assert not re.search(r'(src|href)="(?!#)', text)
    wrong = json.loads(kept.read_text())
    wrong["rows"][0]["calls"] = [9, 9]
    kept.write_text(json.dumps(wrong))
    again = ["meter", "--ranks", "2", "--expect", str(kept), "-q", str(script)]
    second = CliRunner().invoke(app, again)
    assert second.exit_code == 1
    assert "9 calls of" in second.stderr
    same = CliRunner().invoke(app, ["meter", "--compare", str(full), str(full)])
    assert "the same calls and bytes" in same.stdout


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        ("raise ValueError('mine')", 1, "ValueError: mine"),
        ("import nothing_there", 1, "No module named 'nothing_there'"),
        ("print('no group')", 1, "communicated nothing"),
        ("import torch; torch.ones(1).cuda()", 1, "needs a GPU"),
        ("import torch.multiprocessing as m; m.spawn(print)", 2, "its own processes"),
        ("import sys; sys.exit(4)", 1, "exit code 4"),
        ("if", 2, "is not Python"),
    ],
)
def test_a_script_that_cannot_be_metered_is_told_why(
    tmp_path: Path, source: str, code: int, said: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(source)
    found = CliRunner().invoke(app, ["meter", "--ranks", "1", str(path)])
    assert (found.exit_code, said in found.stderr) == (code, True), found.output
    assert "atlas/yours" not in found.stderr


def test_a_script_that_is_not_there_is_one_line() -> None:
    found = CliRunner().invoke(app, ["meter", "nowhere.py"])
    assert found.exit_code == 2
    assert found.stderr.splitlines() == [
        "cannot read nowhere.py: No such file or directory"
    ]


def test_a_run_without_steps_says_so(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\ndist.all_reduce(torch.ones(1))\n"
    )
    found = CliRunner().invoke(app, ["meter", "--ranks", "2", str(path)])
    assert found.exit_code == 0
    assert "no optimizer step was seen" in found.stdout
