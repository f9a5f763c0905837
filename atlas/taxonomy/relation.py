"""A relation between named numbers, written as text: checked, evaluated, shown.

    >>> made = parse("stage3 / stage1 == 1.5 and stage1 > 0")
    >>> sorted(made.names)
    ['stage1', 'stage3']
    >>> made.holds({"stage3": 3, "stage1": 2})
    True

Only names, numbers, + - * / and comparisons, joined by `and`: data runs nothing.
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
_COMPARED: dict[type[ast.cmpop], tuple[str, Callable[[float, float], bool]]] = {
    ast.Eq: ("=", operator.eq),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("≤", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: ("≥", operator.ge),
}
LONGEST = 200  # characters


@dataclass(frozen=True)
class Chain:
    """Comparisons in a row, such as a < b / 2 <= c."""

    sides: tuple[ast.expr, ...]
    signs: tuple[type[ast.cmpop], ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """Each side as it is written."""
        return tuple(ast.unparse(side) for side in self.sides)

    @property
    def marks(self) -> tuple[str, ...]:
        """The signs between the sides."""
        return tuple(_COMPARED[sign][0] for sign in self.signs)

    def values(self, named: Mapping[str, float]) -> tuple[float, ...]:
        """What each side is."""
        return tuple(_value(side, named) for side in self.sides)

    def holds(self, named: Mapping[str, float]) -> bool:
        """Is every comparison true of these values?"""
        sides = self.values(named)
        pairs = zip(self.signs, sides, sides[1:], strict=False)
        return all(_COMPARED[sign][1](a, b) for sign, a, b in pairs)


@dataclass(frozen=True)
class Relation:
    """Chains of comparisons that hold together."""

    chains: tuple[Chain, ...]
    names: frozenset[str]

    def holds(self, named: Mapping[str, float]) -> bool:
        """Does every chain hold of these values? Dividing by zero does not."""
        try:
            return all(chain.holds(named) for chain in self.chains)
        except ZeroDivisionError:
            return False


def parse(text: str) -> Relation:
    """The relation; ValueError says what in it is not allowed."""
    if len(text) > LONGEST:
        raise ValueError(f"more than {LONGEST} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ValueError("not a comparison") from None
    joined = isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And)
    parts = tree.values if isinstance(tree, ast.BoolOp) and joined else [tree]
    chains = tuple(_chain(part) for part in parts)
    sides = [side for chain in chains for side in chain.sides]
    return Relation(chains, frozenset().union(*map(_names, sides)))


def _chain(node: ast.expr) -> Chain:
    if not isinstance(node, ast.Compare):
        raise ValueError("not a comparison")
    signs = tuple(type(op) for op in node.ops)
    if any(sign not in _COMPARED for sign in signs):
        raise ValueError("a comparison other than == < <= > >=")
    return Chain((node.left, *node.comparators), signs)


def _names(node: ast.expr) -> frozenset[str]:
    match node:
        case ast.Name(id=name):
            return frozenset([name])
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            return frozenset()
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _names(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _names(left) | _names(right)
    raise ValueError(f'"{ast.unparse(node)[:40]}" is more than arithmetic')


def _value(node: ast.expr, named: Mapping[str, float]) -> float:
    match node:
        case ast.Name(id=name):
            return named[name]
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.UnaryOp(operand=operand):
            return -_value(operand, named)
        case ast.BinOp(left=left, op=op, right=right):
            return _ARITHMETIC[type(op)](_value(left, named), _value(right, named))
    raise AssertionError("parse lets nothing else through")
