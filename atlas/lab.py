"""What the labs share: guesses held against answers, exercises against claims.

    guess = predict("tensors that the busiest rank sends", 1)
    seen = watch(star)                        # a function of a cell, on 4 ranks
    guess.against(max(seen.sent) / tensor, "Everyone sends to rank 0.")

    run = experiment("gpipe", microbatches=12)   # an exemplar with another size
    grade("gpipe", update=mine)               # its claims, on the reader's function

An exercise is graded by what the technique claims, and by nothing else: the
exemplar runs with the reader's function in the place of its own, and is compared
with a reference that has not seen it.
"""

import ast
import difflib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from atlas.arguments import arguments
from atlas.formulas import FORMULAS
from atlas.gpus import visible_gpus
from atlas.launch import LaunchError, launch
from atlas.measure import measure
from atlas.notebooks import COLOURS, GREY, figures, table
from atlas.script.latex import latex
from atlas.taxonomy import Atlas, Technique, load
from atlas.timeline import Timeline, rounds, virtual
from atlas.verdict import ClaimError, Verdict, judge

if TYPE_CHECKING:
    from IPython.display import Markdown
    from matplotlib.axes import Axes

    from exemplars.runtime import World

RANKS = 4
#: An exercise that hangs is known by its deadline; honest runs take a second.
DEADLINE = 30.0
#: Moments that a drawing of memory shows.
POINTS = 160


class LabError(Exception):
    """What the reader wrote cannot be used; one line says what would."""


def begin(ranks: int = RANKS) -> None:
    """Drawings as on the site; GPUs where there are enough of them, else gloo."""
    import torch
    import torch.distributed as dist

    figures()
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None or torch.accelerator.device_count() < ranks:
        #: Hidden from this kernel's children, the ranks, which all ask anew.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        print(f"{ranks} ranks on the CPU, over gloo")
        return
    backend = dist.get_default_backend_for_device(found.type)
    print(f"{ranks} ranks on {found.type}, over {backend}")


@cache
def atlas() -> Atlas:
    """The taxonomy of this checkout, read once."""
    return load()


def _technique(name: str) -> Technique:
    known = atlas().techniques
    if name not in known:
        near = difflib.get_close_matches(name, known, cutoff=0.3)
        raise LabError(f"no technique {name!r}; there is {', '.join(near) or 'none'}")
    return known[name]


# Predictions


@dataclass(frozen=True)
class Guess:
    """What the reader expects, before looking."""

    what: str
    value: float

    def _repr_markdown_(self) -> str:
        return f"{self._named}: your guess is **{_plain(self.value)}**."

    @property
    def _named(self) -> str:
        return self.what[:1].upper() + self.what[1:]

    def against(
        self,
        measured: float,
        why: str = "",
        formula: str | None = None,
        scale: float = 1,
        law: str | None = None,
        **given: float,
    ) -> "Markdown":
        """How far off the guess was, and why, by the formula (over `scale`).

        `law` is shown in its place, where roundings would hide the idea.
        """
        from IPython.display import Markdown

        lines = [
            f"{self._named}: you guessed {_plain(self.value)}, it is "
            f"**{_plain(measured)}**; {_distance(self.value, measured)}.",
            why,
        ]
        if formula is None and law is not None:
            lines.append(f"$$ {law} $$")
        if formula is not None:
            fn = FORMULAS[formula]
            value, at = fn(**given), ", ".join(f"{k} = {v:,}" for k, v in given.items())
            said = f"With {at} that is {_plain(value)}"
            if scale != 1:
                said += f"; in the unit of your guess, {_plain(value / scale)}"
            lines += [f"$$ {law or latex(fn)} $$", f"{said}."]
        return Markdown("\n\n".join(line for line in lines if line))


def predict(what: str, guess: float) -> Guess:
    """Keep the reader's guess: a number, of what is named."""
    if isinstance(guess, bool) or not isinstance(guess, int | float):
        raise LabError(f"a guess is a number, such as 3; {guess!r} is none")
    if not math.isfinite(guess):
        raise LabError(f"a guess is a finite number, such as 3; not {guess!r}")
    return Guess(what, guess)


def _plain(x: float) -> str:
    """Short, and whole where it is: 1,200,036 and 1.5 and 0.0623."""
    if x == int(x):
        return f"{int(x):,}"
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.3g}"


def _distance(guess: float, answer: float) -> str:
    if guess == answer:
        return "that is it"
    if guess <= 0 or answer <= 0:
        return f"off by {_plain(abs(guess - answer))}"
    side = "high" if guess > answer else "low"
    ratio = max(guess / answer, answer / guess)
    if ratio >= 2:
        return f"{_plain(float(f'{ratio:.2g}'))} times too {side}"
    return f"{abs(guess - answer) / answer:.0%} too {side}"


# Functions of a cell, on ranks, under a meter


@dataclass(frozen=True)
class Watched:
    """What each rank returned and sent, and what all of them did."""

    values: list[Any]
    sent_to: list[dict[int, int]]  # bytes, by sender and receiver
    payload: list[int]  # bytes handed to collectives
    calls: list[int]  # of collectives
    seconds: float  # wall time, of the slowest
    traces: list[list[dict[str, Any]]]

    @property
    def sent(self) -> list[int]:
        """Bytes that each rank sent point to point."""
        return [sum(to.values()) for to in self.sent_to]

    @property
    def rounds(self) -> int:
        """Rounds of messages: each rank sends one, and takes one, at a time."""
        return int(rounds(self.traces).makespan)

    @property
    def line(self) -> Timeline:
        """In virtual time: spans take what they declare."""
        return virtual(self.traces)


def watch(
    fn: Callable[..., Any], *args: Any, ranks: int = RANKS, dry: bool = False
) -> Watched:
    """Call fn(w, *args) on the ranks, metered; dry: on 0, 1 and p-1 of many."""
    found = launch(_metered, ranks, fn, args, dry=dry)
    columns = {k: [f[k] for f in found] for k in found[0]}
    return Watched(**{**columns, "seconds": max(columns["seconds"])})


def _metered(w: "World", fn: Callable[..., Any], args: Sequence[Any]) -> dict[str, Any]:
    from exemplars.runtime import meter

    with meter() as moved:
        value = fn(w, *args)
    return {
        "values": value,
        "sent_to": dict(moved.sent_to),
        "payload": moved.payload,
        "calls": moved.count,
        "seconds": moved.seconds,
        "traces": [e.as_dict() for e in moved.events],
    }


# Exemplars with something replaced


def experiment(name: str, ranks: int = RANKS, **changed: Any) -> dict[str, Any]:
    """Run an exemplar with other sizes, or with functions of the reader's in it."""
    technique = _technique(name)
    sizes, functions = _sorted(technique, changed)
    return measure(technique, ranks, mode=_mode(), replaced=functions, **sizes)


def _sorted(
    technique: Technique, changed: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sizes that main takes, and what replaces the exemplar's own definitions."""
    sizes = arguments(technique, atlas().root)
    known = {k: v for k, v in changed.items() if k in sizes}
    rest = {k: v for k, v in changed.items() if k not in sizes}
    _complain_of_unknown(technique, rest, [*sizes, *_names(technique)])
    return known, rest


def _mode() -> str:
    """As `begin` has chosen."""
    return "nccl" if visible_gpus() else "gloo"


def _complain_of_unknown(
    technique: Technique, replaced: Mapping[str, Any], known: Sequence[str]
) -> None:
    for name in replaced:
        if name not in known:
            near = difflib.get_close_matches(name, known, cutoff=0.3) or known
            raise LabError(
                f"{technique.id} has no {name!r} to replace; there is {', '.join(near)}"
            )


def _names(technique: Technique) -> list[str]:
    """All that an exemplar defines at its top level, read as text."""
    tree = ast.parse((atlas().root / technique.exemplar).read_text(encoding="utf-8"))
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [
                n.id for n in ast.walk(node.targets[0]) if isinstance(n, ast.Name)
            ]
        elif isinstance(node, ast.ImportFrom):
            names += [a.asname or a.name for a in node.names]
    return names


# Exercises


@dataclass(frozen=True)
class Grade:
    """Every claim's verdict on the reader's work, or how the run ended."""

    technique: str
    verdicts: tuple[Verdict, ...]
    ended: str = ""

    @property
    def ok(self) -> bool:
        """Whether it ran to its end and all claims were judged and hold."""
        judged = [v.ok for v in self.verdicts]
        return not self.ended and bool(judged) and all(ok is True for ok in judged)

    def _repr_markdown_(self) -> str:
        if self.ok:
            head = '<span class="badge">**solved**</span> every claim holds.'
        else:
            why = self.ended or f"of {self.technique}'s claims these fail:"
            head = f'<span class="badge bad">**not yet**</span> {why}'
        bad = [v for v in self.verdicts if v.ok is not True]
        shown = self.verdicts if self.ok else bad
        return f"{head}\n\n{table(shown).data}" if shown else head


def grade(name: str, ranks: int = RANKS, **work: Any) -> Grade:
    """Hold the technique's claims against the reader's functions or classes."""
    technique = _technique(name)
    _complain_of_no_work(technique, work)
    _complain_of_unknown(technique, work, _names(technique))
    try:
        run = measure(technique, ranks, mode=_mode(), replaced=work, timeout=DEADLINE)
        return Grade(name, tuple(judge(technique, run)))
    except (LaunchError, ClaimError) as error:
        said = error.summary if isinstance(error, LaunchError) else str(error)
        return Grade(name, (), f"{said}.")


def _complain_of_no_work(technique: Technique, work: Mapping[str, Any]) -> None:
    """Handing in nothing, or the atlas's own function, is no answer."""
    if not work:
        raise LabError(
            f"grade({technique.id!r}): hand in your function under the name "
            f"it replaces, one of {', '.join(_names(technique))}"
        )
    for name, made in work.items():
        if not callable(made):
            raise LabError(f"{name} = {made!r}: hand in a function or a class")
        if getattr(made, "__module__", "").startswith("exemplars."):
            raise LabError(f"{name} is the atlas's own: write yours in a cell")


# Drawings


def lanes(ax: "Axes", line: Timeline, colors: Mapping[str, str], title: str) -> None:
    """Each rank a lane: spans by name in color, with their labels; gray is idle."""
    ranks = range(line.ranks)
    for r in ranks:
        ax.barh(r, line.makespan, height=0.74, color=GREY, alpha=0.13)
    gap = line.makespan / 400
    for s in line.spans:
        if s.name not in colors or s.end == s.start:
            continue
        ax.barh(
            s.rank,
            s.end - s.start - 2 * gap,
            0.74,
            s.start + gap,
            color=colors[s.name],
        )
        if s.end - s.start > line.makespan / 60:
            middle = (s.start + s.end) / 2
            ax.text(middle, s.rank, s.label, color="white", ha="center", va="center")
    ax.set_yticks(ranks, [f"rank {r}" for r in ranks])
    ax.set(xlim=(0, line.makespan), xlabel="virtual seconds", title=title)
    ax.invert_yaxis()
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)


def layers(
    ax: "Axes", series: Sequence[Mapping[str, int]], names: Sequence[str], title: str
) -> None:
    """Live bytes over time, one category on top of the other."""
    colors = [*COLOURS, GREY, "#b58a00"]
    totals = [sum(s.values()) for s in series]
    every = range(0, len(series), -(-len(series) // POINTS))
    steps = sorted({*every, totals.index(max(totals))})  # the peak is always kept
    heights = [[series[i].get(name, 0) / 1000 for i in steps] for name in names]
    ax.stackplot(steps, heights, labels=names, colors=colors[: len(names)], linewidth=0)
    ax.set(title=title, xlim=(0, len(series)), xticks=[], xlabel="time")
