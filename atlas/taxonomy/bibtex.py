"""A small strict BibTeX reader: entries with their places, or every problem found.

Strict where BibTeX is lax: UTF-8 instead of TeX escapes, braces or quotes round
every value but a bare year, each field once, no @string and no @comment. A reader
of our own since the ones on the package index skip what they do not understand,
and report no line numbers.
"""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass

from atlas.taxonomy.yamlmarks import Mark, Problem, shown

TYPES = ("article", "book", "inproceedings", "misc", "phdthesis", "techreport")

_SPACE = re.compile(r"(?:\s+|%[^\n]*)*")
_HEAD = re.compile(r"@\s*(\w+)\s*\{\s*([^\s,{}]+)\s*")
_NAME = re.compile(r",\s*([A-Za-z]\w*)\s*=\s*")
_CLOSE = re.compile(r",?\s*\}")
_SWALLOWED = re.compile(r"\n[ \t]*[A-Za-z]+\s*=\s*[{\"\d]")  # the field after it
_BARE = re.compile(r"\d+")
_ENDS = re.compile(r'[{}"]')  # what may end a value


@dataclass(frozen=True)
class Entry:
    """One work: its key, its fields in lower case, and where each stands."""

    kind: str
    key: str
    mark: Mark
    fields: dict[str, str]
    marks: dict[str, Mark]


class _Stop(Exception):
    """The text cannot be followed further."""


class _Parser:
    def __init__(self, text: str, file: str) -> None:
        self.text, self.file, self.at = text, file, 0
        self.problems: list[Problem] = []
        self.lines = [0, *(found.end() for found in re.finditer("\n", text))]

    def mark(self, at: int) -> Mark:
        line = bisect.bisect_right(self.lines, at)
        return Mark(line, at - self.lines[line - 1] + 1)

    def note(self, at: int, what: str, expected: str) -> None:
        self.problems.append(Problem(self.file, self.mark(at), what, expected))

    def stop(self, expected: str) -> _Stop:
        rest = self.text[self.at : self.at + 80].split("\n")[0]
        self.note(self.at, shown(rest) if rest else "end of the line", expected)
        return _Stop()

    def take(self, regex: re.Pattern[str], expected: str) -> re.Match[str]:
        match = regex.match(self.text, self.at)
        if match is None:
            raise self.stop(expected)
        self.at = match.end()
        return match

    def skip(self) -> bool:
        """Skip blanks and comments; is there anything left?"""
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.at < len(self.text)

    def entry(self) -> Entry:
        start = self.at
        head = self.take(_HEAD, "an entry, @article{key, ...}")
        kind = head[1].lower()
        if kind not in TYPES:
            self.note(start, f"@{head[1]}", "one of @" + ", @".join(TYPES))
        made = Entry(kind, head[2], self.mark(start), {}, {})
        while not (end := _CLOSE.match(self.text, self.at)):
            comma = self.at
            name = self.take(_NAME, "a comma and a field, or a closing brace")
            begins = comma + len(name[0]) - len(name[0][1:].lstrip())
            self.field(made, name[1].lower(), begins)
            self.skip()
        self.at = end.end()
        return made

    def field(self, entry: Entry, name: str, start: int) -> None:
        if name in entry.fields:
            self.note(start, f'field "{name}" occurs twice', "each field once")
        at = self.at
        entry.fields[name] = self.value()
        entry.marks[name] = self.mark(at)

    def value(self) -> str:
        start = self.at
        if self.text[start : start + 1] in ("{", '"'):
            self.at = self.end_of_value()
            inside = self.text[start + 1 : self.at - 1]
            if _SWALLOWED.search(inside):
                self.at = start
                raise self.stop("a value whose braces and quotes are closed")
            if "\\" in inside:
                at = start + 1 + inside.index("\\")
                self.note(at, "a TeX escape", "the character itself, in UTF-8")
            return " ".join(inside.replace("{", "").replace("}", "").split())
        return self.take(_BARE, "a value in braces or quotes, or a number")[0]

    def end_of_value(self) -> int:
        quoted, depth = self.text[self.at] == '"', 0
        for found in _ENDS.finditer(self.text, self.at):
            i, character = found.start(), found[0]
            depth += (character == "{") - (character == "}")
            if depth == 0 and character == ('"' if quoted else "}") and i > self.at:
                return i + 1
            if depth < 0:
                break
        raise self.stop("a value whose braces and quotes are closed")


def parse(text: str, file: str) -> tuple[list[Entry], list[Problem]]:
    """The entries of a .bib file, and what is wrong with it."""
    parser = _Parser(text, file)
    entries: list[Entry] = []
    while parser.skip():
        try:
            entries.append(parser.entry())
        except _Stop:  # go on at the next line that begins an entry
            following = text.find("\n@", parser.at)
            parser.at = following + 1 if following >= 0 else len(text)
    return entries, parser.problems
