"""A script of the reader's, unchanged, on ranks of ours: run, watched, and judged.

ran = run(Script("train.py", ("--epochs", "1")), 4, timeout=60)
ran.ranks[0].end          # how its script ended
ran.ranks[0].value        # what the watcher brought back
"""

from atlas.yours.elsewhere import metered
from atlas.yours.run import Ran, Rank, run
from atlas.yours.script import End, Here, Script, ScriptError, Watch

__all__ = [
    "End",
    "Here",
    "Ran",
    "Rank",
    "Script",
    "ScriptError",
    "Watch",
    "metered",
    "run",
]
