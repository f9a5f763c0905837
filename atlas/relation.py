"""A relation between named numbers, written as text: checked, evaluated, shown.

    >>> made = parse("stage3 / stage1 == 1.5")
    >>> sorted(made.names)
    ['stage1', 'stage3']
    >>> made.judge({"stage3": 3, "stage1": 2})
    (True, (1.5, 1.5))

Only names, numbers, + - * / and comparisons: data cannot run anything.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_ARITHMETIC: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARED: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Eq: operator.eq,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
LONGEST = 200  # characters


@dataclass(frozen=True)
class Relation:
    """A chain of comparisons, such as a < b / 2 <= c."""

    text: str
    sides: tuple[ast.expr, ...]
    signs: tuple[type[ast.cmpop], ...]
    names: frozenset[str]

    def judge(self, values: Mapping[str, float]) -> tuple[bool, tuple[float, ...]]:
        """Does it hold of these values, and what is each side?"""
        sides = tuple(_value(side, values) for side in self.sides)
        pairs = zip(self.signs, sides, sides[1:], strict=False)
        return all(_COMPARED[sign](a, b) for sign, a, b in pairs), sides


def parse(text: str) -> Relation:
    """The relation; ValueError says what in it is not allowed."""
    if len(text) > LONGEST:
        raise ValueError(f"more than {LONGEST} characters")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ValueError("not a comparison") from None
    if not isinstance(tree, ast.Compare):
        raise ValueError("not a comparison")
    sides = (tree.left, *tree.comparators)
    signs = tuple(type(op) for op in tree.ops)
    for sign in signs:
        if sign not in _COMPARED:
            raise ValueError("a comparison other than == < <= > >=")
    names = frozenset(name for side in sides for name in _names(side))
    return Relation(text, sides, signs, names)


def _names(node: ast.expr) -> set[str]:
    match node:
        case ast.Name(id=name):
            return {name}
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            return set()
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _names(left) | _names(right)
    raise ValueError(f'"{ast.unparse(node)[:40]}" is more than arithmetic')


def _value(node: ast.expr, values: Mapping[str, float]) -> float:
    match node:
        case ast.Name(id=name):
            return values[name]
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.BinOp(left=left, op=op, right=right):
            return _ARITHMETIC[type(op)](_value(left, values), _value(right, values))
    raise AssertionError("parse lets nothing else through")
