"""The sessions that build, test and measure the atlas.

    python3 noxfile.py -s serve    the site, on http://127.0.0.1:8000
    python3 noxfile.py -s tests    every test but those for a browser, a GPU, the night
    python3 noxfile.py -l          all the sessions

An ordinary noxfile: `nox -s tests` works too. Run as a program it needs only
Python 3.11 and pip: it puts nox into .nox/bootstrap and hands over to it.
What a session passes on follows two dashes: `-s tests -- -k ring -x`.

[Note: environments] Sessions do not have an environment each. They share four,
made on first use in .nox/: `atlas` holds torch, which is large, and serves all
sessions that run anything; `docs`, `lint` and `audit` hold no torch, so that
the site is up, and the style checked, half a minute after a clone. A stamp is
written last, with a hash of all that went in: an environment that is half
made, or made from other pins, is made anew.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

if sys.version_info < (3, 11):
    sys.exit(
        f"noxfile.py: {sys.executable} is Python {sys.version.split()[0]}; "
        "the atlas needs 3.11 or newer: start it with python3.11 noxfile.py"
    )

ROOT = Path(__file__).resolve().parent
KEPT = ROOT / ".nox"
CONSTRAINTS = ROOT / "constraints.txt"
NOX_NEEDED = (2025, 5)
#: The optional groups of pyproject.toml that each environment holds.
ENVIRONMENTS = {
    "atlas": "run,docs,notebooks,test,browser,types",
    "docs": "docs",
    "lint": "lint",
    "audit": "audit",
}
VARIABLES = {
    # Material's banner about MkDocs 2, which pyproject.toml excludes.
    "NO_MKDOCS_2_WARNING": "1",
    # Each rank is a process of its own: with more threads than this, the ranks
    # fight over the cores, and sums change their order with the machine.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # Some virtual machines announce AMX and then fault on it: bfloat16 products
    # die with SIGILL. One step below AMX they run everywhere.
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
}
#: These tests are about gloo: with a GPU in sight, plain ranks would be NCCL's.
HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}
#: A hang on NCCL leaves each rank's last operations here.
FLIGHT = KEPT / "flight"
#: Devices are counted without the driver; only using one shows whether it is too old.
ASK_GPUS = """
import json, torch
found = {"torch": torch.__version__, "cuda": torch.version.cuda, "problem": ""}
found["count"] = torch.cuda.device_count()
try:
    if found["count"]:
        torch.zeros(1, device="cuda")
        found["name"] = torch.cuda.get_device_name()
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
except Exception as error:
    found["problem"] = str(error).splitlines()[0]
print(json.dumps(found))
"""
NCCL_VARIABLES = {
    "NCCL_DEBUG": "WARN",
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_FR_DUMP_TEMP_FILE": str(FLIGHT / "rank_"),
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_SHOW_CPP_STACKTRACES": "1",
}

#: The tests run in a process for each core, up to four: `-s tests -- -n0` for one.
WORKERS = str(min(4, os.cpu_count() or 1))
SPREAD = ["-n", WORKERS, "--dist", "loadgroup"]
#: On a machine with a core and no GPU to spare; what takes longer runs every night.
TESTS = ["pytest", "-m", "not browser and not nccl and not nightly", *SPREAD]
NIGHTLY = ["pytest", "-m", "not browser and not nccl", *SPREAD]
#: What everything else stands on: a soak repeats these most.
OFTEN = ("test_launch", "test_meter", "test_faults")


class CannotMakeError(Exception):
    """An environment could not be made; the message is one line for the reader."""


def say(line: str) -> None:
    print(f"noxfile: {line}", file=sys.stderr, flush=True)


def environment(name: str) -> Path:
    """The folder .nox/NAME, made first if missing, half made or out of date."""
    folder = KEPT / name
    stamp, wanted = folder / "complete", fingerprint(name)
    with one_at_a_time(name):
        python = folder / "bin" / "python"
        if stamp.is_file() and stamp.read_text() == wanted and python.exists():
            return folder
        say(f"making .nox/{name}, once; later runs use it again")
        started = time.monotonic()
        shutil.rmtree(folder, ignore_errors=True)
        make_venv(folder)
        for what, arguments in steps(name):
            say(f".nox/{name}: installing {what}")
            pip(folder, what, *arguments)
        stamp.write_text(wanted)
        say(f".nox/{name} is complete, {time.monotonic() - started:.0f} s")
    return folder


def steps(name: str) -> Iterator[tuple[str, list[str]]]:
    """What to install, in order: a name for the reader, arguments for pip."""
    if name == "bootstrap":
        yield "nox", ["--quiet", "nox"]
        return
    # Here, and not in a build environment of pip's own, so that it is pinned too.
    yield "pip and the build backend", ["--quiet", "pip", "hatchling", "editables"]
    groups = ENVIRONMENTS[name]
    if "run" in groups.split(","):
        yield "torch, the large one", ["torch==2.13.0"]
    ours = ["--quiet", "--no-build-isolation", "--editable", f"{ROOT}[{groups}]"]
    yield groups.replace(",", ", "), ours


def fingerprint(name: str) -> str:
    """A hash of all that an environment is made from, its place included."""
    import tomllib

    described = tomllib.loads((ROOT / "pyproject.toml").read_text())
    parts = [
        CONSTRAINTS.read_text(),
        json.dumps([described["project"], described["build-system"]]),
        json.dumps(list(steps(name))),
        sys.version,
        str(KEPT / name),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def make_venv(folder: Path) -> None:
    """A virtual environment with pip in it, also where ensurepip is missing."""
    command = [sys.executable, "-m", "venv", str(folder)]
    if importlib.util.find_spec("ensurepip"):
        returned = subprocess.run(command, check=False).returncode
    elif importlib.util.find_spec("pip"):
        # Debian without python3-venv: our own pip fills the environment.
        returned = subprocess.run([*command, "--without-pip"], check=False).returncode
        fill = [sys.executable, "-m", "pip", "--python", str(folder), "install"]
        fill += ["--quiet", "--disable-pip-version-check"]
        fill += ["--constraint", str(CONSTRAINTS), "pip"]
        returned = returned or subprocess.run(fill, check=False).returncode
    else:
        raise CannotMakeError(
            f"{sys.executable} has neither ensurepip nor pip; install one "
            "(Debian and Ubuntu: apt-get install python3-venv) and run this again"
        )
    if returned:
        raise CannotMakeError(
            f"`{' '.join(command)}` ended with exit code {returned}, see above"
        )


def pip(folder: Path, what: str, *arguments: str) -> None:
    python = str(folder / "bin" / "python")
    command = [python, "-m", "pip", "install", "--disable-pip-version-check"]
    command += ["--constraint", str(CONSTRAINTS), *arguments]
    returned = subprocess.run(command, check=False).returncode
    if returned:
        raise CannotMakeError(
            f"pip could not install {what} (exit code {returned}, see above); "
            "run this again and the environment is made anew"
        )


@contextlib.contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """Two sessions at once must not make the same environment."""
    import fcntl

    KEPT.mkdir(exist_ok=True)
    with (KEPT / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def nox_is_here() -> bool:
    try:
        version = importlib.metadata.version("nox")
    except importlib.metadata.PackageNotFoundError:
        return False
    return tuple(int(part) for part in version.split(".")[:2]) >= NOX_NEEDED


def hand_over() -> None:
    """Become nox, from this Python if it has it, else from .nox/bootstrap."""
    try:
        python = sys.executable
        if not nox_is_here():
            python = str(environment("bootstrap") / "bin" / "python")
    except (CannotMakeError, OSError) as problem:
        sys.exit(f"noxfile: {problem}")
    except KeyboardInterrupt:
        sys.exit(130)
    command = [python, "-m", "nox", "-f", __file__, *sys.argv[1:]]
    os.execv(python, command)  # noqa: S606  without a shell, as it should be


if __name__ == "__main__":
    hand_over()

import nox  # noqa: E402  it may have been missing until here

nox.needs_version = ">=" + ".".join(map(str, NOX_NEEDED))
nox.options.sessions = ["lint", "types", "tests"]


def session(function: Callable[[nox.Session], None]) -> Callable[[nox.Session], None]:
    """A nox session that runs in one of the shared environments."""

    @functools.wraps(function)
    def told(s: nox.Session) -> None:
        try:
            function(s)
        except (CannotMakeError, OSError) as problem:
            s.error(str(problem))

    return nox.session(venv_backend="none")(told)


def run(s: nox.Session, name: str, *command: str, **variables: str) -> None:
    """Run a program of the environment .nox/NAME."""
    programs = environment(name) / "bin"
    path = os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)])
    env: dict[str, str | None] = {**VARIABLES, "PATH": path, **variables}
    env |= {"VIRTUAL_ENV": str(programs.parent), "PYTHONHOME": None}
    s.run(str(programs / command[0]), *command[1:], env=env, external=True)


@session
def serve(s: nox.Session) -> None:
    """Serve the site on http://127.0.0.1:8000, rebuilt when a file changes."""
    # It finds the next free port and says where the site is: `-s serve -- --help`.
    run(s, "docs", "atlas", "serve", *s.posargs)


@session
def docs(s: nox.Session) -> None:
    """Build the site into site/; a warning is an error."""
    # Never with --quiet, which hides warnings from --strict as well.
    run(s, "docs", "mkdocs", "build", *(s.posargs or ["--strict"]))


@session
def tests(s: nox.Session) -> None:
    """Run every test but those that need a browser, a GPU or a night."""
    run(s, "atlas", *TESTS, *s.posargs, **HIDDEN)


@session
def nightly(s: nox.Session) -> None:
    """Run those too that take longer: every torchrun line, 8 ranks, 1024 dry ones."""
    run(s, "atlas", *NIGHTLY, *s.posargs, **HIDDEN)


@session
def soak(s: nox.Session) -> None:
    """Repeat what starts processes: 100 times launches, counts and faults, else 10."""
    note = KEPT / "started.txt"
    note.unlink(missing_ok=True)
    every = [*TESTS, "-x", "-q"]
    run(s, "atlas", *every, "--note", str(note), *s.posargs, **HIDDEN)
    files = sorted({line.partition("::")[0] for line in note.read_text().splitlines()})
    often = [file for file in files if Path(file).stem in OFTEN]
    rest = [file for file in files if file not in often]
    for count, chosen in ((99, often), (9, rest)):
        if not chosen:  # by what was passed on; given no file, pytest would take all
            continue
        # In one word: pytest would take a file's name alone for what is to be tested.
        repeat = [f"--noted={note}", "--count", str(count)]
        run(s, "atlas", *every, *repeat, *s.posargs, *chosen, **HIDDEN)


@session
def browser(s: nox.Session) -> None:
    """Look at the built site in Chromium."""
    run(s, "atlas", "pytest", "-m", "browser", *s.posargs, CHROMIUM=chromium())


@session
def screenshots(s: nox.Session) -> None:
    """Photograph the most important views, light, dark and on a phone."""
    shots = ["python", "tests/browser/screenshots.py", *s.posargs]
    run(s, "atlas", *shots, CHROMIUM=chromium())


def chromium() -> str:
    """The path of a Chromium, installed first if we may."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    for found in (os.environ.get("CHROMIUM"), *map(shutil.which, names)):
        if found:
            return found
    if os.geteuid() == 0 and shutil.which("apt-get"):
        say("no Chromium here; installing it with apt-get")
        install = ["apt-get", "install", "--yes", "--no-install-recommends", "chromium"]
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        if subprocess.run(install, check=False, env=quiet).returncode:
            subprocess.run(["apt-get", "update"], check=False, env=quiet)
            subprocess.run(install, check=False, env=quiet)
        if installed := shutil.which("chromium"):
            return installed
    raise CannotMakeError(
        "no Chromium found; install one (Debian: sudo apt-get install chromium) "
        "or set CHROMIUM to its path"
    )


@session
def notebooks(s: nox.Session) -> None:
    """Execute the notebooks and keep their outputs in measurements/notebooks/."""
    run(s, "atlas", "python", "-m", "atlas.notebooks", *s.posargs)


@session
def lint(s: nox.Session) -> None:
    """Check style, formatting, imports and spelling."""
    run(s, "lint", "ruff", "check", *s.posargs)
    run(s, "lint", "ruff", "format", "--check")
    run(s, "lint", "lint-imports", "--no-logo")
    run(s, "lint", "codespell")


@session
def types(s: nox.Session) -> None:
    """Check the types of atlas and exemplars, strictly."""
    run(s, "atlas", "mypy", *s.posargs)


@session
def bench(s: nox.Session) -> None:
    """Time the exemplars beside the production code that does the same."""
    run(s, "atlas", "python", "-m", "atlas.bench", *s.posargs)


@session
def record(s: nox.Session) -> None:
    """Run the exemplars and write measurements/."""
    run(s, "atlas", "atlas", "record", *(s.posargs or ["--all"]))


@session
def mutants(s: nox.Session) -> None:
    """Put small mistakes into the exemplars; which ones does no claim notice?"""
    run(s, "atlas", "python", "-m", "atlas.mutants", *s.posargs)


@session
def gpu(s: nox.Session) -> None:
    """Run the NCCL tests and the notebooks on this machine's GPUs."""
    python = str(environment("atlas") / "bin" / "python")
    found = json.loads(str(s.run(python, "-c", ASK_GPUS, silent=True)))
    if found["count"] < 2:
        s.error("torch {torch} sees {count} GPUs: 2 or more are needed".format(**found))
    if found["problem"]:
        s.error(
            "torch {torch} for CUDA {cuda} cannot use the {count} GPUs: {problem}; "
            "update the driver, or install torch for an older CUDA from PyTorch's own "
            "index into .nox/atlas".format(**found)
        )
    say("torch {torch}, CUDA {cuda}, NCCL {nccl}, {count} x {name}".format(**found))
    FLIGHT.mkdir(exist_ok=True)
    run(s, "atlas", "pytest", "-m", "nccl", *s.posargs, **NCCL_VARIABLES)
    run(s, "atlas", "python", "-m", "atlas.notebooks", "--check", **NCCL_VARIABLES)


@session
def package(s: nox.Session) -> None:
    """Build sdist and wheel into dist/, twice: the bytes must be the same."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    again = KEPT / "dist"
    for folder in (ROOT / "dist", again):
        run(s, "lint", "python", "-m", "hatchling", "build", "-d", str(folder))
    for path in sorted((ROOT / "dist").iterdir()):
        digest, other = (
            hashlib.sha256((folder / path.name).read_bytes()).hexdigest()
            for folder in (path.parent, again)
        )
        if digest != other:
            s.error(f"{path.name} is not the same when it is built again")
        say(f"{digest}  dist/{path.name}")


@session
def audit(s: nox.Session) -> None:
    """Check the workflows, and the pins against known vulnerabilities."""
    workflows = ["--offline", "--persona", "auditor", ".github/workflows"]
    run(s, "audit", "zizmor", *workflows)
    say("pip-audit asks the vulnerability database: it needs the network")
    as_pinned = ["--strict", "--no-deps", "--disable-pip", "-r", "constraints.txt"]
    run(s, "audit", "pip-audit", *as_pinned, *s.posargs)
