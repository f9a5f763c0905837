"""The fixture that a reader's own tests use."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(int(sys.argv[1])))
"""
TESTS = """
def test_first(meter):
    run = meter("train.py", "4", ranks=2)
    assert (run.calls("all_reduce"), run.payload("all_reduce")) == (1, 16)
    run.expect("bytes.json")

def test_second(meter):
    meter("train.py", "5", ranks=2).expect("bytes.json")
"""


def test_the_plugin_meters_a_script_and_names_the_line_that_changed(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "test_bytes.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command,
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "all_reduce at train.py:5: 1 calls of 16 bytes before" in done.stdout
