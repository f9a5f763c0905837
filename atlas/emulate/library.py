"""Compiles the pretend device once per machine, torch and compiler."""

import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

SOURCES = ("device.cpp", "nccl.cpp")
NATIVE = Path(__file__).resolve().parent / "native"
LAST_LINES = 12  # of the compiler, shown when it fails


class EmulationError(Exception):
    """The emulated GPU cannot be had; the message says why in one line."""


def unavailable() -> str | None:
    """Why there can be no emulated GPU here, in one line, or None."""
    if sys.platform != "linux":
        return f"the emulated GPU needs Linux, and this is {sys.platform}"
    folder = _torch()
    if folder is None:
        return "the emulated GPU needs torch, which is not installed"
    kind = _accelerated(folder)
    if kind:
        return (
            f"torch {_torch_version()} is built for {kind}: the emulated GPU needs "
            "a CPU build of torch"
        )
    if not (folder / "include" / "ATen" / "ATen.h").is_file():
        return f"torch {_torch_version()} came without its C++ headers"
    command = _compiler()
    if shutil.which(command[0]) is None:
        return (
            f"no C++ compiler: {command[0]} is not on the PATH "
            "(install g++, or name another in CXX)"
        )
    return None


def build() -> Path:
    """The compiled library, built now if this machine has not built it yet."""
    reason = unavailable()
    if reason:
        raise EmulationError(reason)
    library = _cache() / f"emulate-{_key()}.so"
    if library.is_file():
        return library
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with _alone(library.with_suffix(".lock")):
            if not library.is_file():  # nobody else built it meanwhile
                _compile(library)
    except OSError as e:
        raise EmulationError(
            f"cannot keep the emulated GPU in {library.parent}: {e.strerror} "
            "(name another folder in XDG_CACHE_HOME)"
        ) from None
    return library


def _torch() -> Path | None:
    """Where torch is, without importing it."""
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parent if spec and spec.origin else None


def _torch_version() -> str:
    return importlib.metadata.version("torch")


def _accelerated(folder: Path) -> str | None:
    """The device that this torch was built for, if any."""
    text = (folder / "version.py").read_text()
    for name, label in (("cuda", "CUDA"), ("hip", "ROCm"), ("xpu", "XPU")):
        if re.search(rf"^{name}\b[^=\n]*=\s*['\"]", text, re.MULTILINE):
            return label
    return None


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CXX", "")) or ["g++"]


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "ddl-atlas"


def _key() -> str:
    """A digest of everything the library depends on."""
    digest = hashlib.sha256()
    for source in sorted(NATIVE.iterdir()):
        digest.update(source.read_bytes())
    compiler = subprocess.run(
        [*_compiler(), "--version"], capture_output=True, text=True, check=False
    )
    for part in (_torch_version(), str(_torch()), compiler.stdout, sys.version):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a lock that the system lets go of when this process ends."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile(library: Path) -> None:
    print(
        "atlas: building the emulated GPU (about 20 s, once) ...",
        file=sys.stderr,
        flush=True,
    )
    folder = _torch()
    assert folder is not None  # unavailable() has looked
    include = [folder / "include", folder / "include/torch/csrc/api/include"]
    flags = ["-O1", "-std=c++20", "-fPIC", *(f"-I{path}" for path in include)]
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        objects = [Path(scratch, name).with_suffix(".o") for name in SOURCES]
        _run_all(
            [*_compiler(), *flags, "-c", str(NATIVE / name), "-o", str(made)]
            for name, made in zip(SOURCES, objects, strict=True)
        )
        linked = Path(scratch, library.name)
        libraries = [f"-L{folder / 'lib'}", "-lc10", "-ltorch_cpu"]
        path = f"-Wl,-rpath,{folder / 'lib'}"
        parts = map(str, objects)
        _run_all(
            [[*_compiler(), "-shared", "-o", str(linked), *parts, *libraries, path]]
        )
        os.replace(linked, library)


def _run_all(commands: Iterator[list[str]] | list[list[str]]) -> None:
    """Run the compiler's commands side by side."""
    running = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for command in commands
    ]
    said = [(process.communicate()[0], process.returncode) for process in running]
    for text, code in said:
        if code:
            lines = "\n".join(text.strip().splitlines()[-LAST_LINES:])
            raise EmulationError(
                f"{' '.join(_compiler())} could not build the emulated GPU for "
                f"torch {_torch_version()}:\n{lines}"
            )
