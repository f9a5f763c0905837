"""Runs a CUDA script on the emulated GPU: python -m atlas.emulate script.py."""

import atexit
import os
import runpy
import sys
import threading

from atlas.emulate import EmulationError, activate

USAGE = "usage: python -m atlas.emulate (script.py | -m package.module) [arguments]"


def main(arguments: list[str]) -> None:
    """Run a script or, after -m, a module, as Python itself would."""
    as_module = arguments[:1] == ["-m"]
    rest = arguments[1:] if as_module else arguments
    if not rest:
        sys.exit(USAGE)
    if not as_module and not os.path.isfile(rest[0]):
        sys.exit(f"python -m atlas.emulate: there is no file {rest[0]}\n{USAGE}")
    try:
        activate()
    except EmulationError as e:
        sys.exit(f"python -m atlas.emulate: {e}")
    sys.argv = rest
    if as_module:
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(rest[0]))
        runpy.run_path(rest[0], run_name="__main__")


def run(arguments: list[str]) -> int:
    """The exit code that Python would give it."""
    try:
        main(arguments)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def leave(code: int) -> None:
    """As Python leaves, up to where its own end may meet a thread of gloo's.

    A script that destroys no group has such threads, and on a busy machine was then
    aborted by the C++ runtime now and then, after all its work was done.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the script's threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(run(sys.argv[1:]))
