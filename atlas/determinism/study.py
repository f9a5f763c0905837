"""Compares the bits of a technique's values across ranks, across runs and across p."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from atlas.determinism.kept import PLACE, Found
from atlas.determinism.watch import Checked, checked
from atlas.launch import LaunchError
from atlas.record import compact, source_hash, write_text
from atlas.taxonomy import Technique

COUNTS = (1, 2, 4)


def study(technique: Technique, root: Path) -> Found:
    """What runs on one, two and four ranks tell, as plain data."""
    runs = _runs(technique)
    most = max(runs)
    again = checked(technique, most)
    claims = dict.fromkeys(claim for rank in runs[most] for claim in rank)
    return {
        "source": source_hash(root, technique),
        "ranks": sorted(runs),
        "values": {
            claim: {
                "ranks": across_ranks(claim, runs[most]),
                "runs": _of(claim, runs[most]) == _of(claim, again),
                "p": across_p(claim, runs),
            }
            for claim in claims
        },
    }


def _runs(technique: Technique) -> dict[int, list[Checked]]:
    """By number of ranks, those that the technique can have."""
    most = technique.max_ranks or max(COUNTS)
    counts = [p for p in COUNTS if technique.min_ranks <= p <= most]
    runs = {}
    for p in counts or [technique.min_ranks]:
        try:
            runs[p] = checked(technique, p)
        except LaunchError as error:
            if not error.refused:
                raise
    return runs


def _of(claim: str, ranks: Sequence[Checked]) -> list[Any]:
    return [list(rank[claim]) for rank in ranks if claim in rank]


def across_ranks(claim: str, ranks: Sequence[Checked]) -> str:
    """equal or different; own, where each has another reference; one, if one checks."""
    found = [rank[claim] for rank in ranks if claim in rank]
    if len(found) < 2:
        return "one"
    if any(theirs != found[0][1] for _, theirs in found):
        return "own"
    same = all(values == found[0][0] for values, _ in found)
    return "equal" if same else "different"


def across_p(claim: str, runs: Mapping[int, Sequence[Checked]]) -> Any:
    """The numbers of ranks that give the same bits, together; or why none compare.

    Runs on other numbers of ranks compute the same thing if what they are compared
    with is the same, to the bit.
    """
    found = {
        p: next(rank[claim] for rank in ranks if claim in rank)
        for p, ranks in runs.items()
        if any(claim in rank for rank in ranks)
    }
    references = [theirs for _, theirs in found.values()]
    if len(found) < 2:
        return "one"
    if not any(references[0]):
        return "none"
    if any(theirs != references[0] for theirs in references):
        shapes = {tuple(d.partition(":")[0] for d in theirs) for theirs in references}
        return "other" if len(shapes) == 1 else "parts"
    groups: dict[tuple[str, ...], list[int]] = {}
    for p, (values, _) in sorted(found.items()):
        groups.setdefault(tuple(values), []).append(p)
    return list(groups.values())


def keep(root: Path, technique: str, found: Found) -> Path:
    """Write it down, with the day."""
    made = {"recorded": datetime.now(UTC).date().isoformat(), **found}
    path = root / PLACE / f"{technique}.json"
    write_text(path, compact(json.dumps(made, indent=1, sort_keys=True) + "\n"))
    return path
