"""`torchrun ... -m atlas.meter train.py`: the command that launchers can start.

By name, and not by an import: the meter stands below the commands.
"""

import runpy

if __name__ == "__main__":
    runpy.run_module("atlas.commands.launched", run_name="__main__", alter_sys=True)
