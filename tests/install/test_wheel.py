"""What `pip install ddl-atlas` gives: it works anywhere, and is built alike twice.

The wheel is installed into an empty environment, below a folder with a space and an
umlaut in its name. Dependencies are lent to it, so that torch is installed only once.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

ROOT = Path(__file__).resolve().parents[2]
RING = "exemplars.communication_pattern.collective.ring_all_reduce"
pytestmark = [pytest.mark.nightly, pytest.mark.xdist_group("wheel")]

SCRIPT = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.ones(4)
dist.all_reduce(x)
dist.destroy_process_group()
"""

PARTS = """
import torch.distributed as dist

def total(x):
    y = x.contiguous()
    dist.all_reduce(y)
    x.copy_(y)
"""


def build(source: Path, target: Path, umask: int) -> Path:
    """The sdist and the wheel of a tree, built offline with its own backend."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(target)]
    subprocess.run(
        command, cwd=source, check=True, timeout=120, capture_output=True, umask=umask
    )
    return target


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("dist"), 0o022)


@pytest.fixture(scope="module")
def rebuilt(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built again, elsewhere, from the sdist alone, under another umask."""
    folder = tmp_path_factory.mktemp("again")
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    return build(next(folder.iterdir()), folder / "dist", 0o077)


@pytest.fixture(scope="module")
def home(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds the wheel, and beside it a folder to work in."""
    folder = tmp_path_factory.mktemp("home") / "mein Gerät"
    empty = folder / "env"
    run(sys.executable, "-m", "venv", "--without-pip", str(empty))
    wheel = str(next(built.glob("*.whl")))
    pip = (sys.executable, "-m", "pip", "--python", str(empty / "bin" / "python"))
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel)
    lent = site_packages(empty) / "lent.pth"
    lent.write_text(sysconfig.get_path("purelib") + "\n")
    (folder / "work").mkdir()
    (folder / "work" / "train.py").write_text(SCRIPT)
    (folder / "work" / "parts.py").write_text(PARTS)
    return folder


def site_packages(environment: Path) -> Path:
    return next(environment.glob("lib/python3*/site-packages"))


def run(
    *command: str, cwd: Path | None = None, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """A program that sees nothing of the checkout."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=outside(),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def outside() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    share = os.path.join(sys.prefix, "share", "jupyter")  # lent with the packages
    return {**kept, "COLUMNS": "160", "JUPYTER_PATH": share}


def atlas(home: Path, *arguments: str, code: int = 0) -> str:
    done = run(
        str(home / "env" / "bin" / "atlas"), *arguments, cwd=home / "work", code=code
    )
    return done.stdout + done.stderr


# --- what is built


def test_sdist_and_wheel_are_the_same_bytes_when_built_again(
    built: Path, rebuilt: Path
) -> None:
    names = sorted(path.name for path in built.iterdir())
    assert len(names) == 2
    assert names == sorted(path.name for path in rebuilt.iterdir())
    for name in names:
        assert (built / name).read_bytes() == (rebuilt / name).read_bytes(), name


def test_a_wheel_adds_three_names_to_site_packages(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = wheel.namelist()
    tops = {name.partition("/")[0] for name in names}
    info = {top for top in tops if top.endswith(".dist-info")}
    assert len(info) == 1
    assert tops - info == {"atlas", "exemplars", "ddl_atlas"}
    assert not [n for n in names if n.endswith(".pyc") or "/.git" in n]


def test_a_wheel_holds_every_record_and_every_technique(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        held = set(wheel.namelist())
    for part in ("taxonomy/techniques", "measurements", "exemplars", "notebooks"):
        suffixes = {".yaml", ".json", ".py", ".ipynb"}
        files = [p for p in (ROOT / part).rglob("*") if p.suffix in suffixes]
        assert files
        paths = {f"ddl_atlas/{p.relative_to(ROOT).as_posix()}" for p in files}
        assert not {p for p in paths - held if "/." not in p}


# --- what it does


def test_it_is_the_wheel_that_runs(home: Path) -> None:
    python = str(home / "env" / "bin" / "python")
    asked = "import atlas, exemplars.runtime as r; print(atlas.__file__, r.__file__)"
    out = run(python, "-c", asked, cwd=home / "work").stdout
    assert out.count("mein Gerät") == 2
    assert str(ROOT) not in out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("list --axis sync-strategy", "downpour"),
        ("show zero-3", "zero_3.py"),
        ("run ring-all-reduce --ranks 2", "all 4 claims hold on 2 ranks"),
        ("run ring-all-reduce --dry 64", "dry"),
        ("run zero-3 --ranks 2 --mutant {mutant}", "caught by"),
        ("meter --ranks 2 train.py", "train.py:7"),
        ("check parts.py:total --contract all-reduce --ranks 2", "keeps all-reduce"),
        ("plan --list", "resnet-50"),
        ("stats", "techniques"),
        ("export --what bibtex", "@"),
    ],
)
def test_commands_work_from_any_folder(home: Path, line: str, said: str) -> None:
    if "{mutant}" in line:
        from atlas import taxonomy

        mutants = taxonomy.load(ROOT).techniques["zero-3"].mutants
        chosen = next(m.id for m in mutants if not m.deadline)
        assert said in atlas(home, *line.format(mutant=chosen).split(), code=1)
        return
    assert said in atlas(home, *line.split())


@pytest.mark.torchrun
def test_torchrun_starts_an_exemplar_of_the_wheel(home: Path) -> None:
    torchrun = [str(home / "env" / "bin" / "python"), "-m", "torch.distributed.run"]
    torchrun += ["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
    done = run(*torchrun, "-m", RING, cwd=home / "work")
    assert "rank 0 of 2: sum holds" in done.stdout


@pytest.mark.parametrize(
    "line",
    ["record ring-all-reduce", "new a/b/c", "race --write", "collectives --write"],
)
def test_what_writes_says_in_one_line_that_it_needs_a_checkout(
    home: Path, line: str
) -> None:
    said = atlas(home, *line.split(), code=2)
    assert re.search(r"writes into a checkout, and .*: clone the repository", said)
    assert len(said.strip().splitlines()) == 1


def test_nothing_is_written_beside_the_wheel(home: Path) -> None:
    tree = site_packages(home / "env") / "ddl_atlas"
    before = {p for p in tree.rglob("*") if "__pycache__" not in p.parts}
    atlas(home, "run", "ring-all-reduce", "--ranks", "2")
    after = {p for p in tree.rglob("*") if "__pycache__" not in p.parts}
    assert before == after


@pytest.fixture
def site(home: Path) -> Iterator[str]:
    """The address of the site, served from the wheel."""
    command = [str(home / "env" / "bin" / "atlas"), "serve", "--port", "8400"]
    with subprocess.Popen(
        command,
        cwd=home / "work",
        env={**outside(), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout
        try:
            for line in process.stdout:
                if found := re.search(r"Serving on (\S+)", line):
                    yield found[1]
                    break
            else:
                pytest.fail("the site was never served")
        finally:
            process.kill()


@pytest.mark.slow
def test_the_site_is_served_from_any_folder(site: str) -> None:
    page = f"{site}communication-pattern/collective/ring-all-reduce/"
    with urlopen(page, timeout=30) as answer:  # noqa: S310  our own, local
        assert b"bytes_sent" in answer.read()
