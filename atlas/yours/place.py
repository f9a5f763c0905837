"""What a rank is given before the reader's script begins: all that torchrun gives.

torchrun's agent keeps a TCP store on a free port. Here the ranks of one machine meet
by a file: no port is asked for, so that no other run can have taken it.
"""

import importlib
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from atlas.yours.script import Refused, Script


def prepare(script: Script, folder: Path) -> dict[str, Any]:
    """Make this process what torchrun would have started; the main module's names."""
    os.setpgid(0, 0)  # what the script starts is ended with it
    os.chdir(script.folder)
    give(script)
    random.seed()  # a fork has its parent's state: ranks would draw the same
    if "numpy" in sys.modules:
        import numpy

        numpy.random.seed()
    _meet_by_file(folder)
    _refuse_ranks_of_its_own(script)
    return main_module(script)


def give(script: Script) -> None:
    """Its arguments, and the modules beside it."""
    sys.argv = [str(script.path), *script.arguments]
    sys.path.insert(0, str(script.path.resolve().parent))


def main_module(script: Script) -> dict[str, Any]:
    """The names of a new main module: what the script defines is found there."""
    main = ModuleType("__main__")
    main.__file__ = str(script.path.resolve())
    sys.modules["__main__"] = main
    return main.__dict__


def _meet_by_file(folder: Path) -> None:
    """Answer `env://` with a file; the n-th group that is made has the n-th file."""
    from torch._C._distributed_c10d import FileStore, Store

    # torch.distributed.rendezvous is the function of that name.
    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    met = 0

    def meet(url: str, **_: Any) -> Iterator[tuple[Store, int, int]]:
        nonlocal met
        met += 1
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        path = str(folder / f"rendezvous.{met}")
        yield FileStore(path, size), rank, size
        raise RuntimeError("the ranks cannot meet again")

    rendezvous._rendezvous_handlers["env"] = meet


def _refuse_ranks_of_its_own(script: Script) -> None:
    """A script that spawns its ranks would spawn them on every one of ours."""
    import torch.multiprocessing

    spawning = importlib.import_module("torch.multiprocessing.spawn")

    def refuse(*_: Any, **__: Any) -> None:
        raise Refused(
            f"{script.path} starts its own processes with torch.multiprocessing.spawn: "
            "call its worker function directly, as a script for torchrun does"
        )

    for module in (spawning, torch.multiprocessing):
        setattr(module, "start_processes", refuse)  # noqa: B010 - not declared
