"""What a file of the taxonomy must keep to beyond its types."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from atlas.taxonomy.kinds import (
    Axis,
    Cell,
    Choose,
    Claim,
    Comparison,
    Crosswalk,
    Fact,
    Leaf,
    Mutant,
    Parallelism,
    Quantity,
    Question,
    Ranks,
    Relation,
    Sourced,
    Survey,
    System,
    Technique,
    Topology,
    Use,
    Word,
)
from atlas.taxonomy.relation import parse as parse_relation
from atlas.taxonomy.sources import secondary
from atlas.taxonomy.typed import Reader, one_of
from atlas.taxonomy.yamlmarks import shown


def check_once(things: Iterable[Any], reader: Reader, name: str = "id") -> None:
    """No two of these have the same id, or the same value of another key."""
    seen: set[str] = set()
    for thing in things:
        value = getattr(thing, name)
        if value in seen:
            what = f"{name} {shown(value)} occurs twice"
            reader.note(reader.place(thing, name), what, f"each {name} once")
        seen.add(value)


def check_facets(axis: Axis, reader: Reader) -> None:
    """Ids once; a facet with one family has a default, or there is no choice."""
    check_once(axis.facets, reader)
    check_once(axis.families, reader)
    for facet in axis.facets:
        if facet.default is None and len(facet.families) < 2:
            what = f"{shown(facet.id)} has one family and no default"
            reader.note(
                reader.place(facet, "families"), what, "a choice of two or more"
            )


def check_words(words: tuple[Word, ...], reader: Reader) -> None:
    """Each word once, whether as a term or as an alias, in alphabetical order."""
    seen: dict[str, str] = {}
    for word in words:
        for name in (word.term, *word.aliases):
            folded = name.casefold()
            if folded in seen:
                what = f"{shown(name)} is also a word of {shown(seen[folded])}"
                reader.note(reader.place(word), what, "each word once")
            seen[folded] = word.term
    terms = [word.term.casefold() for word in words]
    for word, before, after in zip(words[1:], terms, terms[1:], strict=False):
        if after < before:
            what = f"{shown(word.term)} after {shown(before)}"
            reader.note(reader.place(word), what, "alphabetical order")


def check_choose(made: Choose, reader: Reader) -> None:
    """Answers lead onward, to something that is there, and to everything."""
    things: tuple[Question | Leaf, ...] = (*made.questions, *made.leaves)
    check_once(things, reader)
    order = [q.id for q in made.questions]
    leaves = [leaf.id for leaf in made.leaves]
    reached = set(order[:1])
    for i, question in enumerate(made.questions):
        check_once(question.answers, reader)
        if len(question.answers) < 2:
            what = f"{shown(question.id)} without a choice of answers"
            reader.note(reader.place(question, "answers"), what, "two or more")
        for answer in question.answers:
            reached.add(answer.to)
            if answer.to in order[: i + 1]:
                what = f"{shown(answer.to)} does not come after {shown(question.id)}"
                where = reader.place(answer, "to")
                reader.note(where, what, "a later question, or a leaf")
            elif answer.to not in (*order, *leaves):
                what = f"unknown question or leaf {shown(answer.to)}"
                expected = one_of(answer.to, [*order[i + 1 :], *leaves])
                reader.note(reader.place(answer, "to"), what, expected)
    for thing in things:
        if thing.id not in reached:
            what = f"no answer leads to {shown(thing.id)}"
            reader.note(reader.place(thing, "id"), what, "an answer that does")
    for leaf in made.leaves:
        for name in ("techniques", "sources"):
            if not getattr(leaf, name):
                what = f"{shown(leaf.id)} without {name}"
                reader.note(reader.place(leaf, name), what, "at least one")


def survey_checks(
    techniques: dict[str, Technique],
) -> dict[type, Callable[[Any, Reader], None]]:
    def check(made: Comparison, reader: Reader) -> None:
        check_comparison(made, reader, techniques)

    def once(survey: Survey, reader: Reader) -> None:
        check_once(survey.comparisons, reader)

    return {Comparison: check, Survey: once}


def check_comparison(
    made: Comparison, reader: Reader, techniques: dict[str, Technique]
) -> None:
    """Each figure is a claim's, each is used, and `holds` knows no other name."""
    named: list[str] = []
    for figure in made.figures:
        if figure.name in named:
            what = f"figure {shown(figure.name)} occurs twice"
            reader.note(reader.place(figure, "name"), what, "each name once")
        named.append(figure.name)
        home = techniques.get(figure.technique)
        claims = [claim.id for claim in home.claims] if home else []
        if claims and figure.claim not in claims:
            what = f"unknown claim {shown(figure.claim)}"
            expected = one_of(figure.claim, claims)
            reader.note(reader.place(figure, "claim"), what, expected)
    where = reader.place(made, "holds")
    try:
        used = parse_relation(made.holds).names
    except ValueError as wrong:
        reader.note(
            where, f"{shown(made.holds)} ({wrong})", "a comparison, a / b == 1.5"
        )
        return
    for name in sorted(used - set(named)):
        reader.note(where, f"unknown figure {shown(name)}", one_of(name, named))
    for name in sorted(set(named) - used):
        reader.note(where, f"figure {shown(name)} is not used", "every figure")


def check_crosswalk(made: Crosswalk, reader: Reader) -> None:
    """Ids once; a concept has one word a column, of columns that exist."""
    check_once(made.columns, reader)
    check_once(made.concepts, reader)
    check_once(made.ambiguities, reader)
    known = [column.id for column in made.columns]
    for concept in made.concepts:
        seen: set[str] = set()
        for usage in concept.words:
            where = reader.place(usage, "by")
            if usage.by not in known:
                what = f"unknown column {shown(usage.by)}"
                reader.note(where, what, one_of(usage.by, known))
            elif usage.by in seen:
                what = f"column {shown(usage.by)} occurs twice"
                reader.note(where, what, "one word a column")
            seen.add(usage.by)


def check_claim(claim: Claim, reader: Reader, written: bool) -> None:
    """The fields that the claim's kind needs, and none that it has no use for."""
    counted = claim.kind in ("exact", "bound")
    if counted and written and claim.formula is None:
        what = f'{claim.kind} claim "{claim.id}" without a formula'
        reader.note(reader.place(claim), what, "formula: a function of the oracle")
    counted = counted or claim.kind == "statistical"
    if written and counted and (claim.unit is None or claim.of is None):
        lacks = "unit" if claim.unit is None else "of"
        what = f'{claim.kind} claim "{claim.id}" without "{lacks}"'
        reader.note(reader.place(claim), what, f"{lacks}: what is counted")
    if claim.kind in ("equal", "close") and claim.formula is not None:
        what = f'{claim.kind} claim "{claim.id}" with a formula'
        where = reader.place(claim, "formula")
        reader.note(where, what, "no formula: the reference is the exemplar's own")
    if claim.floor is not None and claim.kind != "bound":
        what = f'{claim.kind} claim "{claim.id}" with a floor'
        reader.note(reader.place(claim, "floor"), what, "a floor for a bound alone")
    if (claim.kind == "statistical") != (claim.band is not None):
        without = "without" if claim.band is None else "with"
        what = f'{claim.kind} claim "{claim.id}" {without} a band'
        expected = "band: [lowest, highest], for statistical claims alone"
        reader.note(reader.place(claim, "band"), what, expected)
    if claim.band is not None and claim.band[0] > claim.band[1]:
        low, high = claim.band
        where = reader.place(claim, "band")
        reader.note(where, f"band [{low:g}, {high:g}]", "the lowest value first")


def check_symbols(quantities: Iterable[Quantity], reader: Reader) -> None:
    """One word, one meaning, one symbol."""
    for name in ("word", "symbol", "says"):
        seen: dict[str, str] = {}
        for quantity in quantities:
            value = getattr(quantity, name)
            if value in seen:
                what = f"{shown(value)} is also the {name} of {shown(seen[value])}"
                where = reader.place(quantity, name)
                reader.note(where, what, f"each {name} once")
            seen[value] = quantity.word


def check_mutant(mutant: Mutant, reader: Reader) -> None:
    """It fails claims, or it runs into the deadline: one of the two."""
    if bool(mutant.fails) == mutant.deadline:
        both = "both" if mutant.deadline else "neither"
        what = f'mutant "{mutant.id}" has {both} fails and deadline'
        what = what.replace("neither fails and", "neither fails nor")
        reader.note(reader.place(mutant), what, "fails: [claims], or deadline: true")
    if mutant.find == mutant.replace:
        what = f'mutant "{mutant.id}" replaces a text by itself'
        reader.note(reader.place(mutant, "replace"), what, "another text")


def check_ranks(ranks: Ranks, reader: Reader) -> None:
    if ranks.max is not None and ranks.max < ranks.min:
        where = reader.place(ranks, "max")
        reader.note(where, f"max {ranks.max} below min {ranks.min}", "min <= max")
    for world in ranks.dry:
        if world < ranks.min or (ranks.max is not None and world > ranks.max):
            most = ranks.max if ranks.max is not None else "any"
            where = reader.place(ranks, "dry")
            what = f"dry world size {world}"
            reader.note(where, what, f"from {ranks.min} to {most}")


def check_cell(cell: Sourced, reader: Reader) -> None:
    """What is called verified names its source, which must be a primary one."""
    if cell.verified and cell.source is None:
        expected = "source: a key of papers.bib, or a link"
        reader.note(reader.place(cell), "verified without a source", expected)
    if cell.verified and (host := secondary(cell.source or "")):
        what = f"verified by {shown(host)}, which tells what others wrote"
        expected = "the paper, its code at a merged commit, or its documentation"
        reader.note(reader.place(cell, "source"), what, expected)


def check_place(cell: Sourced, reader: Reader) -> None:
    """What a system's file calls verified can be found again by another reader."""
    check_cell(cell, reader)
    if cell.verified and cell.source is not None and cell.where is None:
        expected = "where: the section, table, file or heading that says it"
        reader.note(reader.place(cell), "verified without a place", expected)


def check_system(system: System, reader: Reader) -> None:
    """Nothing is listed twice, and the venue comes after the work."""
    seen: set[str] = set()
    listed: list[tuple[Use | Cell, str]] = [(u, u.technique) for u in system.uses]
    listed += [(cell, cell.family) for cell in system.cells]
    for entry, name in listed:
        if name in seen:
            what = f"{shown(name)} is listed twice"
            reader.note(reader.place(entry), what, "each once")
        seen.add(name)
    for relation in system.relations:
        if relation.system == system.id:
            where = reader.place(relation, "system")
            reader.note(where, "a relation to itself", "another system")
    if system.venue_year is not None and system.venue_year < system.year:
        what = f"venue_year {system.venue_year} before year {system.year}"
        where = reader.place(system, "venue_year")
        reader.note(where, what, "the venue after the first appearance")


_CELLS = (Use, Cell, Parallelism, Topology, Fact, Relation)
SYSTEM_CHECKS: dict[type, Callable[[Any, Reader], None]] = {
    System: check_system,
    **dict.fromkeys(_CELLS, check_place),
}
