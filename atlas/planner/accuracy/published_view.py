"""Published runs beside the oracle's predictions, as values for page and terminal."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from atlas.planner.accuracy.published import (
    CHOICES,
    SHORTLIST,
    Judged,
    RunSet,
    Summary,
    band,
    judged,
    judged_alone,
    layouts,
    read,
    share_within,
    summary,
)

__all__ = ["HEADS", "Line", "Shown", "plain", "view"]

HEADS = (
    *("set", "rows", "error", "bias", "correlation", "in its band"),
    *("in the others' band", "first choice", "best of five", "memory", "refused"),
)
#: What the oracle aims at, on every set, with nothing tuned on it.
ERROR, REGRET, MEMORY = 0.12, 0.05, 0.08


class Line(NamedTuple):
    """One set, or the rows of it that a constant was fitted on."""

    set: str
    link: str
    cells: tuple[str, ...]
    worst: str
    figures: Summary
    others: float | None  # share inside the band that the other sets make
    fitted: bool


class Shown(NamedTuple):
    """All sets, goals reached and missed, and what was assumed."""

    lines: tuple[Line, ...]
    goals: tuple[str, ...]
    notes: tuple[str, ...]


def view(root: Path) -> Shown:
    """Judge every set."""
    rows = {one: judged(one) for one in read(root)}
    alone = {one: judged_alone(found) for one, found in rows.items()}
    lines = []
    for one, found in rows.items():
        if alone[one]:
            rest = [r for o, r in alone.items() if o != one and _alike(o, one)]
            held = share_within(alone[one], band(rest))
            lines.append(_line(one, alone[one], held, fitted=False))
        if seen := [row for row in found if row.fitted]:
            lines.append(_line(one, seen, None, fitted=True))
    notes = (*_layouts(root), *_notes(rows))
    return Shown(tuple(lines), tuple(_goals(lines)), notes)


def _layouts(root: Path) -> Iterator[str]:
    """Layouts that ran, of which nobody said how long they took: do they fit?"""
    for one in layouts(root):
        rows = judged(one)
        refused = [
            f"{row.run.model} as {row.run.strategy}"
            for row in rows
            if not row.predicted.fits
        ]
        says = f"{len(rows) - len(refused)} of {len(rows)} layouts that ran fit"
        more = f"; refused: {', '.join(refused)}" if refused else ""
        left = f" ({one.assumed})" if one.assumed else ""
        yield f"{one.id}: {says}{more}{left}"


def _alike(a: RunSet, b: RunSet) -> bool:
    """Sets of one device: a100-40g and a100-80g."""
    return a.cluster.partition("-")[0] == b.cluster.partition("-")[0]


def _line(
    one: RunSet, rows: Sequence[Judged], others: float | None, *, fitted: bool
) -> Line:
    found = summary(one.id, rows)
    name = f"{one.id}, fitted on" if fitted else one.id
    first, five = found.regret or (None, None)
    cells = (
        name,
        str(found.rows),
        f"{found.error:.1%}",
        f"{found.bias:+.1%}",
        f"{found.correlation:.3f}",
        f"{found.held:.0%}",
        _share(others, 0),
        _share(first),
        _share(five),
        _share(found.memory),
        str(found.refused),
    )
    return Line(name, one.link, cells, _row(found.worst), found, others, fitted)


def _share(x: float | None, digits: int = 1) -> str:
    return "" if x is None else f"{x:.{digits}%}"


def _row(row: Judged) -> str:
    run = row.run
    return (
        f"{row.ratio:.2f} {run.model}, {run.tokens} tokens, {run.strategy}, batch "
        f"{run.batch}, micro-batch {run.micro_batch} (line {run.line})"
    )


def _goals(lines: Sequence[Line]) -> Iterator[str]:
    judged_ = [line for line in lines if not line.fitted]
    for what, goal, figure in (
        ("mean error", ERROR, lambda f: f.error),
        ("regret of the best of five", REGRET, lambda f: f.regret and f.regret[1]),
        ("mean error of memory", MEMORY, lambda f: f.memory),
        ("real layouts refused", 0, lambda f: f.refused),
    ):
        found = [(line.set, figure(line.figures)) for line in judged_]
        known = [(name, x) for name, x in found if x is not None]
        missed = [name for name, x in known if x > goal]
        limit = f"at most {goal:.0%}" if goal else "none"
        says = f"missed on {', '.join(missed)}" if missed else "reached"
        good = f"{len(known) - len(missed)} of {len(known)} sets"
        yield f"{what}, {limit}: {good}; {says}"


def _notes(rows: dict[RunSet, tuple[Judged, ...]]) -> Iterator[str]:
    for one, found in rows.items():
        fitted = sum(row.fitted for row in found)
        if fitted:
            yield f"{one.id}: constants of the presets were fitted on {fitted} rows"
        if one.assumed:
            yield f"{one.id}: assumed {one.assumed}"
    yield (
        f"a choice is judged where a set has {CHOICES} layouts or more of one model, "
        f"batch and number of devices; the shortlist is of {SHORTLIST}"
    )
    yield "nobody published which of these layouts ran out of memory"


def plain(shown: Shown) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "sets": [
            {
                "set": line.set,
                "source": line.link,
                "fitted": line.fitted,
                **{
                    name: getattr(line.figures, name)
                    for name in (
                        *("rows", "error", "bias", "correlation", "held"),
                        *("refused", "regret", "questions", "memory"),
                    )
                },
                "held_by_others": line.others,
                "worst": line.worst,
            }
            for line in shown.lines
        ],
        "goals": list(shown.goals),
        "notes": list(shown.notes),
    }
