"""What a check of the reader's own code shows, as plain values."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from atlas.check.checking import Result
from atlas.check.parts import Kept, Outcome

#: Where the page of bugs explains a diagnosis.
BUGS = "bugs/"


@dataclass(frozen=True)
class Screen:
    """One screen: a verdict, then labeled lines."""

    holds: bool
    verdict: str
    lines: Sequence[tuple[str, str]]


def explained(root: Path) -> set[str]:
    """The diagnoses that a bug of the atlas explains; reads no file whole."""
    word = "diagnosis: "
    lines = [
        line
        for file in (root / "taxonomy" / "bugs").glob("*.yaml")
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    return {line.removeprefix(word) for line in lines if line.startswith(word)}


def screen(found: Result, known: Set[str] = frozenset()) -> Screen:
    """The answer to "is it right?"; `known` are diagnoses that a page explains."""
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
    if found.bug in known:
        lines.append(("see", f"{BUGS}#{found.bug}"))
    verdict = (
        f"differs: {found.script} on {_ranks(found.ranks)} is not what it is on one"
    )
    return Screen(False, f"{verdict} process", [*lines, *left])


def part_screen(found: Kept) -> Screen:
    """Whether a part keeps its contract, and the smallest case that it breaks."""
    outcomes = found.outcomes
    counts = sorted({o.ranks for o in outcomes})
    cases = dict.fromkeys(o.case for o in outcomes)
    tried = f"{len(cases)} cases on {', '.join(map(str, counts))} ranks"
    refused = list(dict.fromkeys(o.case for o in outcomes if o.kind == "refused"))
    lines = [("contract", found.says), ("tried", tried)]
    if refused:
        lines.append(("refused", f"{', '.join(refused)} (an error, which is allowed)"))
    lines += _bytes(outcomes)
    bad = found.smallest
    if bad is None:
        return Screen(True, f"holds: {found.part} keeps {found.contract}", lines)
    broken = list(dict.fromkeys(o.case for o in outcomes if not o.ok))
    lines += [
        ("broken", ", ".join(broken)),
        ("smallest", f"{bad.case} on {_ranks(bad.ranks)}: {bad.kind}, {bad.says}"),
    ]
    if bad.trace:
        lines.append(("where", bad.trace.rstrip()))
    return Screen(False, f"broken: {found.part} does not keep {found.contract}", lines)


def _bytes(outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
    """What the largest case sent, beside the least that is possible."""
    counted = [o for o in outcomes if o.kind == "holds" and o.least and o.sent]
    if not counted:
        return []
    most = max(counted, key=lambda o: (o.ranks, o.sent))
    text = f"{most.sent:,} bytes by all ranks in {most.case} on {_ranks(most.ranks)}"
    return [("sent", f"{text}; the least possible is {most.least:,}")]


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
