"""Does a technique give the same bits: three questions, answered by runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atlas.taxonomy import Technique
from atlas.views.context import Context
from atlas.views.words import listing

YES, NO, NEITHER = "yes", "no", "does not apply"
#: Why runs on other numbers of ranks cannot be compared, the most telling first.
UNLIKE = {
    "other": "the reference itself depends on p",
    "parts": "each rank checks a part, whose size depends on p",
    "one": "it ran on one number of ranks only",
    "none": "nothing is compared with one process",
}


@dataclass(frozen=True)
class Answer:
    """A question, its answer, and what was seen."""

    question: str
    answer: str
    reason: str


def of(ctx: Context, technique: Technique) -> list[Answer]:
    """Its answers, if it was asked."""
    found = ctx.determinism.get(technique.id)
    return answers(found) if found else []


def answers(found: Mapping[str, Any]) -> list[Answer]:
    """Of one technique, from what was kept."""
    values, ranks = found["values"], found["ranks"]
    return [
        _ranks(values, max(ranks)),
        _runs(values, max(ranks)),
        _p(values, ranks),
    ]


def _ranks(values: Mapping[str, Any], p: int) -> Answer:
    asked = "across ranks"
    apart = [claim for claim, v in values.items() if v["ranks"] == "different"]
    equal = [claim for claim, v in values.items() if v["ranks"] == "equal"]
    if apart:
        return Answer(asked, NO, f"the ranks' bits of {listing(apart)} differ")
    if equal:
        return Answer(asked, YES, f"all {p} ranks: {listing(equal)}")
    if any(v["ranks"] == "own" for v in values.values()):
        return Answer(asked, NEITHER, "each rank checks values of its own")
    return Answer(asked, NEITHER, "only one rank checks values")


def _runs(values: Mapping[str, Any], p: int) -> Answer:
    asked = "across runs"
    apart = [claim for claim, v in values.items() if not v["runs"]]
    if apart:
        return Answer(asked, NO, f"a second run gave other bits of {listing(apart)}")
    return Answer(asked, YES, f"two runs on {p} ranks: {listing(values)}")


def _p(values: Mapping[str, Any], ranks: list[int]) -> Answer:
    asked = "across p"
    shared = {claim: v["p"] for claim, v in values.items() if v["ranks"] != "own"}
    compared = {claim: p for claim, p in shared.items() if isinstance(p, list)}
    if not shared:
        return Answer(asked, NEITHER, "each rank checks values of its own")
    if not compared:
        seen = set(shared.values())
        why = next(why for kind, why in UNLIKE.items() if kind in seen)
        return Answer(asked, NEITHER, why)
    counts = listing(ranks)
    apart = {claim: groups for claim, groups in compared.items() if len(groups) > 1}
    if not apart:
        return Answer(asked, YES, f"{counts} ranks: {listing(compared)}")
    together = [max(groups, key=len) for groups in apart.values()]
    alike = together[0]
    if len(alike) > 1 and all(group == alike for group in together):
        some = f"only for p = {listing(alike)}"
        return Answer(asked, some, f"{listing(apart)}, of {counts} ranks")
    why = f"{listing(apart)}: on {counts} ranks equal only to rounding"
    return Answer(asked, NO, why)
