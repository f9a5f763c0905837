"""Modules of Python as one script: a page then runs the planner itself.

Strategies, meshes, stages, traffic, findings and sentences are plain Python of classes,
loops and generators; `writer` writes their functions, and here are the modules and
classes around them. Values are checked where they are made: `__post_init__` is left
out. Formulas that a module imports are written as `formulas` does, with their checks.
"""

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import json
import types
import typing
from collections.abc import Iterable, Iterator
from functools import cache
from types import ModuleType
from typing import Any, NoReturn

from atlas.formulas import FORMULAS, Formula
from atlas.script.formulas import RUNTIME, functions
from atlas.script.source import ScriptError, is_enum, is_record
from atlas.script.writer import Writer, constant, parameters

__all__ = ["needed", "transpile"]

PACKAGE = "atlas."
#: What is written one by one, as formulas.
FORMULAS_PACKAGE = "atlas.formulas"
KEPT_METHODS = ("__str__",)


def transpile(
    modules: Iterable[ModuleType], overrides: Iterable[str] = (), more: str = ""
) -> str:
    """One classic script that defines `atlasOracle`: module -> name -> value.

    `overrides` are names that the page defines itself, of the runtime; `more` is
    JavaScript that runs where the runtime, `$M` and `$F` can be seen.
    """
    own = list(modules)
    names = {module.__name__ for module in own}
    spread = set().union(*map(_called_with_spread, own))
    left_out = set(overrides)
    body = "".join(_Module(m, names, left_out, spread).text() for m in own)
    formulas = dict.fromkeys(fn for module in own for fn in _formulas(module))
    runtime = RUNTIME.read_text(encoding="utf-8")
    head = 'var atlasOracle = (function () {\n"use strict";\n'
    known = f"const $M = {{}}, $F = {functions(formulas)};\n"
    return f"{head}{runtime}{known}{body}{more}return $M;\n}})();\n"


def _formulas(module: ModuleType) -> Iterator[Formula]:
    """The formulas that a module imports."""
    for node in _parsed(module).body:
        if isinstance(node, ast.ImportFrom) and _of_formulas(node):
            yield from (FORMULAS[name.name] for name in node.names)


def _of_formulas(node: ast.ImportFrom) -> bool:
    return str(node.module).startswith(FORMULAS_PACKAGE)


@cache  # four passes read every module
def _parsed(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def needed(roots: Iterable[str]) -> list[ModuleType]:
    """These modules and those of ours that they import, each after its own."""
    found: dict[str, ModuleType] = {}

    def visit(name: str) -> None:
        if name in found:
            return
        module = importlib.import_module(name)
        for node in _parsed(module).body:
            if isinstance(node, ast.ImportFrom) and _is_written(node):
                for one in _imported(node):
                    visit(one)
        found[name] = module

    for root in roots:
        visit(root)
    return list(found.values())


def _is_written(node: ast.ImportFrom) -> bool:
    return str(node.module).startswith(PACKAGE) and not _of_formulas(node)


def _called_with_spread(module: ModuleType) -> set[str]:
    """The functions that a module calls with names that only a run knows: **given."""
    return {
        ast.unparse(node.func).rpartition(".")[2]
        for node in ast.walk(_parsed(module))
        if isinstance(node, ast.Call) and any(k.arg is None for k in node.keywords)
    }


def _imported(node: ast.ImportFrom) -> list[str]:
    """The modules that a statement imports, or imports from."""
    inside = [f"{node.module}.{name.name}" for name in node.names]
    modules = (
        [name for name in inside if importlib.util.find_spec(name)]
        if (hasattr(importlib.import_module(str(node.module)), "__path__"))
        else []
    )
    return modules or [str(node.module)]


def _record(kind: Any) -> str:
    """A NamedTuple as a class with the same fields."""
    defaults = [
        constant(kind._field_defaults[f]) if f in kind._field_defaults else "undefined"
        for f in kind._fields
    ]
    fields = json.dumps(kind._fields, separators=(",", ":"))
    name = kind.__name__
    return f'const {name} = $record("{name}", {fields}, [{",".join(defaults)}]);'


class _Module:
    """One module in a scope of its own."""

    def __init__(
        self,
        module: ModuleType,
        known: set[str],
        overrides: set[str],
        spread: set[str],
    ):
        self.module, self.known, self.overrides = module, known, overrides
        self.spread = spread
        self.names = vars(module)
        self.tree = _parsed(module)
        self.exports: list[str] = []

    def text(self) -> str:
        lines = [f'$M["{self.module.__name__}"] = (function () {{']
        for node in self.tree.body:
            lines += self.statement(node)
        inside = ", ".join(dict.fromkeys(self.exports))
        return "\n".join([*lines, f"return {{{inside}}};\n}})();\n"])

    def refuse(self, node: ast.AST, why: str) -> NoReturn:
        line = getattr(node, "lineno", 0)
        raise ScriptError(f"{self.module.__name__}:{line}: {why}")

    def statement(self, node: ast.stmt) -> list[str]:
        match node:
            case ast.Expr(value=ast.Constant()) | ast.Import():
                return []
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                return []
            case ast.ImportFrom():
                return _import(node, self.known)
            case ast.FunctionDef(name=name):
                if name in self.overrides:
                    return [f"const {name} = $runtime.{name};"]
                return self.function(node)
            case ast.ClassDef():
                self.exports.append(node.name)
                return _Class(self, node).text()
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                return self.constant(name, value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                return self.constant(name, value)
            case ast.AugAssign(target=ast.Name(id=name), value=value):
                made = Writer(self).expression(value)
                return [f"{name} = $union({name}, {made});"]
        self.refuse(node, f"cannot translate {type(node).__name__}")

    def constant(self, name: str, value: ast.expr) -> list[str]:
        known = getattr(self.module, name, None)
        typed = isinstance(known, typing.TypeVar | types.UnionType)
        if name == "__all__" or typed or hasattr(known, "__origin__"):
            return []
        if name in self.overrides:
            return []
        self.exports.append(name)
        return [f"let {name} = {Writer(self).expression(value)};"]

    def function(self, node: ast.FunctionDef) -> list[str]:
        self.exports.append(node.name)
        lines = [Writer(self, node).declaration(node.name)]
        if node.name in self.spread:
            lines.append(f"{node.name}.$p = {json.dumps(parameters(node.args))};")
        if any(_is_cache(d) for d in node.decorator_list):
            lines.append(f"{node.name} = $cached({node.name});")
        return lines


def _is_cache(node: ast.expr) -> bool:
    return "cache" in ast.unparse(node)


def _import(node: ast.ImportFrom, known: set[str]) -> list[str]:
    """What an import binds; modules that are not written bind nothing."""
    lines, taken = [], []
    for name in node.names:
        whole, own = f"{node.module}.{name.name}", name.asname or name.name
        if whole in known:
            lines.append(f'const {own} = $M["{whole}"];')
        else:
            taken.append(name.name if own == name.name else f"{name.name}: {own}")
    if _of_formulas(node):
        lines.append(f"const {{{', '.join(taken)}}} = $F;")
    elif taken and node.module in known:
        lines.append(f'const {{{", ".join(taken)}}} = $M["{node.module}"];')
    return lines


class _Class:
    """A class: a dataclass with its constructor, methods and properties."""

    def __init__(self, module: _Module, node: ast.ClassDef):
        self.module, self.node = module, node
        self.kind: Any = getattr(module.module, node.name)

    def text(self) -> list[str]:
        name = self.node.name
        if issubclass(self.kind, Exception):
            return [f"class {name} extends Error {{}}"]
        if is_record(self.kind):
            return [_record(self.kind)]
        if is_enum(self.kind):
            members = {m.name: m.value for m in self.kind}
            return [f"const {name} = Object.freeze({json.dumps(members)});"]
        bases = [ast.unparse(b) for b in self.node.bases]
        head = f"class {name}" + (f" extends {bases[0]}" if bases else "")
        lines = [f"{head} {{"]
        shape: list[str] = []
        if dataclasses.is_dataclass(self.kind):
            lines.append(self.constructor(bool(bases)))
            shape = self.shape()
        lines += [self.method(m) for m in self.node.body if _kept(m)]
        return [*lines, "}", *shape]

    def constructor(self, derived: bool) -> str:
        given, sets = [], []
        for f in dataclasses.fields(self.kind):
            default = self.default(f.name)
            if f.init:
                given.append(f"{f.name} = {default}" if default else f.name)
            sets.append(f"this.{f.name} = {f.name if f.init else default};")
        begin = "super(); " if derived else ""
        return f"constructor({', '.join(given)}) {{ {begin}{' '.join(sets)} }}"

    def default(self, name: str) -> str | None:
        """The default of a field, from the class that says it."""
        for kind in self.kind.__mro__:
            source = _class_source(self.module, kind)
            for node in source.body if source else []:
                match node:
                    case ast.AnnAssign(target=ast.Name(id=found), value=value) if (
                        found == name
                    ):
                        return self.written(value) if value is not None else None
        return None

    def written(self, value: ast.expr) -> str | None:
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
            for k in value.keywords:
                if k.arg == "default":
                    return Writer(self.module).expression(k.value)
                if k.arg == "default_factory":
                    return "{}"
            return None
        return Writer(self.module).expression(value)

    def shape(self) -> list[str]:
        fields = [f for f in dataclasses.fields(self.kind)]
        shown = [
            f"{{name: {json.dumps(f.name)}, init: {json.dumps(f.init)}, "
            f"default: {self.default(f.name) or 'undefined'}}}"
            for f in fields
        ]
        name = self.node.name
        given = json.dumps([f.name for f in fields if f.init])
        return [f"{name}.$p = {given};", f"{name}.$fields = [{', '.join(shown)}];"]

    def method(self, node: ast.stmt) -> str:
        assert isinstance(node, ast.FunctionDef)
        marks = {ast.unparse(d) for d in node.decorator_list}
        kind = "static " if "staticmethod" in marks else ""
        kind += "get " if "property" in marks else ""
        return Writer(self.module, node).method(kind, "staticmethod" in marks)


def _kept(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and (
        not node.name.startswith("__") or node.name in KEPT_METHODS
    )


def _class_source(module: _Module, kind: type) -> ast.ClassDef | None:
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
            return node
    return None
