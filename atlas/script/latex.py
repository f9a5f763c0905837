"""Formulas and laws as LaTeX, in symbols or with numbers put in."""

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import FunctionType
from typing import Any, NoReturn

from atlas.formulas.law import LawError, parse
from atlas.formulas.symbols import symbols
from atlas.script.source import (
    BUILTINS,
    EXACT,
    Formula,
    Number,
    Reader,
    Source,
    formula_source,
    read,
)

__all__ = [
    "Latex",
    "Piece",
    "bracket",
    "field_latex",
    "formula_latex",
    "latex",
    "law_latex",
    "node_of",
    "symbol",
]


class Evaluator(Reader):
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

    def __init__(self, source: Source, values: Mapping[str, Any]) -> None:
        super().__init__(source)
        self.names = dict(values)
        for name, node in source.locals.items():
            self.names[name] = self.visit(node)

    def visit_Constant(self, node: ast.Constant) -> Number:
        return node.value if isinstance(node.value, bool) else self.constant(node)

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
        member = self.source.member(node)
        return getattr(self.visit(node.value), node.attr) if member is None else member

    def visit_Call(self, node: ast.Call) -> Number:
        callee = self.callee(node)
        fn = BUILTINS[callee] if isinstance(callee, str) else callee.fn
        result: Number = fn(*(self.visit(arg) for arg in node.args))
        return result


MOD, SUM, PRODUCT, ATOM = range(4)  # how tightly a piece holds together
_GREEK = {"alpha", "beta", "gamma", "delta", "eta", "theta", "mu", "psi"}


@dataclass(frozen=True)
class Piece:
    text: str
    hold: int = ATOM

    def at(self, hold: int) -> str:
        """The text, in brackets if it holds less tightly than that."""
        return self.text if self.hold >= hold else bracket(self.text)


def bracket(text: str) -> str:
    tall = any(mark in text for mark in (r"\frac", r"\begin", r"\left"))
    return rf"\left({text}\right)" if tall else f"({text})"


def latex(fn: Formula) -> str:
    """The formula's right-hand side in its arguments, calls of others written out."""
    source = formula_source(fn)
    return Latex(source, symbols_of(source)).text()


def formula_latex(fn: Formula, values: Mapping[str, Any]) -> str:
    """The formula with these numbers put in, an equals sign, and its value.

    Of the cases only the one that holds is written; a call is written as its value.
    A fraction is shown to 6 digits, after an approximately-equal sign if it has more.
    """
    source = formula_source(fn)
    if set(values) != set(source.arguments):
        given = ", ".join(values) or "nothing"
        want = ", ".join(source.arguments) or "nothing"
        raise ValueError(f"{fn.__name__} takes {want}: given {given}")
    exact = fn(**values)
    shown = float(f"{exact:.6g}") if isinstance(exact, float) else exact
    result = _numeral(shown).text
    numbers = {name: _put(value) for name, value in values.items()}
    text = Latex(source, numbers, Evaluator(source, values)).text()
    sign = "=" if shown == exact else r"\approx"
    return result if text == result else f"{text} {sign} {result}"


def node_of(source: Source, field: str | None) -> ast.expr:
    """The expression of a formula, or of one field of the record that it gives."""
    assert source.value is not None
    if field is None:
        return source.value
    assert isinstance(source.value, ast.Call)
    return {k.arg: k.value for k in source.value.keywords}[field]


def field_latex(fn: Callable[..., Any], field: str | None) -> str:
    """The right-hand side of a formula, or of a field of what it gives, in symbols."""
    source = read(fn)
    text: str = _Brief(source, symbols_of(source)).value(node_of(source, field)).text
    return text


def law_latex(text: str) -> str:
    """A law in symbols: an expression in the words of symbols.yaml, or a condition."""
    found: Piece = _Law(text).visit(parse(text))
    return found.text


def symbols_of(source: Source) -> dict[str, Piece]:
    return {name: Piece(symbol(name)) for name in source.arguments}


def symbol(name: str) -> str:
    """A quantity's symbol: that of symbols.yaml, or its own name."""
    if name in symbols():
        return symbols()[name]
    if name in _GREEK:
        return rf"\{name}"
    if name == "l":
        return r"\ell"  # a lone l looks like a 1
    return name if len(name) == 1 else upright(name)


def upright(name: str) -> str:
    escaped = name.replace("_", r"\_")
    return rf"\mathrm{{{escaped}}}"


def _put(value: Any) -> Piece:
    """A value in the place of its symbol."""
    if isinstance(value, bool):
        return Piece(_said(value))
    if isinstance(value, Enum):
        return Piece(_said(value))
    return Piece("") if isinstance(value, tuple) else _numeral(value)


def _said(value: bool | Enum) -> str:
    """A truth, or a member of an enumeration, as a word."""
    word = str(value.value) if isinstance(value, Enum) else str(value).lower()
    return rf"\text{{{word}}}"


def _numeral(value: Number) -> Piece:
    if isinstance(value, float) and value.is_integer() and abs(value) <= EXACT:
        value = int(value)
    if isinstance(value, int):
        digits = f"{value:,}".replace(",", r"\,") if abs(value) > 9999 else str(value)
    else:
        digits, _, exponent = repr(value).partition("e")
        if exponent:
            power = f"10^{{{int(exponent)}}}"
            digits = power if digits == "1" else rf"{digits} \cdot {power}"
            return Piece(digits, PRODUCT if value >= 0 else SUM)
    return Piece(digits, ATOM if value >= 0 else SUM)


class Latex(Reader):
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
        source: Source,
        names: Mapping[str, Piece],
        values: Evaluator | None = None,
        callers: tuple[FunctionType, ...] = (),
    ) -> None:
        super().__init__(source)
        self.values = values
        self.callers = (*callers, source.fn)
        self.names = dict(names)
        self.pending = dict(source.locals)

    def text(self) -> str:
        return self.piece().text

    def piece(self) -> Piece:
        assert self.source.value is not None
        piece: Piece = self.value(self.source.value)
        return piece

    def visit_Constant(self, node: ast.Constant) -> Piece:
        if isinstance(node.value, bool):
            return Piece(_said(node.value))
        return _numeral(self.constant(node))

    def visit_Name(self, node: ast.Name) -> Piece:
        if node.id in self.pending:
            self.names[node.id] = self.visit(self.pending.pop(node.id))
        piece: Piece = self.name(node, self.names)
        return piece

    def visit_Attribute(self, node: ast.Attribute) -> Piece:
        member = self.source.member(node)
        if member is not None:
            return Piece(_said(member))
        if self.values is not None:
            return _put(self.values.visit(node))
        return Piece(symbol(node.attr))

    def visit_BinOp(self, node: ast.BinOp) -> Piece:
        write: Callable[[Piece, Piece], Piece] = self.operation(node, _OPERATIONS)
        return write(self.value(node.left), self.value(node.right))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Piece:
        match node:
            case ast.UnaryOp(op=ast.Not()):
                return Piece(rf"\neg {bracket(self.condition(node.operand).text)}")
            case ast.UnaryOp(
                op=ast.USub(),
                operand=ast.BinOp(
                    left=ast.UnaryOp(op=ast.USub(), operand=over),
                    op=ast.FloorDiv(),
                    right=under,
                ),
            ):  # -(-a // b) is how Python writes a / b rounded up
                return _ceil(_fraction(self.value(over), self.value(under)))
        inner: Piece = self.value(self.negated(node))
        return Piece(f"-{inner.at(PRODUCT)}", SUM)

    def visit_Compare(self, node: ast.Compare) -> Piece:
        text = ""
        for left, relation, right in self.comparisons(node, self.relations):
            text = f"{text or left.text} {relation} {right.text}"
        return Piece(text)

    def visit_BoolOp(self, node: ast.BoolOp) -> Piece:
        word = "and" if isinstance(node.op, ast.And) else "or"
        parts = [
            bracket(self.condition(part).text)
            if isinstance(part, ast.BoolOp)
            else self.condition(part).text
            for part in node.values
        ]
        return Piece(rf" \text{{ {word} }} ".join(parts))

    def visit_IfExp(self, node: ast.IfExp) -> Piece:
        if self.values is not None:
            holds = self.values.condition(node.test)
            taken: Piece = self.value(node.body if holds else node.orelse)
            return taken
        rows = []
        rest: ast.expr = node
        while isinstance(rest, ast.IfExp):
            test = self.condition(rest.test).text
            rows.append(rf"{self.value(rest.body).text} & \text{{if }} {test}")
            rest = rest.orelse
        rows.append(rf"{self.value(rest).text} & \text{{otherwise}}")
        body = r" \\ ".join(rows)
        return Piece(rf"\begin{{cases}} {body} \end{{cases}}", MOD)

    def visit_Call(self, node: ast.Call) -> Piece:
        if self.source.record(node) is not None:
            self.refuse(node, "gives a record: write its parts one by one")
        callee = self.callee(node)
        pieces: list[Piece] = [self.visit(arg) for arg in node.args]
        if callee == "ceil":
            return _ceil(*pieces)
        if callee == "floor":
            return _floor(*pieces)
        inside = r",\, ".join(piece.text for piece in pieces)
        if isinstance(callee, str):
            return Piece(rf"\{callee}{bracket(inside)}")
        if callee.fn in self.callers:
            self.refuse(node, f"{callee.fn.__name__} calls itself")
        if self.values is not None:
            return _numeral(self.values.visit(node))
        if (rounded := _LOGARITHMS.get(callee.fn.__name__)) is not None:
            return rounded(Piece(rf"\log_2 {pieces[0].at(ATOM)}"))
        if _has_cases(callee):
            return Piece(upright(callee.fn.__name__) + bracket(inside))
        names = dict(zip(callee.arguments, pieces, strict=True))
        return Latex(callee, names, None, self.callers).piece()


class _Brief(Latex):
    """LaTeX in which a call is a name, with those of its arguments that are numbers."""

    def visit_Call(self, node: ast.Call) -> Piece:
        callee = self.callee(node)
        if isinstance(callee, str):
            return super().visit_Call(node)
        kinds = zip(node.args, callee.arguments.values(), strict=True)
        given = [self.value(arg).text for arg, kind in kinds if kind in (int, float)]
        inside = r",\, ".join(given)
        return Piece(upright(callee.fn.__name__) + (bracket(inside) if given else ""))


class _Law(Latex):
    """LaTeX of an expression without a function around it."""

    def __init__(self, text: str) -> None:
        super().__init__(read(_law), {})
        self.law = text

    def refuse(self, node: ast.AST, why: str) -> NoReturn:
        raise LawError(f"{self.law!r}: {why}")

    def visit_Name(self, node: ast.Name) -> Piece:
        return Piece(symbol(node.id))

    def visit_Call(self, node: ast.Call) -> Piece:
        pieces: list[Piece] = [self.value(arg) for arg in node.args]
        inside = r",\, ".join(piece.text for piece in pieces)
        match node.func:
            case ast.Name(id="abs") if len(pieces) == 1:
                return Piece(rf"\left|{inside}\right|")
            case ast.Name(id="min" | "max" as name) if not node.keywords:
                return Piece(rf"\{name}{bracket(inside)}")
        self.refuse(node, f"cannot read `{ast.unparse(node)}`")


def _law() -> int:
    """Where a law stands: it has no arguments, and calls nothing."""
    return 0


def _has_cases(source: Source) -> bool:
    """Written out where it is called, it would put braces into the formula."""
    assert source.value is not None
    expressions = [source.value, *source.locals.values()]
    return any(
        isinstance(node, ast.IfExp) for each in expressions for node in ast.walk(each)
    )


def _add(left: Piece, right: Piece) -> Piece:
    signed = right.text.startswith("-")
    term = right.at(PRODUCT) if signed else right.at(SUM)
    return Piece(f"{left.at(SUM)} + {term}", SUM)


def _subtract(left: Piece, right: Piece) -> Piece:
    return Piece(f"{left.at(SUM)} - {right.at(PRODUCT)}", SUM)


def _multiply(left: Piece, right: Piece) -> Piece:
    a, b = left.at(PRODUCT), right.at(PRODUCT)
    if b[0].isdigit() or (a[-1].isdigit() and b.startswith(r"\frac")):
        sign = r" \cdot "
    elif a.endswith("}") or b.startswith(r"\mathrm"):
        sign = r" \, "
    else:
        sign = " "
    return Piece(f"{a}{sign}{b}", PRODUCT)


def _fraction(over: Piece, under: Piece) -> Piece:
    return Piece(rf"\frac{{{over.text}}}{{{under.text}}}", PRODUCT)


def _remainder(left: Piece, right: Piece) -> Piece:
    return Piece(rf"{left.at(PRODUCT)} \bmod {right.at(PRODUCT)}", MOD)


def _power(base: Piece, exponent: Piece) -> Piece:
    return Piece(rf"{{{base.at(ATOM)}}}^{{{exponent.text}}}", PRODUCT)


def _ceil(piece: Piece) -> Piece:
    return Piece(_between("ceil", piece.text))


def _floor(piece: Piece) -> Piece:
    return Piece(_between("floor", piece.text))


def _between(name: str, text: str) -> str:
    """Rounding brackets. KaTeX cannot stretch them around others: a fixed size."""
    nested = r"\lceil" in text or r"\lfloor" in text
    left, right = (r"\Biggl", r"\Biggr") if nested else (r"\left", r"\right")
    return rf"{left}\l{name} {text} {right}\r{name}"


#: Functions that are written as what they are.
_LOGARITHMS: Mapping[str, Callable[[Piece], Piece]] = {
    "floor_log2": _floor,
    "ceil_log2": _ceil,
}
_OPERATIONS: Mapping[type[ast.AST], Callable[[Piece, Piece], Piece]] = {
    ast.Add: _add,
    ast.Sub: _subtract,
    ast.Mult: _multiply,
    ast.Div: _fraction,
    ast.FloorDiv: lambda over, under: _floor(_fraction(over, under)),
    ast.Mod: _remainder,
    ast.Pow: _power,
}
