"""A strict YAML reader: every value keeps its line and column, and bombs are refused.

YAML is wider than the taxonomy needs. Anchors, aliases, tags, several documents
and repeated keys are errors here; so is a file that is too large or too deep. The
tree is built from the parser's events with a stack, never by recursion, so a
hostile file costs no more than reading it up to its first offence.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import yaml
from yaml.resolver import Resolver

LARGEST = 256 * 1024  # bytes; the longest real file is a few thousand
DEEPEST = 20

_NUMBER = re.compile(r"[-+]?(\d[\d_]*)?\.?\d+([eE][-+]?\d+)?")
_resolver = Resolver()


class Mark(NamedTuple):
    """A place in a file, counted from 1 as editors do."""

    line: int = 1
    column: int = 1


@dataclass(frozen=True, order=True)
class Problem:
    """One thing wrong, where it is, and what was expected instead."""

    file: str
    mark: Mark
    what: str
    expected: str

    def __str__(self) -> str:
        at = f"{self.file}:{self.mark.line}:{self.mark.column}"
        return f"{at}: {self.what}: expected {self.expected}"


class Scalar(NamedTuple):
    """A single value, as written; `guessed` is what YAML would turn it into."""

    mark: Mark
    text: str
    plain: bool
    guessed: str | None


@dataclass(frozen=True)
class Sequence:
    """A list of nodes."""

    mark: Mark
    items: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class Mapping:
    """Key and value nodes in the order of the file, each key once."""

    mark: Mark
    entries: list[tuple[Scalar, Node]] = field(default_factory=list)


Node = Scalar | Sequence | Mapping


class Refused(Exception):
    """The file cannot be read as a tree; `problem` says why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def shown(text: str) -> str:
    """The reader's own input on one line, quoted, cut where it is long."""
    cut = text if len(text) <= 60 else text[:57] + "..."
    return json.dumps(cut, ensure_ascii=False)


def read_text(path: Path, file: str) -> str:
    """The file's text; too large, unreadable or not UTF-8 is refused."""

    def refuse(what: str, expected: str, line: int = 1) -> Refused:
        return Refused(Problem(file, Mark(line), what, expected))

    if path.exists() and not path.is_file():  # a pipe would never end
        raise refuse("not a file", "a file")
    try:
        with path.open("rb") as stream:
            data = stream.read(LARGEST + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise refuse(f"cannot be read ({reason})", "a readable file") from None
    if len(data) > LARGEST:
        raise refuse("too large", f"at most {LARGEST // 1024} KB")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = data[error.start]
        raise refuse(f"byte 0x{byte:02x} is not UTF-8", "UTF-8 text", line) from None


def read_tree(text: str, file: str) -> tuple[Node, list[Problem]]:
    """The one document in `text`, and the repeated keys found on the way."""
    try:
        return _build(text, file)
    except yaml.YAMLError as error:
        raise Refused(_not_yaml(error, file)) from None


def _not_yaml(error: yaml.YAMLError, file: str) -> Problem:
    mark = getattr(error, "problem_mark", None)
    where = Mark(mark.line + 1, mark.column + 1) if mark else Mark()
    reason = getattr(error, "problem", None) or getattr(error, "reason", None)
    return Problem(file, where, f"not YAML ({reason or 'unreadable'})", "YAML")


def _events(text: str) -> Iterator[yaml.Event]:
    """The parser's events, from libyaml where PyYAML was built with it."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return iter(yaml.parse(text, Loader=loader))


def _mark(event: yaml.Event) -> Mark:
    start = event.start_mark
    assert start is not None  # the parser marks every event
    return Mark(start.line + 1, start.column + 1)


def _build(text: str, file: str) -> tuple[Node, list[Problem]]:
    open_: list[tuple[Sequence | Mapping, set[str]]] = []
    pending: list[Scalar | None] = []  # per open collection: a key without a value
    problems: list[Problem] = []
    root: Node | None = None
    for event in _events(text):
        _refuse_excess(event, file, depth=len(open_), second=root is not None)
        if isinstance(event, yaml.CollectionEndEvent):
            open_.pop()
            pending.pop()
            continue
        node = _node(event)
        if node is None:
            continue
        if not open_:
            root = node
        elif isinstance(open_[-1][0], Sequence):
            open_[-1][0].items.append(node)
        elif pending[-1] is None:
            pending[-1] = _key(node, file, open_[-1][1], problems)
        else:
            open_[-1][0].entries.append((pending[-1], node))
            pending[-1] = None
        if not isinstance(node, Scalar):
            open_.append((node, set()))
            pending.append(None)
    if root is None:
        raise Refused(Problem(file, Mark(), "empty file", "keys and values"))
    return root, problems


def _refuse_excess(event: yaml.Event, file: str, *, depth: int, second: bool) -> None:
    """Refuse what YAML has and the taxonomy does not need."""
    found = _excess(event, depth=depth, second=second)
    if found is not None:
        raise Refused(Problem(file, _mark(event), *found))


def _excess(event: yaml.Event, *, depth: int, second: bool) -> tuple[str, str] | None:
    if isinstance(event, yaml.AliasEvent):
        return f"alias *{event.anchor}", "the value written out"
    if isinstance(event, yaml.DocumentStartEvent) and second:
        return "a second document", "one document a file"
    if isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent)):
        if event.anchor:
            return f"anchor &{event.anchor}", "the value written out"
        if event.tag:
            return f"tag {shown(event.tag)}", "a plain value"
        if depth >= DEEPEST:
            return "nested too deep", f"at most {DEEPEST} levels"
    return None


def _node(event: yaml.Event) -> Node | None:
    mark = _mark(event) if event.start_mark else Mark()
    if isinstance(event, yaml.MappingStartEvent):
        return Mapping(mark)
    if isinstance(event, yaml.SequenceStartEvent):
        return Sequence(mark)
    if isinstance(event, yaml.ScalarEvent):
        plain = bool(event.implicit[0])
        return Scalar(mark, event.value, plain, _guess(event.value, plain))
    return None


@functools.cache
def _guess(text: str, plain: bool) -> str | None:
    """What YAML (1.1 or 1.2) would make of this text, unless that is a string."""
    if not plain or len(text) > 60:  # no longer a word, a number or a date
        return None
    tag = _resolver.resolve(yaml.ScalarNode, text, (True, False))
    kind = str(tag).rpartition(":")[2]
    if kind == "str":
        return "float" if _NUMBER.fullmatch(text) else None
    return kind


def _key(node: Node, file: str, seen: set[str], problems: list[Problem]) -> Scalar:
    if not isinstance(node, Scalar):
        raise Refused(Problem(file, node.mark, "a collection as a key", "a word"))
    if node.text in seen:
        what = f"key {shown(node.text)} occurs twice"
        problems.append(Problem(file, node.mark, what, "each key once"))
    seen.add(node.text)
    return node
