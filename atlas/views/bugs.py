"""The bug atlas, by symptom: bugs with their programs, and the mutants of exemplars."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atlas import taxonomy
from atlas.check import detectors
from atlas.taxonomy import Atlas, Bug, Mutant, Technique

#: A symptom's words, in the order of the page.
SYMPTOMS = {
    "differs-from-one-process": "The result differs from one process",
    "ranks-differ": "The ranks drift apart",
    "does-not-learn": "The loss does not fall",
    "scale-is-hidden": "The loss is right, and the gradient norm is not",
    "seeds-and-data": "It differs from run to run, or with the number of ranks",
}
PROGRAMS = "atlas/check/programs"
#: How far off a number is, relative to the right one, when a person notices.
NOTICED = detectors.NOTICED


@dataclass(frozen=True)
class Shown:
    """A bug as the page has it: `anchors` are its own id and diagnoses it explains."""

    bug: Bug
    anchors: tuple[str, ...]
    change: str
    command: str
    sees: tuple[str, ...]  # detectors that notice it
    misses: tuple[str, ...]


def by_symptom(atlas: Atlas) -> list[tuple[str, list[Shown]]]:
    """Every bug under its symptom; each diagnosis is anchored at one bug."""
    explained = _explained(atlas)
    kept = detectors.read(atlas.root).get("bugs", {})
    found = []
    for symptom, words in SYMPTOMS.items():
        bugs = [b for b in atlas.bugs.values() if b.symptom == symptom]
        shown = [_shown(atlas, b, explained, kept.get(b.id, {})) for b in bugs]
        if shown:
            found.append((words, shown))
    return found


def _shown(
    atlas: Atlas,
    bug: Bug,
    explained: Mapping[str, tuple[str, ...]],
    row: Mapping[str, Any],
) -> Shown:
    seen: Mapping[str, bool | None] = row.get("seen", {})
    return Shown(
        bug,
        (bug.id, *explained.get(bug.id, ())),
        change(atlas, bug),
        command(bug),
        tuple(name for name, sees in seen.items() if sees),
        tuple(name for name, sees in seen.items() if sees is False),
    )


def tally(atlas: Atlas) -> list[tuple[str, int, int]]:
    """How many bugs each detector sees, of how many that it can be tried on."""
    rows = detectors.read(atlas.root).get("bugs", {})
    found = []
    for name in detectors.DETECTORS if rows else ():
        tried = [row["seen"][name] for row in rows.values()]
        tried = [sees for sees in tried if sees is not None]
        found.append((name, sum(tried), len(tried)))
    return found


def _explained(atlas: Atlas) -> dict[str, tuple[str, ...]]:
    """The diagnoses whose name is no bug's own, at the first bug that has them."""
    found: dict[str, tuple[str, ...]] = {}
    known = set(atlas.bugs)
    for bug in atlas.bugs.values():
        if bug.diagnosis not in known:
            found[bug.id] = (bug.diagnosis,)
            known.add(bug.diagnosis)
    return found


def change(atlas: Atlas, bug: Bug) -> str:
    """The mistake as a diff, with two lines around it."""
    right = (taxonomy.PROGRAMS / f"{bug.program}.py").read_text(encoding="utf-8")
    wrong = right.replace(bug.find, bug.replace)
    lines = difflib.unified_diff(
        right.splitlines(), wrong.splitlines(), n=2, lineterm=""
    )
    return "\n".join(list(lines)[2:])


def command(bug: Bug) -> str:
    """How to see that the right program is right."""
    one = f' --one "{bug.one}"' if bug.one else ""
    return f'atlas check {PROGRAMS}/{bug.program}.py --ranks 3{one} --many "{bug.many}"'


def mutants(atlas: Atlas) -> Sequence[tuple[Technique, Sequence[Mutant]]]:
    """The mistakes that the exemplars' own claims catch, by technique."""
    techniques = sorted(atlas.techniques.values(), key=lambda t: t.path)
    return [(t, t.mutants) for t in techniques if t.mutants]
