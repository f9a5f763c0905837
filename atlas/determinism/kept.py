"""What was found of each technique: measurements/studies/determinism/NAME.json."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from atlas.record import source_hash
from atlas.taxonomy import Atlas, Technique

PLACE = Path("measurements") / "studies" / "determinism"

Found = dict[str, Any]


def read(root: Path) -> dict[str, Found]:
    """By technique, as kept."""
    files = sorted((root / PLACE).glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}


def stale(root: Path, technique: Technique, found: Found) -> bool:
    """Whether the exemplar has changed since."""
    return bool(found["source"] != source_hash(root, technique))


def written(atlas: Atlas) -> list[Technique]:
    """The techniques that have an exemplar."""
    every = atlas.techniques.values()
    return [t for t in every if (atlas.root / t.exemplar).is_file()]


def missing(atlas: Atlas) -> Iterator[Technique]:
    """Those whose present exemplar has not been asked."""
    kept = read(atlas.root)
    for t in written(atlas):
        if t.id not in kept or stale(atlas.root, t, kept[t.id]):
            yield t
