"""The techniques of the atlas that a run is most like, and how it differs from each."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atlas import record
from atlas.classify import kept

#: More calls than this in a step, each small, are worth fusing into fewer.
MANY, SMALL = 8, 1_000_000
FACETS = ("topology", "consistency", "pipelining")


@dataclass(frozen=True)
class Near:
    """A technique and a sentence on what is different."""

    technique: str
    differs: str


def nearest(report: Mapping[str, Any], root: Path, most: int = 3) -> list[Near]:
    """The closest first: by facets, then by the operations that both use."""
    ops = {row["op"] for row in report["rows"]} - {"barrier"}
    scored = []
    for name, found in kept.read(root).items():
        seen = _facets(found)
        same = [f for f in FACETS if _family(report, f) == seen[f] is not None]
        if "topology" in same and len(same) > 1:
            used = _operations(root, name)
            common = len(ops & used) / max(1, len(ops | used))
            scored.append(((-len(same), -common, name), name, seen, used))
    return [
        Near(name, _differs(report, ops, seen, used))
        for _, name, seen, used in sorted(scored, key=lambda s: s[0])[:most]
    ]


def _facets(found: Mapping[str, Any]) -> dict[str, str | None]:
    from atlas.classify.shape import families

    shapes = found["topology"]["shapes"]
    told: dict[str, str | None] = {f: found[f]["family"] for f in FACETS[1:]}
    return told | {"topology": families(shapes)[0] if shapes else None}


def _family(report: Mapping[str, Any], facet: str) -> str | None:
    answer = report["classification"].get(facet)
    return answer["family"] if answer else None


def _operations(root: Path, name: str) -> set[str]:
    """What its recorded runs call."""
    found = record.read(root, "gloo", name)
    runs = found["runs"] if found else []
    calls = (rank.get("calls", {}) for run in runs for rank in run["ranks"])
    return {op for each in calls for op in each} - {"barrier"}


def _differs(
    report: Mapping[str, Any], ops: set[str], seen: Mapping[str, Any], used: set[str]
) -> str:
    parts = [
        f"{facet} is {_family(report, facet)}, not {seen[facet]}"
        for facet in FACETS
        if _family(report, facet) is not None and _family(report, facet) != seen[facet]
    ]
    if more := sorted(ops - used):
        parts.append(f"it also uses {', '.join(more)}")
    if less := sorted(used - ops):
        parts.append(f"it does not use {', '.join(less)}")
    return "; ".join(parts) or "the same operations and the same place"


def advice(report: Mapping[str, Any]) -> list[str]:
    """What the counts themselves suggest."""
    lines = []
    for row in report["rows"]:
        each, calls = row["per_step"][0], max(row["calls"])
        if row["op"] != "all_reduce" or each is None or each <= MANY:
            continue
        if max(row["payload"]) / calls < SMALL:
            lines.append(
                f"{each:g} all-reduces a step from {row['site']}, each of one small "
                "tensor: see tensor-fusion"
            )
    return lines
