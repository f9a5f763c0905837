"""Mutations that change nothing that is claimed, each with the reason why.

    # tests/mutants/equivalent/gpipe.yaml
    - id: "8698e9b8f0"
      diff: "self.most_kept = 0  ->  self.most_kept = 1"
      reason: At least one micro-batch is always kept, so the maximum is the same.

An id that no mutation has any more is an error, and so is a text that is not its own.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from atlas.mutants.mutations import Mutation

FOLDER = Path("tests") / "mutants" / "equivalent"
KEYS = ("id", "diff", "reason")


class EquivalentError(Exception):
    """The list of equivalent mutations does not fit the exemplar any more."""


def listed(root: Path, technique: str) -> dict[str, str]:
    """Id -> reason, of one technique."""
    path = root / FOLDER / f"{technique}.yaml"
    return {entry["id"]: entry["reason"] for entry in _entries(path)}


def check(root: Path, technique: str, mutations: Iterable[Mutation]) -> None:
    """Every entry names a mutation that exists, once, and shows it as it is."""
    path = root / FOLDER / f"{technique}.yaml"
    known = {m.id: f"{m.was}  ->  {m.now}" for m in mutations}
    seen: set[str] = set()
    for entry in _entries(path):
        place = f"{FOLDER / path.name}: {entry['id']}"
        if entry["id"] not in known:
            raise EquivalentError(f"{place}: no mutation of {technique} has this id")
        if entry["id"] in seen:
            raise EquivalentError(f"{place}: listed twice")
        if entry["diff"] != known[entry["id"]]:
            what = f"is {known[entry['id']]!r}, not {entry['diff']!r}"
            raise EquivalentError(f"{place}: its diff {what}")
        seen.add(entry["id"])


def draft(survived: Iterable[tuple[str, Mutation]]) -> str:
    """Entries without their reasons, as the files want them; comments say where."""
    lines: list[str] = []
    last = ""
    for technique, m in survived:
        if technique != last:
            lines.append(f"\n# {FOLDER / technique}.yaml")
            last = technique
        diff = json.dumps(f"{m.was}  ->  {m.now}", ensure_ascii=False)
        lines.append(f"# {m.where}:{m.line}: {m.kind}")
        lines += [f'- id: "{m.id}"', f"  diff: {diff}", "  reason: >-"]
    return "\n".join(lines)


def strays(root: Path, techniques: Iterable[str]) -> list[str]:
    """Files of techniques that do not exist."""
    known = set(techniques)
    files = sorted((root / FOLDER).glob("*.yaml"))
    return [f.name for f in files if f.stem not in known]


def _entries(path: Path) -> list[Mapping[str, str]]:
    if not path.is_file():
        return []
    found = yaml.safe_load(path.read_text(encoding="utf-8")) or []
    for entry in found:
        texts = isinstance(entry, dict) and all(
            isinstance(v, str) and v.strip() for v in entry.values()
        )
        if not texts or set(entry) != set(KEYS):
            what = f"{FOLDER / path.name}: an entry has {', '.join(KEYS)}, each a text"
            raise EquivalentError(f"{what}; not {entry!r}")
    return list(found)
