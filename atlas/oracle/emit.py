"""Write a formula's own source again, as LaTeX and as JavaScript.

A formula may use this much of Python, and anything else is an `EmitError` that
names the line: numbers, its arguments, names assigned once, + - * / // % **,
min, max, ceil, floor, `a if condition else b`, comparisons joined by and, or, not,
and calls of other formulas of its file or package.

An argument may also be a record, a NamedTuple of numbers and of records, whose
fields are read with a dot; and a formula may return one, made by name. A record is
an object with the same fields in JavaScript, and LaTeX writes the field alone.

Range checks come first: `if condition: raise ValueError(...)`, or the call of a
function that returns None and holds nothing but range checks. LaTeX leaves them
out. JavaScript keeps them: it throws a RangeError with the words of the Python,
and, since it has no types, also refuses what is not a number, or not whole where
the formula says int.

JavaScript's numbers are doubles: integers are exact up to 2**53, `//` and `%`
round as Python's do, and a larger result is rounded to 53 bits.
"""

import ast
import functools
import inspect
import json
import math
import operator
import textwrap
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, NoReturn, Protocol

__all__ = ["EmitError", "arguments", "formula_latex", "javascript", "latex"]

Number = int | float
Formula = Callable[..., Number]

EXACT = 2**53  # the integers that a double holds exactly end here


class EmitError(Exception):
    """A formula uses what cannot be written in LaTeX and JavaScript."""


# Reading a formula's source


@dataclass(frozen=True)
class _Source:
    """A function taken apart."""

    fn: FunctionType
    file: str
    arguments: dict[str, str]  # name -> int, float, str or the name of a record
    checks: list[ast.If | ast.Call]
    locals: dict[str, ast.expr]
    value: ast.expr | None  # None: a range check

    def refuse(self, node: ast.AST, why: str) -> NoReturn:
        line = getattr(node, "lineno", self.fn.__code__.co_firstlineno)
        raise EmitError(f"{self.file}:{line}: {self.fn.__name__}: {why}")

    def called(self, node: ast.Call) -> "_Source | str":
        """The function of the same file, or min, max, ceil, floor, that is called."""
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        fn = self.fn.__globals__.get(name, _BUILTINS.get(name))
        if name in _BUILTINS and fn is _BUILTINS[name] and not node.keywords:
            return name
        if not isinstance(fn, FunctionType) or not _near(fn, self.fn):
            what = ast.unparse(node.func)
            self.refuse(
                node, f"calls {what}, which is no formula of its file or package"
            )
        callee = _read(fn)
        if node.keywords or len(node.args) != len(callee.arguments):
            want = ", ".join(callee.arguments)
            self.refuse(node, f"{ast.unparse(node)}: expected {name}({want}) by place")
        return callee

    def record(self, name: str) -> "type[_Record] | None":
        """The record of that name, if it is one that the function's file knows."""
        found = self.fn.__globals__.get(name)
        return found if _is_record(found) else None

    def made(self, node: ast.Call, record: "type[_Record]") -> dict[str, ast.expr]:
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


class _Record(Protocol):
    """What a NamedTuple class has."""

    __name__: str
    _fields: tuple[str, ...]
    _field_defaults: dict[str, Any]


def _is_record(found: Any) -> bool:
    return (
        isinstance(found, type)
        and issubclass(found, tuple)
        and hasattr(found, "_field_defaults")
    )


def _near(fn: FunctionType, other: FunctionType) -> bool:
    """In the same file, or in the same package."""
    package = other.__module__.rpartition(".")[0]
    return fn.__module__ == other.__module__ or (
        bool(package) and fn.__module__.rpartition(".")[0] == package
    )


_BUILTINS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "ceil": math.ceil,
    "floor": math.floor,
}
_RESERVED = """
    arguments atlasFormulas case catch const debugger default delete do enum eval
    export extends false function implements instanceof interface let new null
    package private protected public static super switch this throw true typeof
    undefined var void Math Number Object RangeError
"""


@functools.cache  # finding a function in its file is slow, and pages ask often
def _read(fn: Callable[..., Any]) -> _Source:
    try:
        lines, first = inspect.getsourcelines(fn)
        tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, TypeError, SyntaxError):
        raise EmitError(f"{fn!r}: has no source to read") from None
    if (
        not isinstance(fn, FunctionType)
        or not isinstance(tree, ast.FunctionDef)
        or tree.name != fn.__name__  # a lambda's lines hold what surrounds it
    ):
        raise EmitError(f"{fn!r}: expected a function written with def")
    ast.increment_lineno(tree, first - 1)
    file = (inspect.getsourcefile(fn) or "?").rpartition("/")[2]
    source = _Source(fn, file, {}, [], {}, None)
    if tree.decorator_list:
        source.refuse(tree, "has a decorator: expected a plain function")
    source.arguments.update(_arguments(source, tree.args))
    return _body(source, tree)


def _arguments(source: _Source, args: ast.arguments) -> Iterator[tuple[str, str]]:
    if args.vararg or args.kwarg or args.kwonlyargs or args.posonlyargs:
        source.refuse(args, "expected plain arguments, without * or /")
    if args.defaults:
        source.refuse(args.defaults[0], "expected arguments without defaults")
    for arg in args.args:
        kind = ast.unparse(arg.annotation) if arg.annotation else "nothing"
        if kind not in {"int", "float", "str"} and source.record(kind) is None:
            source.refuse(arg, f"{arg.arg} is typed {kind}: expected int or float")
        _nameable(source, arg, arg.arg)
        yield arg.arg, kind


def _nameable(source: _Source, node: ast.AST, name: str) -> None:
    if name in _RESERVED.split():
        source.refuse(node, f"{name} means something else in JavaScript: rename it")


def _body(source: _Source, tree: ast.FunctionDef) -> _Source:
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
                _nameable(source, statement, name)
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


def _formula(fn: Formula) -> _Source:
    source = _read(fn)
    if source.value is None:
        raise EmitError(f"{fn.__name__}: is a range check, not a formula")
    return source


class _Writer(ast.NodeVisitor):
    """What the three readings of an expression share: what they refuse."""

    def __init__(self, source: _Source) -> None:
        self.source = source

    def value(self, node: ast.expr) -> Any:
        if _is_condition(node):
            self.source.refuse(node, f"`{ast.unparse(node)}` is used as a number")
        return self.visit(node)

    def condition(self, node: ast.expr) -> Any:
        if not _is_condition(node):
            self.source.refuse(node, f"`{ast.unparse(node)}` is used as a condition")
        return self.visit(node)

    def callee(self, node: ast.Call) -> "_Source | str":
        callee = self.source.called(node)
        if isinstance(callee, _Source) and callee.value is None:
            self.source.refuse(node, f"{callee.fn.__name__} returns nothing")
        return callee

    def operation(self, node: ast.BinOp, known: Mapping[type[ast.AST], Any]) -> Any:
        if type(node.op) not in known:
            self.source.refuse(node, f"`{ast.unparse(node)}`: unknown operator")
        return known[type(node.op)]

    def comparisons(
        self, node: ast.Compare, known: Mapping[type[ast.AST], Any]
    ) -> Iterator[tuple[Any, Any, Any]]:
        """(left, operator, right) of each link of a chain like 0 <= r < p."""
        terms = [self.value(term) for term in (node.left, *node.comparators)]
        for left, op, right in zip(terms, node.ops, terms[1:], strict=False):
            if type(op) not in known:
                self.source.refuse(node, f"`{ast.unparse(node)}`: unknown comparison")
            yield left, known[type(op)], right

    def constant(self, node: ast.Constant) -> Number:
        number = node.value
        if (
            not isinstance(number, int | float)
            or isinstance(number, bool)
            or not abs(number) <= EXACT
        ):
            self.source.refuse(node, f"`{ast.unparse(node)}` is no number up to 2**53")
        return number

    def negated(self, node: ast.UnaryOp) -> ast.expr:
        if not isinstance(node.op, ast.USub):
            self.source.refuse(node, f"`{ast.unparse(node)}`: unknown operator")
        return node.operand

    def making(self, node: ast.Call) -> "type[_Record] | None":
        """The record that a call makes, if it makes one."""
        return self.source.record(
            node.func.id if isinstance(node.func, ast.Name) else ""
        )

    def name(self, node: ast.Name, known: Mapping[str, Any]) -> Any:
        if node.id not in known:
            self.source.refuse(node, f"{node.id} is neither argument nor local name")
        return known[node.id]

    def generic_visit(self, node: ast.AST) -> NoReturn:
        self.source.refuse(node, f"cannot write `{ast.unparse(node)}` in mathematics")


def _is_condition(node: ast.expr) -> bool:
    return isinstance(node, ast.Compare | ast.BoolOp) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    )


def arguments(fn: Formula) -> tuple[str, ...]:
    """The names a formula takes, in order."""
    return tuple(inspect.signature(fn).parameters)


class _Evaluator(_Writer):
    """What the branches and calls come to for one set of values."""

    arithmetic: Mapping[type[ast.AST], Callable[[Any, Any], Number]] = {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.truediv,
        ast.FloorDiv: operator.floordiv,
        ast.Mod: operator.mod,
        ast.Pow: operator.pow,
    }
    order: Mapping[type[ast.AST], Callable[[Any, Any], bool]] = {
        ast.Eq: operator.eq,
        ast.NotEq: operator.ne,
        ast.Lt: operator.lt,
        ast.LtE: operator.le,
        ast.Gt: operator.gt,
        ast.GtE: operator.ge,
    }

    def __init__(self, source: _Source, values: Mapping[str, Any]) -> None:
        super().__init__(source)
        self.names = dict(values)
        for name, node in source.locals.items():
            self.names[name] = self.value(node)

    def visit_Constant(self, node: ast.Constant) -> Number:
        return self.constant(node)

    def visit_Name(self, node: ast.Name) -> Number:
        found: Number = self.name(node, self.names)
        return found

    def visit_BinOp(self, node: ast.BinOp) -> Number:
        result: Number = self.operation(node, self.arithmetic)(
            self.value(node.left), self.value(node.right)
        )
        return result

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            return not self.condition(node.operand)
        return -self.value(self.negated(node))

    def visit_Compare(self, node: ast.Compare) -> bool:
        return all(op(a, b) for a, op, b in self.comparisons(node, self.order))

    def visit_BoolOp(self, node: ast.BoolOp) -> bool:
        every = all if isinstance(node.op, ast.And) else any
        return every(self.condition(part) for part in node.values)

    def visit_IfExp(self, node: ast.IfExp) -> Number:
        taken: Number = self.value(
            node.body if self.condition(node.test) else node.orelse
        )
        return taken

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        return getattr(self.visit(node.value), node.attr)

    def visit_Call(self, node: ast.Call) -> Number:
        callee = self.callee(node)
        fn = _BUILTINS[callee] if isinstance(callee, str) else callee.fn
        result: Number = fn(*(self.value(arg) for arg in node.args))
        return result


# LaTeX

_MOD, _SUM, _PRODUCT, _ATOM = range(4)  # how tightly a piece holds together
_GREEK = {"alpha", "beta", "gamma", "delta", "eta", "theta", "mu", "psi"}


@dataclass(frozen=True)
class _Piece:
    text: str
    hold: int = _ATOM

    def at(self, hold: int) -> str:
        """The text, in brackets if it holds less tightly than that."""
        return self.text if self.hold >= hold else _bracket(self.text)


def _bracket(text: str) -> str:
    tall = any(mark in text for mark in (r"\frac", r"\begin", r"\left"))
    return rf"\left({text}\right)" if tall else f"({text})"


def latex(fn: Formula) -> str:
    """The formula's right-hand side in its arguments, calls of others written out."""
    source = _formula(fn)
    return _Latex(source, _symbols(source)).text()


def formula_latex(fn: Formula, values: Mapping[str, Any]) -> str:
    """The formula with these numbers put in, an equals sign, and its value.

    Of the cases only the one that holds is written; a call is written as its value.
    A fraction is shown to 6 digits, after an approximately-equal sign if it has more.
    """
    source = _formula(fn)
    if set(values) != set(source.arguments):
        given = ", ".join(values) or "nothing"
        want = ", ".join(source.arguments) or "nothing"
        raise ValueError(f"{fn.__name__} takes {want}: given {given}")
    exact = fn(**values)
    shown = float(f"{exact:.6g}") if isinstance(exact, float) else exact
    result = _numeral(shown).text
    numbers = {
        name: _Piece("") if isinstance(value, tuple) else _numeral(value)
        for name, value in values.items()
    }
    text = _Latex(source, numbers, _Evaluator(source, values)).text()
    sign = "=" if shown == exact else r"\approx"
    return result if text == result else f"{text} {sign} {result}"


def _symbols(source: _Source) -> dict[str, _Piece]:
    return {name: _Piece(_symbol(name)) for name in source.arguments}


def _symbol(name: str) -> str:
    if name in _GREEK:
        return rf"\{name}"
    if name == "l":
        return r"\ell"  # a lone l looks like a 1
    return name if len(name) == 1 else _upright(name)


def _upright(name: str) -> str:
    escaped = name.replace("_", r"\_")
    return rf"\mathrm{{{escaped}}}"


def _numeral(value: Number) -> _Piece:
    if isinstance(value, float) and value.is_integer() and abs(value) <= EXACT:
        value = int(value)
    if isinstance(value, int):
        digits = f"{value:,}".replace(",", r"\,") if abs(value) > 9999 else str(value)
    else:
        digits, _, exponent = repr(value).partition("e")
        if exponent:
            power = f"10^{{{int(exponent)}}}"
            digits = power if digits == "1" else rf"{digits} \cdot {power}"
            return _Piece(digits, _PRODUCT if value >= 0 else _SUM)
    return _Piece(digits, _ATOM if value >= 0 else _SUM)


class _Latex(_Writer):
    relations: Mapping[type[ast.AST], str] = {
        ast.Eq: "=",
        ast.NotEq: r"\neq",
        ast.Lt: "<",
        ast.LtE: r"\le",
        ast.Gt: ">",
        ast.GtE: r"\ge",
    }

    def __init__(
        self,
        source: _Source,
        names: Mapping[str, _Piece],
        values: _Evaluator | None = None,
        callers: tuple[FunctionType, ...] = (),
    ) -> None:
        super().__init__(source)
        self.values = values
        self.callers = (*callers, source.fn)
        self.names = dict(names)
        self.pending = dict(source.locals)

    def text(self) -> str:
        return self.piece().text

    def piece(self) -> _Piece:
        assert self.source.value is not None
        piece: _Piece = self.value(self.source.value)
        return piece

    def visit_Constant(self, node: ast.Constant) -> _Piece:
        return _numeral(self.constant(node))

    def visit_Name(self, node: ast.Name) -> _Piece:
        if node.id in self.pending:
            self.names[node.id] = self.value(self.pending.pop(node.id))
        piece: _Piece = self.name(node, self.names)
        return piece

    def visit_Attribute(self, node: ast.Attribute) -> _Piece:
        if self.values is not None:
            return _numeral(self.values.visit(node))
        return _Piece(_symbol(node.attr))

    def visit_BinOp(self, node: ast.BinOp) -> _Piece:
        write: Callable[[_Piece, _Piece], _Piece] = self.operation(node, _OPERATIONS)
        return write(self.value(node.left), self.value(node.right))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> _Piece:
        match node:
            case ast.UnaryOp(op=ast.Not()):
                return _Piece(rf"\neg {_bracket(self.condition(node.operand).text)}")
            case ast.UnaryOp(
                op=ast.USub(),
                operand=ast.BinOp(
                    left=ast.UnaryOp(op=ast.USub(), operand=over),
                    op=ast.FloorDiv(),
                    right=under,
                ),
            ):  # -(-a // b) is how Python writes a / b rounded up
                return _ceil(_fraction(self.value(over), self.value(under)))
        inner: _Piece = self.value(self.negated(node))
        return _Piece(f"-{inner.at(_PRODUCT)}", _SUM)

    def visit_Compare(self, node: ast.Compare) -> _Piece:
        text = ""
        for left, relation, right in self.comparisons(node, self.relations):
            text = f"{text or left.text} {relation} {right.text}"
        return _Piece(text)

    def visit_BoolOp(self, node: ast.BoolOp) -> _Piece:
        word = "and" if isinstance(node.op, ast.And) else "or"
        parts = [
            _bracket(self.condition(part).text)
            if isinstance(part, ast.BoolOp)
            else self.condition(part).text
            for part in node.values
        ]
        return _Piece(rf" \text{{ {word} }} ".join(parts))

    def visit_IfExp(self, node: ast.IfExp) -> _Piece:
        if self.values is not None:
            holds = self.values.condition(node.test)
            taken: _Piece = self.value(node.body if holds else node.orelse)
            return taken
        rows = []
        rest: ast.expr = node
        while isinstance(rest, ast.IfExp):
            test = self.condition(rest.test).text
            rows.append(rf"{self.value(rest.body).text} & \text{{if }} {test}")
            rest = rest.orelse
        rows.append(rf"{self.value(rest).text} & \text{{otherwise}}")
        body = r" \\ ".join(rows)
        return _Piece(rf"\begin{{cases}} {body} \end{{cases}}", _MOD)

    def visit_Call(self, node: ast.Call) -> _Piece:
        if self.making(node) is not None:
            self.source.refuse(node, "gives a record: write its parts one by one")
        callee = self.callee(node)
        pieces: list[_Piece] = [self.value(arg) for arg in node.args]
        if callee == "ceil":
            return _ceil(*pieces)
        if callee == "floor":
            return _floor(*pieces)
        inside = r",\, ".join(piece.text for piece in pieces)
        if isinstance(callee, str):
            return _Piece(rf"\{callee}{_bracket(inside)}")
        if callee.fn in self.callers:
            self.source.refuse(node, f"{callee.fn.__name__} calls itself")
        if self.values is not None:
            return _numeral(self.values.visit(node))
        if _has_cases(callee):
            return _Piece(_upright(callee.fn.__name__) + _bracket(inside))
        names = dict(zip(callee.arguments, pieces, strict=True))
        return _Latex(callee, names, None, self.callers).piece()


def _has_cases(source: _Source) -> bool:
    """Written out where it is called, it would put braces into the formula."""
    assert source.value is not None
    expressions = [source.value, *source.locals.values()]
    return any(
        isinstance(node, ast.IfExp) for each in expressions for node in ast.walk(each)
    )


def _add(left: _Piece, right: _Piece) -> _Piece:
    signed = right.text.startswith("-")
    term = right.at(_PRODUCT) if signed else right.at(_SUM)
    return _Piece(f"{left.at(_SUM)} + {term}", _SUM)


def _subtract(left: _Piece, right: _Piece) -> _Piece:
    return _Piece(f"{left.at(_SUM)} - {right.at(_PRODUCT)}", _SUM)


def _multiply(left: _Piece, right: _Piece) -> _Piece:
    a, b = left.at(_PRODUCT), right.at(_PRODUCT)
    if b[0].isdigit() or (a[-1].isdigit() and b.startswith(r"\frac")):
        sign = r" \cdot "
    elif a.endswith("}") or b.startswith(r"\mathrm"):
        sign = r" \, "
    else:
        sign = " "
    return _Piece(f"{a}{sign}{b}", _PRODUCT)


def _fraction(over: _Piece, under: _Piece) -> _Piece:
    return _Piece(rf"\frac{{{over.text}}}{{{under.text}}}", _PRODUCT)


def _remainder(left: _Piece, right: _Piece) -> _Piece:
    return _Piece(rf"{left.at(_PRODUCT)} \bmod {right.at(_PRODUCT)}", _MOD)


def _power(base: _Piece, exponent: _Piece) -> _Piece:
    return _Piece(rf"{{{base.at(_ATOM)}}}^{{{exponent.text}}}", _PRODUCT)


def _ceil(piece: _Piece) -> _Piece:
    return _Piece(_between("ceil", piece.text))


def _floor(piece: _Piece) -> _Piece:
    return _Piece(_between("floor", piece.text))


def _between(name: str, text: str) -> str:
    """Rounding brackets. KaTeX cannot stretch them around others: a fixed size."""
    nested = r"\lceil" in text or r"\lfloor" in text
    left, right = (r"\Biggl", r"\Biggr") if nested else (r"\left", r"\right")
    return rf"{left}\l{name} {text} {right}\r{name}"


_OPERATIONS: Mapping[type[ast.AST], Callable[[_Piece, _Piece], _Piece]] = {
    ast.Add: _add,
    ast.Sub: _subtract,
    ast.Mult: _multiply,
    ast.Div: _fraction,
    ast.FloorDiv: lambda over, under: _floor(_fraction(over, under)),
    ast.Mod: _remainder,
    ast.Pow: _power,
}


# JavaScript

_PRELUDE = """\
// Generated from atlas/oracle. Integers are exact up to 2**53.
var atlasFormulas = (function () {
"use strict";
function $number(name, x) {
  if (!Number.isFinite(x)) throw new RangeError(name + " = " + x + ": not a number");
}
function $whole(name, x) {
  if (!Number.isSafeInteger(x))
    throw new RangeError(name + " = " + x + ": not a whole number below 2**53");
}
function $record(name, x, fields) {
  if (typeof x !== "object" || x === null)
    throw new RangeError(name + " = " + x + ": not a record");
  for (const field of Object.keys(fields)) {
    const inside = name + "." + field;
    if (typeof fields[field] === "object") $record(inside, x[field], fields[field]);
    else if (fields[field] === 0) $whole(inside, x[field]);
    else $number(inside, x[field]);
  }
}
function $mod(a, b) {
  const rest = a % b;
  return rest !== 0 && rest < 0 !== b < 0 ? rest + b : rest;
}
function $div(a, b) {
  const rest = a % b;
  const down = rest !== 0 && rest < 0 !== b < 0 ? 1 : 0;
  return Math.round((a - rest) / b) - down;
}
function $pow(a, b) {
  if (!Number.isInteger(a) || !Number.isInteger(b) || b < 0) return Math.pow(a, b);
  let result = 1;
  for (; b > 0; b = Math.floor(b / 2), a *= a) if (b % 2 === 1) result *= a;
  return result;
}
"""


def javascript(fns: Iterable[Formula]) -> str:
    """One classic script that defines `atlasFormulas`: a function for each formula.

    Arguments go by place, as in Python; what the formulas call is in the script too.
    """
    public = [_formula(fn) for fn in fns]
    todo, done = list(public), dict[str, _Source]()
    functions = []
    while todo:
        source = todo.pop(0)
        name = source.fn.__name__
        if name not in done:
            done[name] = source
            functions.append(_function(source, todo))
        elif done[name].fn is not source.fn:
            source.refuse(ast.Pass(), "another formula has this name")
    shapes = "".join(sorted(_shapes(done.values())))
    names = dict.fromkeys(source.fn.__name__ for source in public)
    table = ",\n".join(f"  {name}: {name}" for name in names)
    end = f"return Object.freeze({{\n{table}\n}});\n}})();\n"
    return _PRELUDE + shapes + "".join(functions) + end


def _function(source: _Source, needs: list[_Source]) -> str:
    write = _JavaScript(source, needs)
    _nameable(source, ast.Pass(), source.fn.__name__)
    lines = [f"function {source.fn.__name__}({', '.join(source.arguments)}) {{"]
    if source.value is not None:
        guards = {"int": "$whole", "float": "$number"}
        for name, kind in source.arguments.items():
            record = source.record(kind)
            if record is not None:
                lines.append(f'  $record("{name}", {name}, ${kind});')
                continue
            if kind not in guards:
                raise EmitError(f"{source.fn.__name__}: {name} is typed {kind}")
            lines.append(f'  {guards[kind]}("{name}", {name});')
    lines += [f"  {write.check(node)}" for node in source.checks]
    for name, node in source.locals.items():
        lines.append(f"  const {name} = {write.value(node)};")
    if source.value is not None:
        result = write.value(source.value)
        made = _is_record(typing.get_type_hints(source.fn).get("return"))
        lines.append(f"  return {result}{'' if made else ' + 0'};")  # never -0
    return "\n".join([*lines, "}\n"])


def _shapes(sources: Iterable[_Source]) -> set[str]:
    """For every record that an argument is: what `$record` checks."""
    kinds = {
        (kind, record)
        for source in sources
        for kind in source.arguments.values()
        if (record := source.record(kind)) is not None
    }
    return {
        f"const ${kind} = {json.dumps(_shape(record))};\n" for kind, record in kinds
    }


def _shape(record: type[_Record]) -> dict[str, Any]:
    """A record's fields: 0 where whole, 0.5 where any number, or a record's own."""
    hints = typing.get_type_hints(record)
    return {
        field: _shape(hints[field])
        if _is_record(hints[field])
        else {int: 0, float: 0.5}[hints[field]]
        for field in record._fields
    }


def _plain(value: Any) -> Any:
    """A record's default, as JSON has it."""
    if isinstance(value, tuple) and _is_record(type(value)):
        fields = type(value)._fields  # type: ignore[attr-defined]
        return {f: _plain(v) for f, v in zip(fields, value, strict=True)}
    return value


class _JavaScript(_Writer):
    signs: Mapping[type[ast.AST], str] = {
        ast.Add: "({} + {})",
        ast.Sub: "({} - {})",
        ast.Mult: "({} * {})",
        ast.Div: "({} / {})",
        ast.FloorDiv: "$div({}, {})",
        ast.Mod: "$mod({}, {})",
        ast.Pow: "$pow({}, {})",
    }
    relations: Mapping[type[ast.AST], str] = {
        ast.Eq: "===",
        ast.NotEq: "!==",
        ast.Lt: "<",
        ast.LtE: "<=",
        ast.Gt: ">",
        ast.GtE: ">=",
    }

    def __init__(self, source: _Source, needs: list[_Source]) -> None:
        super().__init__(source)
        self.needs = needs
        self.names = {name: name for name in (*source.arguments, *source.locals)}

    def check(self, node: ast.If | ast.Call) -> str:
        if isinstance(node, ast.Call):
            callee = self.source.called(node)
            if isinstance(callee, str) or callee.value is not None:
                self.source.refuse(node, f"`{ast.unparse(node)}` changes nothing")
            self.needs.append(callee)
            given = ", ".join(self.word(arg) for arg in node.args)
            return f"{callee.fn.__name__}({given});"
        match node.body:
            case [
                ast.Raise(exc=ast.Call(func=ast.Name(id="ValueError"), args=[message]))
            ]:
                text = self.word(message)
                return f"if ({self.condition(node.test)}) throw new RangeError({text});"
        self.source.refuse(node.body[0], "expected `raise ValueError(one message)`")

    def word(self, node: ast.expr) -> str:
        """A number, or the text of a message."""
        match node:
            case ast.Constant(value=str(text)):
                return json.dumps(text).replace("</", r"<\/")
            case ast.JoinedStr(values=parts):
                return " + ".join(['""', *(self.word(part) for part in parts)])
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                return self.word(value)
        number: str = self.value(node)
        return number

    def visit_Constant(self, node: ast.Constant) -> str:
        return repr(self.constant(node))

    def visit_Name(self, node: ast.Name) -> str:
        text: str = self.name(node, self.names)
        return text

    def visit_BinOp(self, node: ast.BinOp) -> str:
        form: str = self.operation(node, self.signs)
        return form.format(self.value(node.left), self.value(node.right))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> str:
        if isinstance(node.op, ast.Not):
            return f"!({self.condition(node.operand)})"
        return f"(-{self.value(self.negated(node))})"

    def visit_Compare(self, node: ast.Compare) -> str:
        links = self.comparisons(node, self.relations)
        return " && ".join(f"{a} {relation} {b}" for a, relation, b in links)

    def visit_BoolOp(self, node: ast.BoolOp) -> str:
        sign = " && " if isinstance(node.op, ast.And) else " || "
        return sign.join(f"({self.condition(part)})" for part in node.values)

    def visit_IfExp(self, node: ast.IfExp) -> str:
        test, body = self.condition(node.test), self.value(node.body)
        return f"({test} ? {body} : {self.value(node.orelse)})"

    def visit_Attribute(self, node: ast.Attribute) -> str:
        return f"{self.visit(node.value)}.{node.attr}"

    def visit_Call(self, node: ast.Call) -> str:
        record = self.making(node)
        if record is not None:
            made = {f: self.value(v) for f, v in self.source.made(node, record).items()}
            rest = {
                field: json.dumps(_plain(default))
                for field, default in record._field_defaults.items()
                if field not in made
            }
            fields = {**made, **rest}
            inside = ", ".join(f"{f}: {fields[f]}" for f in record._fields)
            return f"{{{inside}}}"
        callee = self.callee(node)
        given = ", ".join(self.value(arg) for arg in node.args)
        if isinstance(callee, str):
            return f"Math.{callee}({given})"
        self.needs.append(callee)
        return f"{callee.fn.__name__}({given})"
