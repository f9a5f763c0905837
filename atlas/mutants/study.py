"""All mutations on trial, and measurements/studies/mutation/, which keeps them."""

import json
import multiprocessing
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from itertools import repeat
from pathlib import Path
from typing import Any

from atlas import record, taxonomy
from atlas.mutants import equivalent, trial
from atlas.mutants.mutations import Mutants, Mutation
from atlas.mutants.score import PLACE
from atlas.mutants.trial import Outcome
from atlas.process import die_with_parent
from atlas.taxonomy import Atlas, Technique

Json = dict[str, Any]
#: How a trial ends where the exemplar fails without any mutation.
BROKEN = "broken"
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Case:
    """One mutation of one technique, and how it ended."""

    technique: str
    mutation: Mutation
    outcome: Outcome
    reason: str = ""  # why it is equivalent, where it is listed as such

    @property
    def broken(self) -> bool:
        """The exemplar fails as it is: this says nothing about the mutation."""
        return self.outcome.by == BROKEN

    @property
    def survived(self) -> bool:
        """A hole: nothing noticed, and nobody says why that is right."""
        return not self.outcome.killed and not self.reason

    @property
    def wrongly_listed(self) -> bool:
        """Called equivalent, and yet something noticed."""
        return self.outcome.killed and not self.broken and bool(self.reason)


def written(atlas: Atlas) -> list[Technique]:
    """The techniques that have an exemplar."""
    every = atlas.techniques.values()
    return [t for t in every if (atlas.root / t.exemplar).is_file()]


def mutants(root: Path, technique: Technique) -> Mutants:
    """A technique's exemplar with all its mutations."""
    return Mutants((root / technique.exemplar).read_text(encoding="utf-8"))


def everything(
    root: Path, techniques: Iterable[Technique]
) -> list[tuple[str, Mutation]]:
    """All mutations of these techniques; their lists of equivalents must fit."""
    found = []
    for technique in techniques:
        every = mutants(root, technique).all
        equivalent.check(root, technique.id, every)
        found += [(technique.id, m) for m in every]
    return found


def tried(
    root: Path,
    chosen: Sequence[tuple[str, Mutation]],
    jobs: int,
    progress: Progress = lambda text: None,
) -> Iterator[Case]:
    """Every chosen mutation on trial, as many at a time as there are jobs."""
    names = list(dict.fromkeys(name for name, _ in chosen))
    reasons = {name: equivalent.listed(root, name) for name in names}
    # Each worker launches its own ranks; spawned, for a fork would share a server.
    context = multiprocessing.get_context("spawn")
    workers = ProcessPoolExecutor(jobs, context, die_with_parent, (os.getpid(),))
    with workers as pool:
        honest: dict[str, Outcome | float] = {}
        for name, found in zip(
            names, pool.map(_honest, repeat(root), names), strict=True
        ):
            progress(f"{name} unchanged")
            honest[name] = found
        tasks = [Task(root, name, m.id, honest[name]) for name, m in chosen]
        for (name, m), outcome in zip(chosen, pool.map(_tried, tasks), strict=True):
            progress(f"{name} {m.kind}")
            yield Case(name, m, outcome, reasons[name].get(m.id, ""))


@dataclass(frozen=True)
class Task:
    """What a worker is told: a mutation, and what the honest run gave."""

    root: Path
    technique: str
    mutation: str
    honest: Outcome | float


def _honest(root: Path, name: str) -> Outcome | float:
    """In a worker: the seconds of an honest run, or how it fails."""
    technique = _atlas(root).techniques[name]
    try:
        return trial.seconds(technique, _mutants(root, name).unchanged)
    except trial.BrokenError as error:
        return Outcome(BROKEN, 0, str(error))


def _tried(task: Task) -> Outcome:
    """In a worker: one mutation."""
    if isinstance(task.honest, Outcome):
        return task.honest
    made = _mutants(task.root, task.technique)
    mutation = next(m for m in made.all if m.id == task.mutation)
    technique = _atlas(task.root).techniques[task.technique]
    return trial.trial(technique, made.source(mutation), trial.patience(task.honest))


@cache
def _mutants(root: Path, name: str) -> Mutants:
    return mutants(root, _atlas(root).techniques[name])


@cache
def _atlas(root: Path) -> Atlas:
    return taxonomy.load(root)


def summary(root: Path, technique: Technique, cases: Sequence[Case]) -> Json:
    """What became of one technique's mutations."""
    killed = [c for c in cases if c.outcome.killed]
    survived = [c for c in cases if c.survived]
    alike = len(cases) - len(killed) - len(survived)
    return {
        "source": record.source_hash(root, technique),
        "recorded": datetime.now(UTC).date().isoformat(),
        "ranks": list(trial.RANKS),
        "deadline": trial.DEADLINE,
        "torch": version("torch").split("+")[0],
        "mutants": len(cases),
        "killed": len(killed),
        "killed_by": dict(sorted(Counter(c.outcome.by for c in killed).items())),
        "equivalent": alike,
        "survived": [
            {
                "id": c.mutation.id,
                "kind": c.mutation.kind,
                "where": c.mutation.where,
                "was": c.mutation.was,
                "now": c.mutation.now,
            }
            for c in survived
        ],
        "score": round(len(killed) / max(1, len(cases) - alike), 4),
    }


def keep(root: Path, cases: Iterable[Case]) -> Path:
    """Write what was found; techniques that were not tried stay as they were."""
    by: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        if not case.broken:
            by[case.technique].append(case)
    techniques = taxonomy.load(root).techniques
    for name, found in by.items():
        made = summary(root, techniques[name], found)
        text = json.dumps(made, indent=1, sort_keys=True) + "\n"
        record.write_text(root / PLACE / f"{name}.json", record.compact(text))
    return root / PLACE
