"""Which techniques and systems were asked for: the filters of `atlas list`."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints

from atlas import taxonomy
from atlas.commands import common, names
from atlas.commands.common import Wrong
from atlas.taxonomy import Atlas
from atlas.taxonomy.kinds import (
    OptimizerLocation,
    Parallelism,
    System,
    Technique,
    Topology,
)

YEARS = "a year, 2019, or a range, 2014..2016, 2018.. or ..2016"


def vocabulary(kind: type, name: str = "value") -> tuple[str, ...]:
    """The closed vocabulary of a field."""
    hint = get_type_hints(kind)[name]
    literal = hint if get_origin(hint) is Literal else get_args(hint)[0]
    return get_args(literal)


PARALLELISM = vocabulary(Parallelism)
TOPOLOGY = vocabulary(Topology)
OPTIMIZER = vocabulary(OptimizerLocation)
STATUS = vocabulary(System, "status")


@dataclass(frozen=True)
class Years:
    """A range of years; None: open on that side."""

    first: int | None = None
    last: int | None = None

    def holds(self, year: int) -> bool:
        """Whether the year lies inside."""
        return (self.first or year) <= year <= (self.last or year)


def years(said: str) -> Years:
    """2018.. | ..2016 | 2014..2016 | 2019."""
    one = re.fullmatch(r"\d{4}", said)
    two = re.fullmatch(r"(\d{4})?\.\.(\d{4})?", said)
    if one:
        return Years(int(said), int(said))
    if two is None or not any(two.groups()):
        raise Wrong(f'--year "{said}": expected {YEARS}')
    first, last = (int(year) if year else None for year in two.groups())
    if first and last and first > last:
        raise Wrong(f'--year "{said}": {first} is after {last}; try {last}..{first}')
    return Years(first, last)


@dataclass(frozen=True)
class Filters:
    """What was asked for, checked against what there is."""

    axis: str | None = None
    family: str | None = None
    text: str | None = None
    years: Years = field(default_factory=Years)
    surveys: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    parallelism: tuple[str, ...] = ()
    optimizer: str | None = None
    topology: str | None = None
    status: str | None = None
    without_exemplar: str | None = None

    @property
    def only_systems_have(self) -> bool:
        """Whether something was asked that is said of systems alone."""
        values = (self.optimizer, self.topology, self.status)
        return bool(self.uses or self.parallelism or any(values))

    def systems(self, atlas: Atlas) -> list[System]:
        """The systems that fit, oldest first."""
        found = [s for s in atlas.systems.values() if self._system(atlas, s)]
        return sorted(found, key=lambda s: (s.year, s.id))

    def techniques(self, atlas: Atlas) -> list[Technique]:
        """The techniques that fit; what only systems have is asked of their users."""
        together: set[str] = set(atlas.techniques)
        if self.only_systems_have:
            users = [s for s in atlas.systems.values() if self._built(s)]
            together = {use.technique for s in users for use in s.uses}
        together -= set(self.uses)
        every = atlas.techniques.values()
        found = [t for t in every if t.id in together and self._technique(t)]
        if self.without_exemplar is None:
            return found
        inside = [t for t in found if t.axis == self.without_exemplar]
        return [t for t in inside if not common.written(atlas, t)]

    def _technique(self, t: Technique) -> bool:
        words = (t.id, t.name, t.summary, t.use_when, t.avoid_when, t.pros, t.cons)
        return (
            self.axis in (None, t.axis)
            and self.family in (None, t.family)
            and self.years.holds(t.since)
            and set(self.surveys) <= set(t.surveys)
            and self._said((*words, *t.also_called, *map(str, t.surveys.values())))
        )

    def _system(self, atlas: Atlas, s: System) -> bool:
        from atlas.views.standing import places

        on = [p.family for found in places(atlas, s).values() for p in found]
        words = (s.id, s.name, s.summary, s.made_by or "", *s.also_called)
        return (
            any(self._place(path) for path in on)
            and self.years.holds(s.year)
            and set(self.surveys) <= set(s.surveys)
            and self._said(words)
            and self._built(s)
        )

    def _place(self, path: str) -> bool:
        axis, _, family = path.partition("/")
        return self.axis in (None, axis) and self.family in (None, family)

    def _built(self, s: System) -> bool:
        split = s.parallelism.value if s.parallelism else ()
        where = s.optimizer_location.value if s.optimizer_location else None
        return (
            set(self.uses) <= {use.technique for use in s.uses}
            and set(self.parallelism) <= set(split)
            and (self.optimizer in (None, where) or where == "either")
            and self.topology in (None, s.topology.value if s.topology else None)
            and self.status in (None, s.status)
        )

    def _said(self, words: Iterable[str]) -> bool:
        if self.text is None:
            return True
        return self.text.casefold() in "\n".join(words).casefold()


def check(
    atlas: Atlas,
    *,
    axis: str | None,
    family: str | None,
    text: str | None,
    year: str | None,
    survey: Iterable[str],
    uses: Iterable[str],
    parallelism: Iterable[str],
    optimizer: str | None,
    topology: str | None,
    status: str | None,
    without_exemplar: str | None,
) -> Filters:
    """The filters, or one line about the first that cannot be."""
    _check_place(atlas, axis, family)
    _check_place(atlas, without_exemplar, None)
    for name in survey:
        _one_of("survey", name, atlas.surveys)
    for name in parallelism:
        _one_of("parallelism", name, PARALLELISM)
    closed = {
        "optimizer": (optimizer, OPTIMIZER),
        "topology": (topology, TOPOLOGY),
        "status": (status, STATUS),
    }
    for kind, (value, known) in closed.items():
        if value is not None:
            _one_of(kind, value, known)
    return Filters(
        axis=axis,
        family=family,
        text=text,
        years=years(year) if year is not None else Years(),
        surveys=tuple(survey),
        uses=tuple(names.technique(atlas, name).id for name in uses),
        parallelism=tuple(parallelism),
        optimizer=optimizer,
        topology=topology,
        status=status,
        without_exemplar=without_exemplar,
    )


def _check_place(atlas: Atlas, axis: str | None, family: str | None) -> None:
    axes = {a.id: a for a in atlas.axes}
    if axis is not None:
        _one_of("axis", axis, axes)
    inside = [a for a in atlas.axes if axis in (None, a.id)]
    if family is not None:
        where = f" in {axis}" if axis else ""
        _one_of(f"family{where}", family, [f.id for a in inside for f in a.families])


def _one_of(kind: str, value: str, known: Iterable[str]) -> None:
    known = list(known)
    if value not in known:
        raise common.unknown(kind, value, known, f"there are {', '.join(known)}")


# Completion


def complete(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    """Words of a closed vocabulary."""

    def completed(incomplete: str) -> list[str]:
        return [word for word in known if word.startswith(incomplete)]

    return completed


def complete_survey(incomplete: str) -> list[str]:
    """Surveys that begin like this."""
    return [name for name in _stems("surveys") if name.startswith(incomplete)]


def complete_year(incomplete: str) -> list[str]:
    """From each year in which a system appeared."""
    found: set[Any] = set()
    try:
        found = {s.year for s in taxonomy.load().systems.values()}
    except taxonomy.TaxonomyError:
        return []
    known = [form for year in sorted(found) for form in (f"{year}", f"{year}..")]
    return [form for form in known if form.startswith(incomplete)]


def _stems(folder: str) -> list[str]:
    try:
        root = taxonomy.find_root()
    except taxonomy.TaxonomyError:
        return []
    return [p.stem for p in sorted((root / "taxonomy" / folder).glob("*.yaml"))]
