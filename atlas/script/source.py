"""A formula's own source, taken apart: what is then written as LaTeX and JavaScript.

A formula may use this much of Python, and anything else is a `ScriptError` that
names the line: numbers, its arguments, names assigned once, + - * / // % **,
min, max, ceil, floor, `a if condition else b`, comparisons joined by and, or, not,
and calls of other formulas of its file or package.

An argument may also be a truth, a member of an enumeration, or a record: a NamedTuple
of these, of numbers and of records, whose fields are read with a dot; and a formula
may return one, made by name.

Range checks come first: `if condition: raise ValueError(...)`, or the call of a
function that returns None and holds nothing but range checks.
"""

import ast
import functools
import inspect
import math
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import FunctionType
from typing import Any, NoReturn, Protocol

from atlas.formulas.ranges import Range, ranges

__all__ = [
    "BUILTINS",
    "EXACT",
    "Formula",
    "Number",
    "Reader",
    "Record",
    "ScriptError",
    "Source",
    "arguments",
    "formula_source",
    "is_enum",
    "is_record",
    "nameable",
    "read",
]

Number = int | float
Formula = Callable[..., Number]

EXACT = 2**53  # the integers that a double holds exactly end here


class ScriptError(Exception):
    """Python that cannot be written in LaTeX or JavaScript; it names the line."""


@dataclass(frozen=True)
class Source:
    """A function taken apart."""

    fn: FunctionType
    file: str
    tree: ast.FunctionDef
    arguments: dict[str, type]  # a number, a truth, an enumeration or a record
    ranges: dict[str, Range]  # of the arguments that have one
    checks: list[ast.If | ast.Call]
    locals: dict[str, ast.expr]
    value: ast.expr | None  # None: a range check

    def refuse(self, node: ast.AST, why: str) -> NoReturn:
        line = getattr(node, "lineno", self.fn.__code__.co_firstlineno)
        raise ScriptError(f"{self.file}:{line}: {self.fn.__name__}: {why}")

    def type_of(self, node: ast.expr) -> Any:
        """The type of a name or a field; None of anything else."""
        match node:
            case ast.Name(id=name) if name in self.arguments:
                return self.arguments[name]
            case ast.Name(id=name) if name in self.locals:
                return self.type_of(self.locals[name])
            case ast.Attribute(value=value, attr=field):
                owner = self.type_of(value)
                return _fields(owner).get(field) if is_record(owner) else None
        return None

    def member(self, node: ast.expr) -> Enum | None:
        """The member of an enumeration that is named, if one is."""
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=member):
                kind: Any = self.fn.__globals__.get(name)
                if name not in self.arguments and is_enum(kind):
                    found: Enum = kind[member]
                    return found
        return None

    def is_condition(self, node: ast.expr) -> bool:
        """Whether it holds or does not, instead of being a number."""
        match node:
            case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                return True
            case ast.Constant(value=bool()):
                return True
        return self.type_of(node) is bool

    def called(self, node: ast.Call) -> "Source | str":
        """The function of the same file, or min, max, ceil, floor, that is called."""
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        found: Any = self.fn.__globals__.get(name, BUILTINS.get(name))
        fn = inspect.unwrap(found)
        if name in BUILTINS and fn is BUILTINS[name] and not node.keywords:
            return name
        if not isinstance(fn, FunctionType) or not _near(fn, self.fn):
            what = ast.unparse(node.func)
            self.refuse(
                node, f"calls {what}, which is no formula of its file or package"
            )
        callee = read(fn)
        if node.keywords or len(node.args) != len(callee.arguments):
            want = ", ".join(callee.arguments)
            self.refuse(node, f"{ast.unparse(node)}: expected {name}({want}) by place")
        return callee

    def record(self, node: ast.Call) -> "type[Record] | None":
        """The record that a call makes, if it makes one."""
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        found = self.fn.__globals__.get(name)
        return found if is_record(found) else None

    def made(self, node: ast.Call, record: "type[Record]") -> dict[str, ast.expr]:
        """The values given for a record's fields; the others have defaults."""
        name = record.__name__
        given = {k.arg: k.value for k in node.keywords if k.arg is not None}
        if node.args or len(given) != len(node.keywords):
            self.refuse(node, f"{name}: expected its fields by name")
        for field in given:
            if field not in record._fields:
                self.refuse(node, f"{name} has no field {field}")
        for field in record._fields:
            if field not in given and field not in record._field_defaults:
                self.refuse(node, f"{name} needs {field}")
        return given


class Record(Protocol):
    """What a NamedTuple class has."""

    __name__: str
    _fields: tuple[str, ...]
    _field_defaults: dict[str, Any]


def is_record(found: Any) -> bool:
    """Whether it is a class of records: a NamedTuple."""
    return (
        isinstance(found, type)
        and issubclass(found, tuple)
        and hasattr(found, "_field_defaults")
    )


def is_enum(found: Any) -> bool:
    """Whether it is an enumeration."""
    return isinstance(found, type) and issubclass(found, Enum)


@functools.cache
def _fields(record: type) -> dict[str, Any]:
    return typing.get_type_hints(record)


def _near(fn: FunctionType, other: FunctionType) -> bool:
    """In the same file or package, or one of atlas.formulas."""
    package = other.__module__.rpartition(".")[0]
    return (
        fn.__module__ == other.__module__
        or fn.__module__.startswith("atlas.formulas.")
        or (bool(package) and fn.__module__.rpartition(".")[0] == package)
    )


BUILTINS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "ceil": math.ceil,
    "floor": math.floor,
}
_PLAIN: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}
_RESERVED = """
    arguments atlasFormulas case catch const debugger default delete do enum eval
    export extends false function implements instanceof interface let new null
    package private protected public static super switch this throw true typeof
    undefined var void Math Number Object RangeError
"""


@functools.cache  # finding a function in its file is slow, and pages ask often
def read(fn: Callable[..., Any]) -> Source:
    """A function's arguments, checks, names and value, from its source."""
    fn = inspect.unwrap(fn)
    try:
        lines, first = inspect.getsourcelines(fn)
        tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, TypeError, SyntaxError):
        raise ScriptError(f"{fn!r}: has no source to read") from None
    if (
        not isinstance(fn, FunctionType)
        or not isinstance(tree, ast.FunctionDef)
        or tree.name != fn.__name__  # a lambda's lines hold what surrounds it
    ):
        raise ScriptError(f"{fn!r}: expected a function written with def")
    ast.increment_lineno(tree, first - 1)
    file = (inspect.getsourcefile(fn) or "?").rpartition("/")[2]
    source = Source(fn, file, tree, {}, {}, [], {}, None)
    if [ast.unparse(d) for d in tree.decorator_list] not in ([], ["formula"]):
        source.refuse(tree, "has a decorator: expected @formula, or none")
    source.arguments.update(_arguments(source, tree.args))
    source.ranges.update(ranges(fn) if tree.decorator_list else {})
    return _body(source, tree)


def _arguments(source: Source, args: ast.arguments) -> Iterator[tuple[str, type]]:
    if args.vararg or args.kwarg or args.kwonlyargs or args.posonlyargs:
        source.refuse(args, "expected plain arguments, without * or /")
    if args.defaults:
        source.refuse(args.defaults[0], "expected arguments without defaults")
    for arg in args.args:
        nameable(source, arg, arg.arg)
        yield arg.arg, _kind(source, arg)


def _kind(source: Source, arg: ast.arg) -> type:
    """An argument's type, without the range that may be part of it."""
    name = ast.unparse(arg.annotation) if arg.annotation else "nothing"
    kind: Any = source.fn.__globals__.get(name, _PLAIN.get(name))
    if typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    if kind in _PLAIN.values() or is_record(kind) or is_enum(kind):
        found: type = kind
        return found
    source.refuse(arg, f"{arg.arg} is typed {name}: expected int or float")


def nameable(source: Source, node: ast.AST, name: str) -> None:
    """Refuse a name that JavaScript needs itself."""
    if name in _RESERVED.split():
        source.refuse(node, f"{name} means something else in JavaScript: rename it")


def _body(source: Source, tree: ast.FunctionDef) -> Source:
    """Sort the statements: checks, then assignments, then one return."""
    body = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
    value: ast.expr | None = None
    for statement in body:
        match statement:
            case _ if value is not None:
                source.refuse(statement, "expected nothing after the return")
            case ast.If(body=[ast.Raise()], orelse=[]):
                source.checks.append(statement)
            case ast.Expr(value=ast.Call() as call):
                source.checks.append(call)
            case ast.Assign(targets=[ast.Name(id=name)]):
                if name in source.arguments or name in source.locals:
                    source.refuse(statement, f"{name} is assigned a second time")
                nameable(source, statement, name)
                source.locals[name] = statement.value
            case ast.Return(value=ast.expr() as result):
                value = result
            case _:
                head = ast.unparse(statement).splitlines()[0]
                source.refuse(statement, f"cannot write `{head}` in mathematics")
        if source.locals and isinstance(statement, ast.If | ast.Expr):
            source.refuse(statement, "expected range checks before assignments")
    if value is None and (source.locals or not _returns_none(tree)):
        source.refuse(tree, "expected a return at the end")
    return replace(source, value=value)


def _returns_none(tree: ast.FunctionDef) -> bool:
    return isinstance(tree.returns, ast.Constant) and tree.returns.value is None


def formula_source(fn: Callable[..., Any]) -> Source:
    """A formula taken apart; a range check is none."""
    source = read(fn)
    if source.value is None:
        raise ScriptError(f"{fn.__name__}: is a range check, not a formula")
    return source


class Reader(ast.NodeVisitor):
    """What all readings of an expression share: what they refuse."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def refuse(self, node: ast.AST, why: str) -> NoReturn:
        """Say what cannot be written, and where."""
        self.source.refuse(node, why)

    def value(self, node: ast.expr) -> Any:
        """A number, a record or a member of an enumeration."""
        if self.source.is_condition(node):
            self.refuse(node, f"`{ast.unparse(node)}` is used as a number")
        return self.visit(node)

    def condition(self, node: ast.expr) -> Any:
        """What holds or does not."""
        if not self.source.is_condition(node):
            self.refuse(node, f"`{ast.unparse(node)}` is used as a condition")
        return self.visit(node)

    def given(self, node: ast.expr, kind: Any) -> Any:
        """What is handed to a function or a field of that type."""
        return self.condition(node) if kind is bool else self.value(node)

    def callee(self, node: ast.Call) -> "Source | str":
        callee = self.source.called(node)
        if isinstance(callee, Source) and callee.value is None:
            self.refuse(node, f"{callee.fn.__name__} returns nothing")
        return callee

    def operation(self, node: ast.BinOp, known: Mapping[type[ast.AST], Any]) -> Any:
        if type(node.op) not in known:
            self.refuse(node, f"`{ast.unparse(node)}`: unknown operator")
        return known[type(node.op)]

    def comparisons(
        self, node: ast.Compare, known: Mapping[type[ast.AST], Any]
    ) -> Iterator[tuple[Any, Any, Any]]:
        """(left, operator, right) of each link of a chain like 0 <= r < p."""
        terms = [self.value(term) for term in (node.left, *node.comparators)]
        for left, op, right in zip(terms, node.ops, terms[1:], strict=False):
            if type(op) not in known:
                self.refuse(node, f"`{ast.unparse(node)}`: unknown comparison")
            yield left, known[type(op)], right

    def constant(self, node: ast.Constant) -> Number:
        number = node.value
        if (
            not isinstance(number, int | float)
            or isinstance(number, bool)
            or not abs(number) <= EXACT
        ):
            self.refuse(node, f"`{ast.unparse(node)}` is no number up to 2**53")
        return number

    def negated(self, node: ast.UnaryOp) -> ast.expr:
        if not isinstance(node.op, ast.USub):
            self.refuse(node, f"`{ast.unparse(node)}`: unknown operator")
        return node.operand

    def name(self, node: ast.Name, known: Mapping[str, Any]) -> Any:
        if node.id not in known:
            self.refuse(node, f"{node.id} is neither argument nor local name")
        return known[node.id]

    def generic_visit(self, node: ast.AST) -> NoReturn:
        self.refuse(node, f"cannot write `{ast.unparse(node)}` in mathematics")


def arguments(fn: Formula) -> tuple[str, ...]:
    """The names a formula takes, in order."""
    return tuple(inspect.signature(fn).parameters)
