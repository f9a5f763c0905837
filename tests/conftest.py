"""What every test leaves behind: nothing, and a test that does not is a failure."""

import os
import signal
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import settings
from leftovers import children, folders, strays, wait_until

# Before torch is imported: its threads would fight with the ranks for the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples on every run, however busy the machine.
settings.register_profile("atlas", deadline=None, derandomize=True)
settings.load_profile("atlas")

# A shell ignores Ctrl-C for what it starts in the background, and children inherit
# that: the programs that the tests interrupt have to be able to hear it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: How long the system may take to take away a process that was killed.
SWEEP = 2.0


@pytest.fixture(scope="session", autouse=True)
def _own_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Our folders apart from those of other runs on this machine."""
    before = os.environ.get("TMPDIR")
    folder = str(tmp_path_factory.mktemp("temporary"))
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    yield
    tempfile.tempdir = None
    if before is None:
        del os.environ["TMPDIR"]
    else:
        os.environ["TMPDIR"] = before


@pytest.fixture(autouse=True)
def _nothing_is_left(_own_temporary_folder: None) -> Iterator[None]:
    """No process but the rank servers, and no folder, outlives its test."""
    before = set(children())
    yield
    wait_until(lambda: not strays(before) and not folders(), SWEEP)
    found = strays(before)
    for process in found:
        process.kill()
    assert not found, f"left running: {found}"
    assert not folders(), f"left behind: {folders()}"
