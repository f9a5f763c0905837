"""What the tables of the surveys must keep to beyond their types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atlas.taxonomy.checks import check_once
from atlas.taxonomy.tables import (
    Costs,
    Criteria,
    Delay,
    Delays,
    Drawn,
    Experiments,
    Remark,
    Remarks,
    Row,
    Systems,
)
from atlas.taxonomy.typed import Reader, one_of
from atlas.taxonomy.yamlmarks import shown


def check_row(row: Row, reader: Reader) -> None:
    """A cell differs or is open, not both."""
    for dimension in row.open:
        if dimension in row.differs:
            where = reader.place(row, "open", dimension)
            what = f"{shown(dimension)} in differs and in open"
            reader.note(where, what, "one of the two")


def check_systems(made: Systems, reader: Reader) -> None:
    """Each system once; each word of its two columns explained, once, and used."""
    check_once(made.rows, reader, "name")
    check_once(made.rows, reader, "system")
    for column in ("scheduling", "topology"):
        words = getattr(made, column)
        check_once(words, reader, "word")
        known = [entry.word for entry in words]
        for row in made.rows:
            if (word := getattr(row, column)) not in known:
                what = f"unknown word {shown(word)}"
                reader.note(reader.place(row, column), what, one_of(word, known))
        used = {getattr(row, column) for row in made.rows}
        for entry in words:
            if entry.word not in used:
                what = f"{shown(entry.word)} is in no row"
                reader.note(reader.place(entry, "word"), what, "a word that is used")


def check_criteria(made: Criteria, reader: Reader) -> None:
    """Ids once; no row has a cell in a column that is not there."""
    check_once(made.columns, reader)
    check_once(made.rows, reader, "technique")
    known = [column.id for column in made.columns]
    for row in made.rows:
        for column in row.cells:
            if column not in known:
                where = reader.place(row, "cells", column)
                reader.note(
                    where, f"unknown column {shown(column)}", one_of(column, known)
                )


def check_drawn(drawn: Drawn, reader: Reader) -> None:
    """A curve that does not follow its expression says where."""
    if drawn.agrees == (drawn.says is not None):
        without = "with" if drawn.agrees else "without"
        what = f"agrees: {str(drawn.agrees).lower()} {without} says"
        reader.note(reader.place(drawn), what, "says, where it does not agree")


def check_delay(delay: Delay, reader: Reader) -> None:
    """It is counted, or the file says why not."""
    check_either(delay, "counted", "uncounted", reader)


def check_delays(made: Delays, reader: Reader) -> None:
    """Ids once; every network has a panel for every model."""
    for things in (made.patterns, made.networks, made.models):
        check_once(things, reader)
    known = [model.id for model in made.models]
    for network in made.networks:
        where = reader.place(network, "highest")
        for model in known:
            if model not in network.highest:
                what = f"no panel of {shown(model)}"
                reader.note(where, what, "one for every model")
        for model in network.highest:
            if model not in known:
                what = f"unknown model {shown(model)}"
                reader.note(where, what, one_of(model, known))


def check_costs(made: Costs, reader: Reader) -> None:
    check_once(made.rows, reader)


def check_experiments(made: Experiments, reader: Reader) -> None:
    check_once(made.rows, reader, "model")


def check_remark(remark: Remark, reader: Reader) -> None:
    """The planner says it, or the file says why not."""
    check_either(remark, "case", "unsaid", reader)


def check_remarks(made: Remarks, reader: Reader) -> None:
    check_once(made.rows, reader, "remark")


def check_either(thing: Any, one: str, other: str, reader: Reader) -> None:
    """Exactly one of the two keys is given."""
    given = [name for name in (one, other) if getattr(thing, name) is not None]
    if len(given) != 1:
        what = f"both {one} and {other}" if given else f"neither {one} nor {other}"
        reader.note(reader.place(thing), what, "one of the two")


CHECKS: dict[type, Callable[[Any, Reader], None]] = {
    Row: check_row,
    Systems: check_systems,
    Criteria: check_criteria,
    Drawn: check_drawn,
    Delays: check_delays,
    Costs: check_costs,
    Experiments: check_experiments,
    Remark: check_remark,
    Remarks: check_remarks,
}
