"""Runs a CUDA script on the emulated GPU: python -m atlas.emulate script.py."""

import os
import runpy
import sys

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


if __name__ == "__main__":
    main(sys.argv[1:])
