"""Frozen dataclasses as a schema: marked YAML -> typed values, and JSON Schema.

A dataclass's annotations say what its YAML may hold, and both functions of this
file read them: `Reader.value` checks and converts a tree, collecting every problem
before it gives up, and `schema` describes the same types to an editor.

    T | None              may be left out
    Literal["a", "b"]     one of these words
    tuple[T, ...]         a list            tuple[T, T]   a list of exactly two
    Mapping[str, T]       keys of the author's choice
    Annotated[T, Rule]    T, and the rule holds
    Annotated[str, Ref]   the name of something defined elsewhere
"""

from __future__ import annotations

import collections.abc
import dataclasses
import difflib
import functools
import itertools
import math
import re
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from atlas.taxonomy.yamlmarks import (
    Mapping,
    Mark,
    Node,
    Problem,
    Scalar,
    Sequence,
    shown,
)


@dataclass(frozen=True)
class Rule:
    """A condition on a value: `holds`, said in words, and in JSON Schema."""

    expected: str
    holds: Callable[[Any], bool]
    schema: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Ref:
    """The value names a thing of this kind: a paper, a technique, a family."""

    kind: str


@dataclass(frozen=True)
class Reference:
    """A name that was used, and where."""

    kind: str
    name: str
    file: str
    mark: Mark


def pattern(regex: str, expected: str) -> Rule:
    """The whole text matches the regular expression."""
    compiled = re.compile(regex)
    described = (("pattern", f"^(?:{regex})$"),)
    return Rule(expected, lambda text: bool(compiled.fullmatch(text)), described)


def key(says: str, **options: Any) -> Any:
    """A dataclass field that is a YAML key, with the sentence editors show."""
    return field(metadata={"says": says}, **options)


def given(**options: Any) -> Any:
    """A dataclass field that the YAML does not hold: it follows from the place."""
    return field(metadata={"given": True}, **options)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` was probably meant to be."""
    close = difflib.get_close_matches(name[:80], list(known), n=1)
    return close[0] if close else None


def one_of(name: str, known: Iterable[str]) -> str:
    """The expectation "one of ...", with the nearest name first if there is one."""
    known = list(known)
    close = nearest(name, known)
    if close is not None:
        return f'"{close}"'
    if not known or len(known) > 12:
        return f"one of {len(known)} known names"
    return "one of " + ", ".join(known)


class _Bad:
    """Stands for a value that could not be read; the problem is already noted."""


BAD = _Bad()
_NONE = Mapping(Mark())


@functools.cache
def _fields(cls: type) -> dict[str, tuple[Any, dataclasses.Field[Any]]]:
    """The YAML keys of a dataclass: name -> (annotation, field).

    A word that Python keeps for itself, as `as`, is a field with an underscore.
    """
    hints = typing.get_type_hints(cls, include_extras=True)
    listed = [f for f in dataclasses.fields(cls) if "given" not in f.metadata]
    return {f.name.rstrip("_"): (hints[f.name], f) for f in listed}


@functools.cache
def _parts(hint: Any) -> tuple[bool, Any, tuple[Any, ...]]:
    """Of an annotation: whether it is a dataclass, its origin, its arguments."""
    record = dataclasses.is_dataclass(hint)
    return record, typing.get_origin(hint), typing.get_args(hint)


def _optional(f: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return f.default is not missing or f.default_factory is not missing


@dataclass
class Reader:
    """Reads the trees of one file; keeps problems, references and places.

    `checks` says what more must hold for a dataclass than its annotations can say.
    """

    file: str
    problems: list[Problem] = field(default_factory=list)
    checks: dict[type, Callable[[Any, Reader], None]] = field(default_factory=dict)
    references: list[Reference] = field(default_factory=list)
    _places: dict[int, tuple[Any, Mapping]] = field(default_factory=dict)

    def note(self, mark: Mark, what: str, expected: str) -> _Bad:
        """Record a problem."""
        self.problems.append(Problem(self.file, mark, what, expected))
        return BAD

    def place(self, value: Any, *names: str) -> Mark:
        """Where a dataclass, or what a path of its keys leads to, was written."""
        node: Node = self._places[id(value)][1] if id(value) in self._places else _NONE
        for name in names:
            entries = node.entries if isinstance(node, Mapping) else []
            node = next((item for k, item in entries if k.text == name), node)
        return node.mark

    def record(self, node: Node, cls: type, **given_: Any) -> Any:
        """A dataclass from a mapping: every key known, none missing."""
        if not isinstance(node, Mapping):
            return self._wrong(node, "keys and values")
        known = _fields(cls)
        values: dict[str, Any] = {}
        meant: set[str | None] = set()  # by a key that is not known
        for entry, item in node.entries:
            if entry.text not in known:
                what = f"unknown key {shown(entry.text)}"
                self.note(entry.mark, what, one_of(entry.text, known))
                meant.add(nearest(entry.text, known))
            elif entry.text not in values:
                values[entry.text] = self.value(item, known[entry.text][0])
        for name, (_, f) in known.items():
            if name in values or _optional(f):
                continue
            values[name] = BAD
            if name not in meant:
                self.note(node.mark, f'missing key "{name}"', str(f.metadata["says"]))
        if any(value is BAD for value in values.values()):
            return BAD
        made = cls(**given_, **{known[k][1].name: v for k, v in values.items()})
        self._places[id(made)] = (made, node)
        if cls in self.checks:
            self.checks[cls](made, self)
        return made

    def value(self, node: Node, hint: Any) -> Any:
        """The value a node holds, read as `hint`; BAD, and a problem, if it is not."""
        record, origin, args = _parts(hint)
        if record:
            return self.record(node, typing.cast(type, hint))
        if origin is Annotated:
            return self._annotated(node, args[0], args[1:])
        if origin is types.UnionType or origin is typing.Union:
            return self.value(node, next(a for a in args if a is not type(None)))
        if origin is Literal:
            text = self._text(node)
            if text is not BAD and text not in args:
                return self.note(node.mark, shown(text), one_of(text, args))
            return text
        if origin is tuple:
            return self._tuple(node, args)
        if origin is collections.abc.Mapping:
            return self._mapping(node, args[0], args[1])
        return self._scalar(node, hint)

    def _annotated(self, node: Node, hint: Any, notes: tuple[Any, ...]) -> Any:
        value = self.value(node, hint)
        for note in notes:
            if value is BAD:
                break
            if isinstance(note, Ref):
                used = Reference(note.kind, value, self.file, node.mark)
                self.references.append(used)
            elif not note.holds(value):
                value = self.note(node.mark, shown(str(value)), note.expected)
        return value

    def _tuple(self, node: Node, args: tuple[Any, ...]) -> Any:
        if not isinstance(node, Sequence):
            return self._wrong(node, "a list")
        many = args[-1] is Ellipsis
        if not many and len(node.items) != len(args):
            what = f"a list of {len(node.items)}"
            return self.note(node.mark, what, f"a list of {len(args)}")
        hints = [args[0]] * len(node.items) if many else list(args)
        items = [self.value(i, h) for i, h in zip(node.items, hints, strict=True)]
        return BAD if any(i is BAD for i in items) else tuple(items)

    def _mapping(self, node: Node, key_hint: Any, hint: Any) -> Any:
        if not isinstance(node, Mapping):
            return self._wrong(node, "keys and values")
        pairs = [
            (self.value(k, key_hint), self.value(v, hint)) for k, v in node.entries
        ]
        return BAD if any(BAD in pair for pair in pairs) else dict(pairs)

    def _scalar(self, node: Node, hint: Any) -> Any:
        if hint is str:
            return self._text(node)
        if not isinstance(node, Scalar):
            return self._wrong(node, _NAMES[hint])
        if node.plain:
            if hint is bool and node.text in ("true", "false"):
                return node.text == "true"
            if hint is int and re.fullmatch(r"-?(0|[1-9]\d{0,17})", node.text):
                return int(node.text)
            if hint is float and (number := _finite(node.text)) is not None:
                return number
        return self._wrong(node, _NAMES[hint])

    def _text(self, node: Node) -> Any:
        if not isinstance(node, Scalar):
            return self._wrong(node, "text")
        if node.guessed == "null":
            return self.note(node.mark, "no value", "text, or the key left out")
        if node.guessed is not None:
            what = f"{node.text}, which YAML reads as {node.guessed}"
            return self.note(node.mark, what, f'text in quotes, "{node.text}"')
        return node.text

    def _wrong(self, node: Node, expected: str) -> _Bad:
        what = "a list" if isinstance(node, Sequence) else "keys and values"
        if isinstance(node, Scalar):
            what = shown(node.text) if node.text else "no value"
        return self.note(node.mark, what, expected)


_NAMES = {int: "a whole number", float: "a number", bool: "true or false"}


def _finite(text: str) -> float | None:
    """The number, if it is written as one and finite."""
    if not re.fullmatch(r"[-+]?\d{1,30}(\.\d{1,30})?([eE][-+]?\d{1,4})?", text):
        return None
    number = float(text)
    return number if math.isfinite(number) else None


def schema(hint: Any) -> dict[str, Any]:
    """JSON Schema (2020-12) of what `Reader.value` accepts for the same hint."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _object(typing.cast(type, hint))
    if origin is Annotated:
        rules = [note.schema for note in args[1:] if isinstance(note, Rule)]
        return {**schema(args[0]), **dict(itertools.chain(*rules))}
    if origin is types.UnionType or origin is typing.Union:
        return schema(next(a for a in args if a is not type(None)))
    if origin is Literal:
        return {"enum": list(args)}
    if origin is tuple and args[-1] is Ellipsis:
        return {"type": "array", "items": schema(args[0])}
    if origin is tuple:
        n = len(args)
        items = schema(args[0])
        return {"type": "array", "items": items, "minItems": n, "maxItems": n}
    if origin is collections.abc.Mapping:
        return {"type": "object", "additionalProperties": schema(args[1])}
    names = {str: "string", int: "integer", float: "number", bool: "boolean"}
    return {"type": names[hint]}


def _object(cls: type) -> dict[str, Any]:
    known = _fields(cls)
    properties = {
        name: {"description": str(f.metadata["says"]), **schema(hint)}
        for name, (hint, f) in known.items()
    }
    return {
        "type": "object",
        "description": (cls.__doc__ or "").strip().splitlines()[0],
        "properties": properties,
        "required": [name for name, (_, f) in known.items() if not _optional(f)],
        "additionalProperties": False,
    }
