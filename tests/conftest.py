"""What every test leaves behind: nothing, and a test that does not is a failure."""

import functools
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer.testing
from hypothesis import settings
from leftovers import children, folders, strays, wait_until
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from atlas.views.context import Context

ROOT = Path(__file__).resolve().parent.parent

# Before torch is imported: its threads would fight with the ranks for the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples on every run, however busy the machine.
settings.register_profile("atlas", deadline=None, derandomize=True)
settings.load_profile("atlas")

# A shell ignores Ctrl-C for what it starts in the background, and children inherit
# that: the programs that the tests interrupt have to be able to hear it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: What a session adds to a file with --note: the tests that start processes.
NOTED = pytest.StashKey[set[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--note", help="a file for the names of tests that start processes"
    )
    parser.addoption("--noted", help="run only the tests that this file names")


def pytest_configure(config: pytest.Config) -> None:
    """With --note, hear of every process and every launch, whoever starts it."""
    if not config.option.note:
        return
    noted = config.stash[NOTED] = set()

    def heed(event: str, arguments: tuple[Any, ...]) -> None:
        started = event in ("subprocess.Popen", "os.fork", "os.posix_spawn")
        started |= event == "tempfile.mkdtemp" and "/atlas-" in str(arguments[0])
        if started and (running := os.environ.get("PYTEST_CURRENT_TEST")):
            noted.add(running.rpartition(" (")[0])

    sys.addaudithook(heed)


def pytest_unconfigure(config: pytest.Config) -> None:
    if noted := config.stash.get(NOTED, None):
        with Path(config.option.note).open("a") as file:  # every worker has seen some
            file.write("".join(f"{name}\n" for name in sorted(noted)))


#: Files whose tests share a fixture that takes seconds, and which one.
SHARED = {
    "tests/planner/test_calculator.py": "calculator",
    "tests/emulate/test_emulate.py": "emulated device",
    "tests/commands/test_export.py": "site",
    "tests/planner/test_oracle_core.py": "formulas",
    "tests/site/test_site.py": "site",
    "tests/site/test_site_views.py": "site",
    "tests/site/test_systems_site.py": "site",
    "tests/taxonomy/test_terms.py": "site",
    "tests/meter/test_timeline.py": "site",
}


class Together(LoadScopeScheduling):
    """Each worker takes the next test, but what shares a fixture goes to one."""

    def _split_scope(self, nodeid: str) -> str:
        return SHARED.get(nodeid.partition("::")[0], nodeid)


def pytest_xdist_make_scheduler(
    config: pytest.Config, log: Any
) -> LoadScopeScheduling | None:
    """`--dist loadgroup` is ours: by file, not by a mark on every test."""
    return Together(config, log) if config.option.dist == "loadgroup" else None


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """With --noted, the tests of the file, whichever repetition of them it is."""
    if not config.option.noted:
        return
    names = set(Path(config.option.noted).read_text().splitlines())
    repetition = re.compile(rf"(\[|-)\d+-{config.option.count}\]$")

    def name(item: pytest.Item) -> str:
        found = repetition.search(item.nodeid)
        if config.option.count == 1 or not found:  # "zero-1-1" is a name of its own
            return item.nodeid
        return item.nodeid[: found.start()] + ("]" if found[1] == "-" else "")

    config.hook.pytest_deselected(items=[i for i in items if name(i) not in names])
    items[:] = [i for i in items if name(i) in names]


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


@pytest.fixture(scope="session", autouse=True)
def _commands_are_made_once() -> Iterator[None]:
    """A runner makes them anew for every line: longer than most of them take."""
    made = functools.cache(typer.testing._get_command)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", made)
        yield


# The site, made once for all tests that read it


@pytest.fixture(scope="session")
def ctx() -> "Context":
    """What the site is made from."""
    from atlas.views.context import read

    return read(ROOT)


@pytest.fixture(scope="session")
def made(ctx: "Context") -> dict[str, str | bytes]:
    """Every page as Markdown, and what lies beside the pages."""
    from atlas.site import pages

    return pages.render(ROOT, ctx)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as a reader gets it."""
    out = tmp_path_factory.mktemp("built") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-d", str(out)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return out
