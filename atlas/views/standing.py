"""Where a system stands: its families, what of it was read, what is like it."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from atlas.taxonomy import Atlas, Relation, System
from atlas.views.context import Context
from atlas.views.proof import all_hold

ALIKE = 5  # how many a page shows
# What a relation is called on the other system's page.
REVERSED = {
    "derived-from": "basis of",
    "succeeds": "succeeded by",
    "implements": "implemented by",
    "compares-with": "compared by",
}
FORWARD = {
    "derived-from": "derived from",
    "succeeds": "succeeds",
    "implements": "implements",
    "compares-with": "compared with",
}


@dataclass(frozen=True)
class Place:
    """A family that a system is in, through techniques or by itself."""

    family: str
    verified: bool
    techniques: tuple[str, ...]


@dataclass(frozen=True)
class Like:
    """Another system, how much it shares, and which techniques."""

    system: str
    score: float
    shared: tuple[str, ...]


def by_age(atlas: Atlas) -> list[System]:
    """All systems, oldest first."""
    return sorted(atlas.systems.values(), key=lambda s: (s.year, s.name.lower(), s.id))


def places(atlas: Atlas, s: System) -> dict[str, list[Place]]:
    """Axis -> the families the system is in, in the order of the axis.

    Only what its file says: that a technique has coordinates on other axes does
    not put the system there.
    """
    read: dict[str, bool] = defaultdict(bool)
    through: dict[str, list[str]] = defaultdict(list)
    for use in s.uses:
        t = atlas.techniques[use.technique]
        family = f"{t.axis}/{t.family}"
        read[family] |= use.verified
        through[family].append(t.id)
    for cell in s.cells:
        read[cell.family] |= cell.verified
    return {
        axis.id: [
            Place(f.path, read[f.path], tuple(through[f.path]))
            for f in axis.families
            if f.path in read
        ]
        for axis in atlas.axes
    }


def homes(atlas: Atlas, s: System) -> set[str]:
    """The families the system is in, as `places` has them, without an order."""
    used = (atlas.techniques[use.technique] for use in s.uses)
    return {*(f"{t.axis}/{t.family}" for t in used), *(c.family for c in s.cells)}


def checks(s: System) -> Iterator[bool]:
    """For everything that needs a source: was it read?"""
    yield from (said.verified for said in s.statements)


def verified(s: System) -> tuple[int, int]:
    """How many statements were read in their source, of how many."""
    found = list(checks(s))
    return sum(found), len(found)


def holds(ctx: Context, technique: str) -> bool:
    """Was the technique run here, with every claim true?"""
    t = ctx.atlas.techniques[technique]
    return bool(ctx.runs(t.id, "gloo")) and all_hold(ctx, t, "gloo")


def proven(ctx: Context, s: System) -> tuple[int, int]:
    """How many of the techniques it uses were run here and hold, of how many."""
    return sum(holds(ctx, u.technique) for u in s.uses), len(s.uses)


def reverse(atlas: Atlas) -> dict[str, list[tuple[System, Relation]]]:
    """System -> who names it in a relation, oldest first."""
    out: dict[str, list[tuple[System, Relation]]] = defaultdict(list)
    for s in by_age(atlas):
        for relation in s.relations:
            out[relation.system].append((s, relation))
    return out


def likeness(atlas: Atlas) -> dict[str, list[Like]]:
    """System -> the systems most like it, best first.

    The share of what the two have in common in what they have together, over
    techniques and families; what few systems have weighs more.
    """
    has = {s.id: _marks(atlas, s) for s in atlas.systems.values()}
    spread = Counter(mark for marks in has.values() for mark in marks)
    weight = {mark: math.log(1 + len(has) / n) for mark, n in spread.items()}
    return {one: _nearest(one, has, weight) for one in has}


def _marks(atlas: Atlas, s: System) -> frozenset[str]:
    families = (p.family for on in places(atlas, s).values() for p in on)
    return frozenset([*(u.technique for u in s.uses), *families])


def _nearest(
    one: str, has: dict[str, frozenset[str]], weight: dict[str, float]
) -> list[Like]:
    found = []
    for other, marks in has.items():
        common = has[one] & marks
        if other == one or all("/" in m for m in common):  # families alone: no match
            continue
        shared = sorted(common)
        techniques = tuple(m for m in shared if "/" not in m)
        union = sum(weight[m] for m in sorted(has[one] | marks))
        score = round(sum(weight[m] for m in shared) / union, 6)
        found.append(Like(other, score, techniques))
    return sorted(found, key=lambda x: (-x.score, x.system))[:ALIKE]
