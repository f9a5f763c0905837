"""Programs that tests run as processes of their own, and how to follow them."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def script(
    folder: Path, source: str, *command: str, env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a program; whatever the test does, it has ended afterwards."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(source))
    with subprocess.Popen(
        [sys.executable, *command, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            **(env or {}),
        },
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def run(folder: Path, source: str, *command: str, **env: str) -> tuple[int, str, str]:
    """Run a program to its end: exit code, output, errors."""
    with script(folder, source, *command, env=env) as process:
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err


def line_with(process: subprocess.Popen[str], word: str, seconds: float = 30) -> str:
    """The next line of its output that holds this word; a deadline ends it."""
    assert process.stdout
    late = threading.Timer(seconds, process.kill)
    late.start()
    try:
        for line in process.stdout:
            if word in line:
                return line
    finally:
        late.cancel()
    raise AssertionError(f"ended, or {seconds:g} s passed, before it said {word!r}")
