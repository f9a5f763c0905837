"""What a technique's file declares, held against what its runs showed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from atlas.classify.holding import share
from atlas.classify.shape import families
from atlas.taxonomy import Atlas, Technique

#: Ledger category -> kind of state; what lives in a slow memory is elsewhere.
KINDS = {
    "parameters": "parameters",
    "weights": "parameters",
    "tables": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "activations": "activations",
    "tokens": "samples",
    "fast_weights": "parameters",
    "fast_gradients": "gradients",
    "slow_master": "optimizer",
    "slow_moments": "optimizer",
}
STATE = ("parameters", "gradients", "optimizer", "activations", "samples")
#: What a rank holds under a family: the bytes that tell it from its neighbors.
SIGNS = {
    "replicated": ("parameters", "whole"),
    "sharded": ("optimizer", "1/p"),
    "intra-layer": ("parameters", "1/p"),
    "inter-layer": ("parameters", "1/p"),
    "expert-and-embedding": ("parameters", "1/p"),
    "within-sample": ("samples", "1/p"),
    "memory-tiers": ("optimizer", "elsewhere"),
}


@dataclass(frozen=True)
class Judged:
    """A facet or a kind of state: what is declared of it, and what was measured."""

    what: str
    declared: str
    measured: str | None  # None: a run cannot tell
    evidence: str

    @property
    def ok(self) -> bool | None:
        """Whether they agree; None where nothing was measured."""
        if self.measured is None:
            return None
        return self.declared in self.measured.split(" or ")


def judge(atlas: Atlas, t: Technique, found: Mapping[str, Any]) -> Iterator[Judged]:
    """Every facet that the technique declares, then who holds what."""
    for path in (f"{t.axis}/{t.family}", *(f"{a}/{f}" for a, f in t.also.items())):
        family = atlas.families[path]
        unseen = [why for facet, why in t.unseen.items() if facet == family.facet]
        if unseen:
            yield Judged(family.facet, family.id, None, unseen[0])
        elif family.facet == "topology":
            yield _topology(family.id, found["topology"])
        elif family.facet in ("consistency", "pipelining", "credit"):
            seen = found[family.facet]
            yield Judged(family.facet, family.id, seen["family"], seen["evidence"])
    yield _location(t, found)
    holds = list(_holds(t, found["held"]))
    yield from holds
    yield from _home(atlas, t, holds)


def _location(t: Technique, found: Mapping[str, Any]) -> Judged:
    """Where the optimizer is: told by the weights that consistency is told by, too."""
    seen = found["optimizer"]
    if "consistency" in t.unseen:
        why = t.unseen["consistency"]
        return Judged("location", t.optimizer, None, why)
    return Judged("location", t.optimizer, seen["family"], seen["evidence"])


def _home(atlas: Atlas, t: Technique, holds: list[Judged]) -> Iterator[Judged]:
    """Its home on the axis of distribution, by the bytes that are its sign."""
    kind, word = SIGNS.get(t.family, ("", ""))
    facet = atlas.families[f"{t.axis}/{t.family}"].facet
    for j in holds:
        if j.what == kind and j.measured is not None:
            seen = t.family if j.measured == word else f"{kind} {j.measured}"
            yield Judged(facet, t.family, seen, f"{kind}: {j.evidence}")


def _topology(declared: str, seen: Mapping[str, Any]) -> Judged:
    shapes = seen["shapes"]
    if not shapes:
        return Judged("topology", declared, None, "no message was sent")
    told = "messages: " + ", ".join(shapes)
    return Judged("topology", declared, " or ".join(families(shapes)), told)


def _holds(t: Technique, held: Mapping[str, Mapping[str, int]]) -> Iterator[Judged]:
    if t.holds is None:
        return
    fewer, more = (held[p] for p in sorted(held, key=int))
    totals: dict[str, tuple[int, int, bool]] = {}
    for name, size in fewer.items():
        kind = KINDS.get(name)
        if kind is None or (kind == "gradients" and "tokens" in fewer):
            continue  # of the tokens: there are no weights
        a, b, slow = totals.get(kind, (0, 0, False))
        slow = slow or name.startswith("slow_")
        totals[kind] = (a + size, b + more.get(name, 0), slow)
    for kind in STATE:
        declared: str = getattr(t.holds, kind)
        a, b, slow = totals.get(kind, (0, 0, False))
        if (not a and not b) or declared in ("recomputed", "none"):
            yield Judged(kind, declared, None, "its bytes do not tell")
            continue
        if slow or declared == "elsewhere":
            word = "elsewhere" if slow else None
            yield Judged(kind, declared, word, "kept in a memory of its own")
            continue
        grown = a * 2 if kind in t.holds.grows else a
        told = f"{a:,} bytes, and {b:,} on twice the ranks"
        told += " for twice as much" if kind in t.holds.grows else ""
        yield Judged(kind, declared, share(grown, b), told)
