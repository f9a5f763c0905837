"""The reader's script on one rank: run as torchrun would, and how it ended."""

import atexit
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, Literal

from atlas.ranks import HINTS

if TYPE_CHECKING:
    from atlas.meter.journal import Journal

#: What a rank says that only lost its peer: an echo, and not the cause.
ECHOES = (
    "closed by peer",
    "reset by peer",
    "Broken pipe",
    "Connection refused",
    "Timed out",
    "Application timeout",
)
#: What torch says when it finds no GPU.
NO_GPU = ("NCCL", "CUDA", "nvidia", "No HIP GPUs")


class ScriptError(Exception):
    """The script cannot be run; the message is one line."""


class Refused(Exception):
    """The script does what cannot work here; the message is one line."""


@dataclass(frozen=True)
class Script:
    """A file, what is given to it, and the folder it runs in."""

    path: Path
    arguments: tuple[str, ...] = ()
    folder: str = field(default_factory=os.getcwd)

    def check(self) -> None:
        """A ScriptError if it cannot be run at all."""
        self.compiled()

    @property
    def needs(self) -> list[str]:
        """What its ranks will all import, as far as its text tells."""
        text = self.path.read_text(errors="replace")
        return [module for word, module in HINTS.items() if word in text]

    def compiled(self) -> CodeType:
        """Its code; a ScriptError if there is none."""
        try:
            source = self.path.read_bytes()
        except IsADirectoryError:
            raise ScriptError(f"{self.path} is a folder, not a script") from None
        except OSError as error:
            what = error.strerror or error
            raise ScriptError(f"cannot read {self.path}: {what}") from None
        try:
            return compile(source, str(self.path.resolve()), "exec")
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None)
            where = f"{self.path}:{line}" if line else str(self.path)
            what = getattr(error, "msg", str(error))
            raise ScriptError(f"{where} is not Python: {what}") from None


@dataclass(frozen=True)
class Here:
    """What a watcher knows of the rank it is on."""

    rank: int
    ranks: int
    folder: Path  # of the run, for all its ranks
    journal: "Journal"  # of this rank: a watcher may write into it


#: Opened around the script; gives the function that is called for the value to bring
#: back, when the script has ended well.
Watch = Callable[[Here], AbstractContextManager[Callable[[], Any]]]

Kind = Literal["returned", "raised", "refused", "killed", "unfinished"]


@dataclass(frozen=True)
class End:
    """How a rank's script ended; `unfinished` if we ended it."""

    kind: Kind
    code: int = 0
    error: str = ""
    message: str = ""
    trace: str = ""  # of the script's own frames
    site: str = ""  # the innermost of them

    @property
    def well(self) -> bool:
        """Whether it came to its end."""
        return self.kind == "returned" and self.code == 0

    @property
    def echo(self) -> bool:
        """Whether it only lost a peer."""
        return self.kind == "raised" and any(e in self.message for e in ECHOES)

    @property
    def no_gpu(self) -> bool:
        """Whether it failed because it asked for a GPU."""
        told = f"{self.error}: {self.message}"
        return self.kind == "raised" and any(word in told for word in NO_GPU)

    @property
    def line(self) -> str:
        """In one line."""
        match self.kind:
            case "raised":
                first = self.message.splitlines()[0] if self.message else ""
                where = f" at {self.site}" if self.site else ""
                return f"{self.error}: {first}{where}".replace(": at", " at")
            case "returned" if self.code:
                return f"it left with exit code {self.code}"
            case "returned":
                return "it came to its end"
            case "killed":
                return f"it {self.message}"
            case "refused":
                return self.message
        return "it was still at work"


def execute(script: Script, names: dict[str, Any]) -> End:
    """Run the script in this process to its end, with the names of a main module."""
    code = script.compiled()
    try:
        exec(code, names)  # noqa: S102 - it is the reader's own script
        _leave()
    except SystemExit as left:
        return _left(left)
    except Refused as error:
        return End("refused", 2, message=str(error))
    except BaseException as error:
        return raised(error, script)
    return End("returned")


def _leave() -> None:
    """What the interpreter does at the end of a program."""
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
    atexit._run_exitfuncs()


def _left(error: SystemExit) -> End:
    """sys.exit says nothing, a number, or a text that is printed."""
    if error.code is None or isinstance(error.code, int):
        return End("returned", error.code or 0)
    print(error.code, file=sys.stderr)
    return End("returned", 1)


def raised(error: BaseException, script: Script) -> End:
    """An error of the script's, with its frames and not with ours."""
    frames = traceback.extract_tb(error.__traceback__)
    main = str(script.path.resolve())
    first = next((i for i, f in enumerate(frames) if f.filename == main), None)
    own = frames[first:] if first is not None else frames
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(own)]
    lines += traceback.format_exception_only(error)
    here = Path(script.folder)
    sites = [f for f in own if "site-packages" not in f.filename]
    site = f"{shorter(sites[-1].filename, here)}:{sites[-1].lineno}" if sites else ""
    name, told = type(error).__name__, str(error)
    return End("raised", 1, name, told, "".join(lines), site)


def shorter(path: str, folder: Path) -> str:
    """As seen from a folder, if it is below."""
    try:
        return str(Path(path).relative_to(folder.resolve()))
    except ValueError:
        return path
