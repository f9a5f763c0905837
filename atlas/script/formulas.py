"""Formulas as a script of functions, each with the checks of its arguments.

A formula is read by `source`, which refuses what is not mathematics, and written by
`writer`. It throws a RangeError with the words of the Python, and, since JavaScript has
no types, also refuses what is not a number, or not whole where the formula says int.
"""

import ast
import json
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from atlas.formulas.ranges import AtLeast, Range
from atlas.script.source import (
    Formula,
    Reader,
    Record,
    ScriptError,
    Source,
    formula_source,
    is_enum,
    is_record,
    nameable,
)
from atlas.script.writer import BINARY, ORDER, Writer, constant

__all__ = ["RUNTIME", "Script", "functions", "javascript"]

#: Python's own words, in as much of JavaScript as is needed.
RUNTIME = Path(__file__).with_name("python.js")
#: Formulas need the runtime up to here.
ARITHMETIC_ENDS = "// --- values"


def javascript(fns: Iterable[Formula]) -> str:
    """One classic script that defines `atlasFormulas`: a function for each formula.

    Arguments go by place, as in Python; what the formulas call is in the script too.
    """
    runtime = RUNTIME.read_text(encoding="utf-8").partition(ARITHMETIC_ENDS)[0]
    head = 'var atlasFormulas = (function () {\n"use strict";\n'
    return f"{head}{runtime}return {functions(fns)};\n}})();\n"


def functions(fns: Iterable[Formula]) -> str:
    """An object of functions, for where the runtime can be seen."""
    public = [formula_source(fn) for fn in fns]
    todo, done = list(public), dict[str, Source]()
    written = []
    while todo:
        source = todo.pop(0)
        name = source.fn.__name__
        if name not in done:
            done[name] = source
            todo += _Check(source).called()
            written.append(_function(source))
        elif done[name].fn is not source.fn:
            source.refuse(ast.Pass(), "another formula has this name")
    shapes = "".join(sorted(_shapes(done.values())))
    names = ", ".join(dict.fromkeys(source.fn.__name__ for source in public))
    return (
        f"(function () {{\n{shapes}{''.join(written)}"
        f"return Object.freeze({{{names}}});\n}})()"
    )


class _Check(Reader):
    """Refuses what is not mathematics, and finds the functions that are called."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.needs: list[Source] = []
        self.names = {*source.arguments, *source.locals}

    def called(self) -> list[Source]:
        for check in self.source.checks:
            self.check(check)
        for node in self.source.locals.values():
            self.visit(node)
        if self.source.value is not None:
            self.visit(self.source.value)
        return self.needs

    def check(self, node: ast.If | ast.Call) -> None:
        if isinstance(node, ast.Call):
            callee = self.source.called(node)
            if isinstance(callee, str) or callee.value is not None:
                self.refuse(node, f"`{ast.unparse(node)}` changes nothing")
            self.needs.append(callee)
            return
        self.condition(node.test)
        match node.body:
            case [ast.Raise(exc=ast.Call(func=ast.Name(id="ValueError"), args=[_]))]:
                return
        self.refuse(node.body[0], "expected `raise ValueError(one message)`")

    def visit_Constant(self, node: ast.Constant) -> None:
        if not isinstance(node.value, bool):
            self.constant(node)

    def visit_Name(self, node: ast.Name) -> None:
        self.name(node, dict.fromkeys(self.names))

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self.operation(node, _ARITHMETIC)
        self.value(node.left)
        self.value(node.right)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self.condition(node.operand)
        else:
            self.value(self.negated(node))

    def visit_Compare(self, node: ast.Compare) -> None:
        for _ in self.comparisons(node, _COMPARED):
            pass

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for part in node.values:
            self.condition(part)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.condition(node.test)
        self.value(node.body)
        self.value(node.orelse)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if self.source.member(node) is None:
            self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        record = self.source.record(node)
        if record is not None:
            hints = typing.get_type_hints(record)
            for field, value in self.source.made(node, record).items():
                self.given(value, hints[field])
            return
        callee = self.callee(node)
        if isinstance(callee, str):
            for arg in node.args:
                self.value(arg)
            return
        self.needs.append(callee)
        for arg, kind in zip(node.args, callee.arguments.values(), strict=True):
            self.given(arg, kind)


_ARITHMETIC = {k: v for k, v in BINARY.items() if k not in (ast.BitOr, ast.BitAnd)}
_COMPARED = {**ORDER, ast.Eq: "===", ast.NotEq: "!=="}


class Script(Writer):
    """A formula's function: it stands alone, and all of it is numbers."""

    def __init__(self, source: Source) -> None:
        super().__init__(_Scope(source), source.tree)
        self.source = source

    def is_number(self, node: ast.expr) -> bool:
        return True

    def statement(self, node: ast.stmt) -> list[str]:
        match node:
            case ast.Return(value=ast.expr() as value) if not is_record(self.returned):
                return [f"return {self.expression(value)} + 0;"]  # never -0
        return super().statement(node)

    @property
    def returned(self) -> Any:
        return typing.get_type_hints(self.source.fn).get("return")

    def visit_Call(self, node: ast.Call) -> str:
        record = self.source.record(node)
        if record is not None:
            return self.record(record, node)
        if isinstance(node.func, ast.Name) and node.func.id in ("ValueError",):
            return f"new RangeError({self.expression(node.args[0])})"
        callee = self.source.called(node)
        given = ", ".join(map(self.expression, node.args))
        return (
            f"Math.{callee}({given})"
            if isinstance(callee, str)
            else (f"{callee.fn.__name__}({given})")
        )

    def record(self, record: type[Record], node: ast.Call) -> str:
        """An object with all of a record's fields."""
        made = {
            field: self.expression(value)
            for field, value in self.source.made(node, record).items()
        }
        defaults = {f: constant(v) for f, v in record._field_defaults.items()}
        fields = {**defaults, **made}
        return "{" + ", ".join(f"{f}: {fields[f]}" for f in record._fields) + "}"


class _Scope:
    """What surrounds a formula."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.names = source.fn.__globals__

    def refuse(self, node: ast.AST, why: str) -> NoReturn:
        self.source.refuse(node, why)


def _function(source: Source) -> str:
    nameable(source, ast.Pass(), source.fn.__name__)
    script = Script(source)
    head = f"function {source.fn.__name__}({script.parameters(0)}) "
    checks = _guards(source) if source.value is not None else []
    checks += [_range(name, rule) for name, rule in source.ranges.items()]
    return f"{head}{script.block(chr(10).join(checks))}\n"


def _guards(source: Source) -> list[str]:
    """The types of the arguments, which JavaScript does not check."""
    guards = {int: "$whole", float: "$number", bool: "$bool"}
    lines = []
    for name, kind in source.arguments.items():
        if is_record(kind):
            lines.append(f'$shape("{name}", {name}, ${kind.__name__});')
        elif is_enum(kind):
            lines.append(f'$one("{name}", {name}, {json.dumps(_shape(kind))});')
        elif kind in guards:
            lines.append(f'{guards[kind]}("{name}", {name});')
        else:
            raise ScriptError(f"{source.fn.__name__}: {name} is typed {kind.__name__}")
    return lines


def _range(name: str, rule: Range) -> str:
    """The check that `@formula` makes, with the same words."""
    if isinstance(rule, AtLeast):
        return f'$least("{name}", {name}, {rule.least});'
    return f'$below("{name}", {name}, "{rule.limit}", {rule.limit});'


def _shapes(sources: Iterable[Source]) -> set[str]:
    """For every record that an argument is: what its fields may be."""
    kinds = {kind for source in sources for kind in source.arguments.values()}
    return {
        f"const ${kind.__name__} = {json.dumps(_shape(kind))};\n"
        for kind in kinds
        if is_record(kind)
    }


def _shape(kind: Any) -> Any:
    """0 where whole, 0.5 where any number, or true; a list of values; or fields."""
    if is_record(kind):
        hints = typing.get_type_hints(kind)
        return {field: _shape(hints[field]) for field in kind._fields}
    if is_enum(kind):
        return [member.value for member in kind]
    return {int: 0, float: 0.5, bool: True}[kind]
