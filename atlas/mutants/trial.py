"""One mutation on trial: it is killed by a claim, an error, a refusal or the deadline.

It runs on 2, 3, 4 ranks and on one, and the first count that kills it ends the
trial. Some mistakes do not show on two ranks, where left and right are the same
neighbor; some show only where a rank has no neighbor at all.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from atlas.launch import LaunchError
from atlas.measure import measure
from atlas.taxonomy import Technique
from atlas.verdict import failed, judge

RANKS = (2, 3, 4, 1)
#: Seconds for a mutation that hangs, which is killed by it. Honest runs take one;
#: where they take longer, `patience` gives them more.
DEADLINE = 4.0
#: Where the machine is busy, an honest run is given this many times its seconds.
PATIENCE = 5.0


@dataclass(frozen=True)
class Outcome:
    """How a trial ended: `by` is empty where every claim held at every count."""

    by: str = ""
    ranks: int = 0
    said: str = ""

    @property
    def killed(self) -> bool:
        """Whether something noticed."""
        return bool(self.by)


def counts(technique: Technique) -> tuple[int, ...]:
    """The rank counts that a mutation of this technique is tried on."""
    low, high = technique.min_ranks, technique.max_ranks
    found = [p for p in RANKS if p >= low and (high is None or p <= high)]
    return tuple(found) or (low,)


def trial(
    technique: Technique,
    source: str,
    deadline: float = DEADLINE,
    ranks: Sequence[int] | None = None,
) -> Outcome:
    """Run a source on each rank count until something fails."""
    for p in counts(technique) if ranks is None else ranks:
        found = _once(technique, source, p, deadline)
        if found.killed:
            return found
    return Outcome()


def _once(technique: Technique, source: str, p: int, deadline: float) -> Outcome:
    try:
        run = measure(technique, p, source=source, timeout=deadline)
        wrong = failed(judge(technique, run))
    except LaunchError as error:
        by = "refusal" if error.refused else "error"
        if error.summary.startswith("no end after"):
            by = "deadline"
        return Outcome(by, p, error.summary)
    except Exception as error:
        # It ran, but what it reported cannot be held against the claims.
        return Outcome("claims", p, f"{type(error).__name__}: {error}")
    return Outcome("claims", p, ", ".join(wrong)) if wrong else Outcome()


class BrokenError(Exception):
    """The exemplar fails without any mutation: nothing can be learned from it."""


def seconds(technique: Technique, source: str, deadline: float = 60.0) -> float:
    """How long the slowest honest run takes; BrokenError where it does not hold."""
    slowest = 0.0
    for p in counts(technique):
        start = time.monotonic()
        found = _once(technique, source, p, deadline)
        if found.killed:
            what = f"{technique.id} fails on {p} ranks without any mutation"
            raise BrokenError(f"{what}: {found.said}")
        slowest = max(slowest, time.monotonic() - start)
    return slowest


def patience(honest: float) -> float:
    """The deadline of a technique's mutations, from what an honest run takes."""
    return max(DEADLINE, PATIENCE * honest)
