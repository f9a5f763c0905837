"""Holds what a run measured against what was claimed: predicted, measured, verdict.

A claim is bound by its id to a value that the exemplar reported, to a check it
made, or to a figure derived from all ranks' traces. The arguments of its
formula come by name from p, r and what the exemplar says was given.
"""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from atlas.formulas import FORMULAS
from atlas.taxonomy import Claim, Technique

Run = Mapping[str, Any]


class ClaimError(Exception):
    """Claims and measurements do not fit together: one has no partner."""


@dataclass(frozen=True)
class Verdict:
    """One claim on one rank (None: on the whole run). ok None: not judged here."""

    claim: str
    says: str
    kind: str
    rank: int | None
    predicted: float | None
    measured: Any
    ok: bool | None
    note: str = ""


def judge(technique: Technique, run: Run) -> list[Verdict]:
    """Every claim of the technique against this run."""
    complain_of_strays(technique, run)
    verdicts = []
    for claim in technique.claims:
        if claim.per == "run":
            verdicts.append(_of_run(claim, run))
        else:
            verdicts += [_of_rank(claim, run, rank) for rank in run["ranks"]]
    return verdicts


def failed(verdicts: Iterable[Verdict]) -> list[str]:
    """The claims that do not hold, each once, in order."""
    return list(dict.fromkeys(v.claim for v in verdicts if v.ok is False))


def predict(claim: Claim, p: int, given: Mapping[str, float], r: int = 0) -> float:
    """What the claim's formula says."""
    assert claim.formula is not None
    return _value(claim.formula, p, given, r)


def _value(formula: str, p: int, given: Mapping[str, float], r: int) -> float:
    values: dict[str, float] = {**given, "ranks": p, "rank": r}
    return FORMULAS[formula](**{name: values[name] for name in _asked(formula)})


def _asked(formula: str | None) -> tuple[str, ...]:
    """The names that a formula asks for."""
    if formula is None:
        return ()
    return tuple(inspect.signature(FORMULAS[formula]).parameters)


def arguments(claim: Claim) -> tuple[str, ...]:
    """The names that the claim's formulas ask for, each once."""
    return tuple(dict.fromkeys((*_asked(claim.formula), *_asked(claim.floor))))


def complain_of_strays(technique: Technique, run: Run) -> None:
    """A missing or surplus name is an error, on either side."""
    wanted = {n for c in technique.claims for n in arguments(c)} - {"ranks", "rank"}
    given, sizes = set(run["given"]), set(run.get("sizes", ()))
    reported = {
        n for rank in run["ranks"] for n in (*rank["measured"], *rank["checks"])
    }
    claimed = {c.id for c in technique.claims}
    strays = {
        "given but no formula takes it": given - sizes - wanted,
        "taken by a formula but not given": wanted - given,
        "measured but not claimed": reported - claimed,
    }
    for what, names in strays.items():
        if names:
            raise ClaimError(f"{technique.id}: {what}: {', '.join(sorted(names))}")


def _of_rank(claim: Claim, run: Run, rank: Mapping[str, Any]) -> Verdict:
    r = rank["rank"]
    if claim.kind in ("equal", "close"):
        return _check(claim, r, [rank["checks"].get(claim.id)], run)
    measured = rank["measured"].get(claim.id)
    if measured is None and claim.id in run["derived"]:
        measured = run["derived"][claim.id][r]
    return _number(claim, run, r, measured)


def _of_run(claim: Claim, run: Run) -> Verdict:
    if claim.kind in ("equal", "close"):
        found = [k["checks"][claim.id] for k in run["ranks"] if claim.id in k["checks"]]
        return _check(claim, None, found, run)
    return _number(claim, run, None, _agreed(claim, run))


def _agreed(claim: Claim, run: Run) -> Any:
    """The run's one value: derived, or what those ranks say that know it."""
    said = {k["measured"][claim.id] for k in run["ranks"] if claim.id in k["measured"]}
    if len(said) > 1:
        raise ClaimError(f"{claim.id}: the ranks disagree: {sorted(said)}")
    return next(iter(said), run["derived"].get(claim.id))


def _check(claim: Claim, r: int | None, checks: list[Any], run: Run) -> Verdict:
    head = (claim.id, claim.says, claim.kind, r, None)
    if run.get("mode") == "dry":
        return Verdict(*head, None, None, "a dry run has no values")
    if not checks or None in checks:
        return Verdict(*head, None, False, "claimed but not checked")
    worst = max(checks, key=lambda c: (not c["ok"], c["error"]))
    if claim.kind == "equal" and worst["limit"] != 0:
        return Verdict(
            *head, worst["error"], False, "claimed equal, checked with slack"
        )
    limit = "" if claim.kind == "equal" else f"at most {worst['limit']:.2g}"
    return Verdict(*head, worst["error"], worst["ok"], limit)


def _number(claim: Claim, run: Run, r: int | None, measured: Any) -> Verdict:
    head = (claim.id, claim.says, claim.kind, r)
    predicted = None
    if claim.formula is not None:
        predicted = predict(claim, run["p"], run["given"], r or 0)
    if measured is None:
        if run.get("mode") == "dry":
            return Verdict(*head, predicted, None, None, "needs every rank's trace")
        note = run["derived"].get("error", "claimed but not measured")
        return Verdict(*head, predicted, None, False, note)
    match claim.kind:
        case "exact":
            return Verdict(*head, predicted, measured, measured == predicted)
        case "bound":
            assert predicted is not None
            least = -inf
            if claim.floor is not None:
                least = _value(claim.floor, run["p"], run["given"], r or 0)
            note = "" if claim.floor is None else f"at least {least:g}"
            ok = least <= measured <= predicted
            return Verdict(*head, predicted, measured, ok, note)
        case "statistical":
            assert claim.band is not None
            low, high = claim.band
            note = f"between {low:g} and {high:g}"
            if run.get("mode") == "dry":
                return Verdict(*head, predicted, None, None, "a dry run has no values")
            return Verdict(*head, predicted, measured, low <= measured <= high, note)
    raise ClaimError(f"{claim.id}: a claim of kind {claim.kind!r} needs a check")
