"""The sizes that an exemplar's `main` takes: read from its source, not by running it.

arguments(technique)             # {"elements": Argument("elements", "int", "100_003")}
parsed(technique, ["elements=1000"])                          # {"elements": 1000}
"""

import ast
import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atlas.launch import ROOT
from atlas.taxonomy import Technique

__all__ = ["Argument", "ArgumentError", "arguments", "parsed"]

KINDS = {
    "int": "a whole number, 0 or more",
    "float": "a number",
    "bool": "true or false",
}


class ArgumentError(ValueError):
    """A size that the exemplar does not have, or a value that it cannot be."""


@dataclass(frozen=True)
class Argument:
    """A keyword of `main`: its type and its default, as they are written."""

    name: str
    kind: str
    default: str

    def value(self, text: str) -> Any:
        """What a reader typed, as the type that main wants."""
        plain = text.strip()
        try:
            if self.kind == "int" and int(plain) >= 0:
                return int(plain)
            if self.kind == "float":
                return float(plain)
        except ValueError:
            pass
        if self.kind == "bool" and plain.lower() in ("true", "false"):
            return plain.lower() == "true"
        if self.kind not in KINDS:
            return plain
        wants = KINDS[self.kind]
        raise ArgumentError(
            f"{self.name}={text}: expected {wants}, such as {self.name}={self.default}"
        )


def arguments(technique: Technique, root: Path = ROOT) -> dict[str, Argument]:
    """The keyword-only arguments of the exemplar's main, in their order."""
    text = (root / technique.exemplar).read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == "main":
            pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            return {a.arg: _argument(a, default, text) for a, default in pairs}
    return {}


def _argument(arg: ast.arg, default: ast.expr | None, text: str) -> Argument:
    kind = ast.unparse(arg.annotation) if arg.annotation else "str"
    written = default and ast.get_source_segment(text, default)
    return Argument(arg.arg, kind, written or "")


def parsed(
    technique: Technique, words: Iterable[str], root: Path = ROOT
) -> dict[str, Any]:
    """Sizes from words like elements=1000; a wrong one is an ArgumentError."""
    known = arguments(technique, root)
    sizes: dict[str, Any] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign:
            raise ArgumentError(
                f"{word}: expected NAME=VALUE; {_legal(technique, known)}"
            )
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            meant = f"did you mean {near[0]}? " if near else ""
            raise ArgumentError(
                f"{word}: no such size; {meant}{_legal(technique, known)}"
            )
        if name in sizes:
            raise ArgumentError(f"{word}: {name} is given twice")
        sizes[name] = known[name].value(value)
    return sizes


def _legal(technique: Technique, known: dict[str, Argument]) -> str:
    if not known:
        return f"{technique.id} has no size to set"
    listed = ", ".join(f"{a.name}={a.default}" for a in known.values())
    return f"{technique.id} has {listed}"
