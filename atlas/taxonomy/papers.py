"""The bibliography: entries of papers.bib, checked, and as papers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from atlas.taxonomy import bibtex
from atlas.taxonomy.kinds import IS_LINK, IS_PLAIN, IS_YEAR, Paper
from atlas.taxonomy.typed import one_of
from atlas.taxonomy.yamlmarks import Problem, shown

_REQUIRED = ("title", "author", "year")
_SHAPES = {
    "doi": (r"10\.\d{4,9}/[^\s\"<>]+", "a DOI like 10.1000/182"),
    "eprint": (r"\d{4}\.\d{4,5}|[a-z-]+/\d{7}", "an arXiv number like 2001.01234"),
    "url": (dict(IS_LINK.schema)["pattern"], IS_LINK.expected),
    "year": (r"\d{4}", IS_YEAR.expected),
}
_WORDS = ("author", "booktitle", "institution", "journal", "note", "number")
_FIELDS = (*_WORDS, "pages", "publisher", "school", "title", "volume", *_SHAPES)


def check_entries(entries: list[bibtex.Entry], file: str) -> list[Problem]:
    """One entry a work, each complete and each with a place to read it."""
    problems: list[Problem] = []
    seen: dict[tuple[str, str], str] = {}
    for entry in entries:
        problems += _check_entry(entry, file)
        title = re.sub(r"\W+", " ", entry.fields.get("title", "").casefold()).strip()
        same = [("key", entry.key), ("title", title)]
        same += [(f, entry.fields.get(f, "")) for f in ("doi", "eprint")]
        for kind, value in same:
            if value and (kind, value) in seen:
                what = f"{kind} {shown(value)} is also that of {seen[kind, value]}"
                where = entry.marks.get(kind, entry.mark)
                problems.append(Problem(file, where, what, "one entry a work"))
            seen.setdefault((kind, value), entry.key)
    return problems


def _check_entry(entry: bibtex.Entry, file: str) -> Iterator[Problem]:
    if not re.fullmatch(r"[a-z]+\d{4}[a-z0-9]*", entry.key):
        what, expected = f"key {shown(entry.key)}", "a key like name2013word"
        yield Problem(file, entry.mark, what, expected)
    for name in _REQUIRED:
        if not entry.fields.get(name):
            what = f"{shown(entry.key)} without {name}"
            yield Problem(file, entry.mark, what, f"{name} = {{...}}")
    if not {"doi", "eprint", "url"} & entry.fields.keys():
        what = f"{shown(entry.key)} without a place to read it"
        yield Problem(file, entry.mark, what, "doi, eprint or url")
    for name, value in entry.fields.items():
        where = entry.marks[name]
        if name not in _FIELDS:
            what = f"unknown field {shown(name)}"
            yield Problem(file, where, what, one_of(name, _FIELDS))
        elif name in _SHAPES:
            shape, expected = _SHAPES[name]
            fits = re.fullmatch(shape, value)
            if not fits or (name == "year" and not IS_YEAR.holds(int(value))):
                yield Problem(file, where, shown(value), expected)
        elif not IS_PLAIN.holds(value):
            yield Problem(file, where, shown(value), IS_PLAIN.expected)


def paper(entry: bibtex.Entry) -> Paper:
    has = entry.fields.get
    return Paper(
        key=entry.key,
        kind=entry.kind,
        title=entry.fields["title"],
        authors=tuple(_forward(a) for a in entry.fields["author"].split(" and ")),
        year=int(entry.fields["year"]),
        venue=has("journal") or has("booktitle") or has("institution") or has("school"),
        doi=has("doi"),
        eprint=has("eprint"),
        url=has("url"),
    )


def _forward(author: str) -> str:
    """ "Last, First" as "First Last"."""
    last, comma, first = author.partition(",")
    return f"{first.strip()} {last.strip()}" if comma else author.strip()
