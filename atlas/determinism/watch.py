"""Runs an exemplar and names the bits of every value that it checks."""

import importlib
from typing import TYPE_CHECKING, Any

from atlas.classify.watch import digest
from atlas.launch import launch
from atlas.measure import DEADLINE
from atlas.taxonomy import Technique

if TYPE_CHECKING:
    from exemplars.runtime import World

#: Claim -> the digests of its values, and those of what they were compared with.
Checked = dict[str, tuple[list[str], list[str]]]


def checked(technique: Technique, ranks: int) -> list[Checked]:
    """What every rank checked, in a run on gloo."""
    env = {"CUDA_VISIBLE_DEVICES": ""}
    return launch(watch_checks, ranks, technique.module, timeout=DEADLINE, env=env)


# On a rank


def watch_checks(w: "World", module: str) -> Checked:
    """The exemplar's main, with every check noted."""
    from exemplars.runtime import run

    found: Checked = {}

    def note(claim: str, value: list[Any], reference: list[Any]) -> None:
        values, references = found.setdefault(claim, ([], []))
        values.append(digest([t.detach().reshape(-1) for t in value]))
        references.append(digest([t.detach().reshape(-1) for t in reference]))

    w.watch = note
    run(w, importlib.import_module(module).main)
    return found
