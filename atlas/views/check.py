"""What a check of the reader's own code shows, as plain values."""

from collections.abc import Sequence
from dataclasses import dataclass

from atlas.check.checking import Result

#: Where the page of bugs explains a diagnosis.
BUGS = "bugs/"


@dataclass(frozen=True)
class Screen:
    """One screen: a verdict, then labeled lines."""

    holds: bool
    verdict: str
    lines: Sequence[tuple[str, str]]


def screen(found: Result) -> Screen:
    """The answer to "is it right?"."""
    compared = f"{found.tensors} tensors at {found.steps} optimizer steps"
    left = [("not compared", ", ".join(found.unmatched))] if found.unmatched else []
    if found.difference is None:
        return Screen(
            True,
            f"holds: {found.script} on {_ranks(found.ranks)} does what it does on one "
            "process",
            [
                ("compared", compared),
                ("largest", f"{found.share:.0%} of what rounding explains"),
                *left,
            ],
        )
    d = found.difference
    others = f" and {d['others']} more" if d["others"] else ""
    between = "the ranks differ from each other too" if d["apart"] else "alike on all"
    lines = [
        ("first", f"{moment(d['kind'], d['step'])}: {d['tensor']}{others}"),
        ("off by", f"{size(d['error'])}; rounding explains {size(d['limit'])}"),
        ("on", f"ranks {', '.join(map(str, d['ranks']))} ({between})"),
        ("diagnosis", found.says or "none of the known mistakes fits the evidence"),
    ]
    if found.bug:
        lines.append(("see", f"{BUGS}#{found.bug}"))
    verdict = (
        f"differs: {found.script} on {_ranks(found.ranks)} is not what it is on one"
    )
    return Screen(False, f"{verdict} process", [*lines, *left])


def moment(kind: str, step: int) -> str:
    """When it was: weights are seen before a step, so after the one before it."""
    if kind == "gradient":
        return f"step {step}, gradient"
    return f"after step {step - 1}, weights" if step else "before step 0, weights"


def size(relative: float) -> str:
    """A relative distance: 0.31 %, or 2e-06."""
    return f"{relative:.2%}" if relative >= 1e-4 else f"{relative:.1e}"


def _ranks(count: int) -> str:
    return f"{count} ranks" if count != 1 else "1 rank"
