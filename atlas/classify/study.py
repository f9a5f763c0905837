"""Classifies every exemplar by its runs; measurements/studies/classification/."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from atlas import taxonomy
from atlas.classify.answers import classify
from atlas.classify.kept import PLACE, Found, read
from atlas.classify.watch import fullest, watched
from atlas.record import compact, source_hash, write_text
from atlas.taxonomy import Atlas, Technique

#: Four ranks tell a ring from a line; eight tell it from a hypercube as well.
FEWER, MORE = 4, 8


def place(technique: Technique, root: Path) -> Found:
    """What runs on four and on eight ranks tell of it, as plain data."""
    sizes = technique.holds.sizes if technique.holds else {}
    runs = {p: watched(technique, p, **sizes) for p in (FEWER, MORE)}
    seen = classify([rank["events"] for rank in runs[MORE]])
    return {
        "source": source_hash(root, technique),
        "ranks": [FEWER, MORE],
        **asdict(seen),
        "held": {str(p): fullest(ranks) for p, ranks in runs.items()},
    }


def written(atlas: Atlas) -> list[Technique]:
    """The techniques that have an exemplar and run on so many ranks."""
    return [
        t
        for t in atlas.techniques.values()
        if (atlas.root / t.exemplar).is_file()
        and t.min_ranks <= FEWER
        and (t.max_ranks is None or t.max_ranks >= MORE)
    ]


def keep(root: Path, technique: str, found: Found) -> Path:
    """Write it down, with the day."""
    made = {"recorded": datetime.now(UTC).date().isoformat(), **found}
    text = json.dumps(made, indent=1, sort_keys=True) + "\n"
    path = root / PLACE / f"{technique}.json"
    write_text(path, compact(text))
    return path


def stale(atlas: Atlas) -> Iterator[str]:
    """Recorded techniques whose exemplar is not the one that was classified."""
    kept = read(atlas.root)
    for t in written(atlas):
        if not (atlas.root / "measurements" / "gloo" / f"{t.id}.json").is_file():
            continue
        if kept.get(t.id, {}).get("source") != source_hash(atlas.root, t):
            yield t.id


def chosen(atlas: Atlas, names: Iterable[str]) -> list[Technique]:
    """The named ones, or all."""
    named = set(names)
    return [t for t in written(atlas) if not named or t.id in named]


def main(names: list[str]) -> int:
    """Classify and keep; progress on one line."""
    atlas = taxonomy.load()
    todo = chosen(atlas, names)
    for n, technique in enumerate(todo, 1):
        print(f"\r\033[K{n} of {len(todo)}: {technique.id}", end="", flush=True)
        keep(atlas.root, technique.id, place(technique, atlas.root))
    print(f"\r\033[Kkept in {PLACE}: {len(todo)} techniques")
    return 0
