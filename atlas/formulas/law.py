"""A law: an expression in the words of symbols.yaml, evaluated exactly.

    value("2 * (ranks - 1) / ranks * elements", {"ranks": 4, "elements": 10})  # 15
    value("elements % ranks == 0", {"ranks": 4, "elements": 10})               # False

Division gives fractions, so that a law which should equal a formula does.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

__all__ = ["LawError", "value", "words"]

_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: Fraction(a) / Fraction(b),
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs}


class LawError(Exception):
    """An expression that is no law; the message shows it."""


def parse(text: str) -> ast.expr:
    """The expression as a tree."""
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise LawError(f"{text!r}: {error.msg}") from None


def words(text: str) -> set[str]:
    """The quantities that a law names."""
    nodes = ast.walk(parse(text))
    return {n.id for n in nodes if isinstance(n, ast.Name)} - set(_FUNCTIONS)


def value(text: str, values: Mapping[str, Any]) -> Any:
    """What the expression comes to: a whole number, a fraction, or whether it holds."""

    def at(node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.Name(id=name) if name in values:
                return values[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](at(left), at(right))
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](at(operand))
            case ast.Compare(left=left, ops=ops, comparators=others):
                terms = [at(term) for term in (left, *others)]
                links = zip(ops, terms, terms[1:], strict=False)
                return all(_OPERATORS[type(op)](a, b) for op, a, b in links)
            case ast.BoolOp(op=ast.And(), values=parts):
                return all(at(part) for part in parts)
            case ast.BoolOp(op=ast.Or(), values=parts):
                return any(at(part) for part in parts)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return at(body) if at(test) else at(orelse)
            case ast.Call(func=ast.Name(id=name), args=args) if name in _FUNCTIONS:
                return _FUNCTIONS[name](*(at(arg) for arg in args))
        raise LawError(f"{text!r}: cannot read `{ast.unparse(node)}`")

    return at(parse(text))
