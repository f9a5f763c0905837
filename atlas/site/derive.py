"""A formula of the oracle's arithmetic for a click: its LaTeX, and with numbers put in.

Both are written from the function's own source. The second is JavaScript that makes
LaTeX: which case holds, and every number, are found when it is run.
"""

import ast
import json
import re
from collections.abc import Callable
from typing import Any

from atlas.oracle import emit
from atlas.oracle.emit import _JavaScript, _Latex, _Piece, _read, _Source, _symbols

__all__ = ["derivation", "field_latex"]

OPEN, CLOSE = "0\u27e6", "\u27e70"  # digits outside, so that products get a sign
MARK = re.compile(f"{OPEN}(.*?){CLOSE}", re.DOTALL)


def _node(source: _Source, field: str | None) -> ast.expr:
    """The expression of a formula, or of one field of the record that it gives."""
    assert source.value is not None
    if field is None:
        return source.value
    assert isinstance(source.value, ast.Call)
    return {k.arg: k.value for k in source.value.keywords}[field]


def field_latex(fn: Callable[..., Any], field: str | None) -> str:
    """The right-hand side in symbols."""
    source = _read(fn)
    text: str = _Brief(source, _symbols(source)).value(_node(source, field)).text
    return text


class _Brief(_Latex):
    """LaTeX in which a call is a name, with those of its arguments that are numbers."""

    def visit_Call(self, node: ast.Call) -> _Piece:
        callee = self.callee(node)
        if isinstance(callee, str):
            return super().visit_Call(node)
        kinds = zip(node.args, callee.arguments.values(), strict=True)
        given = [
            self.value(arg).text for arg, kind in kinds if kind in ("int", "float")
        ]
        name = emit._upright(callee.fn.__name__)
        inside = r",\, ".join(given)
        return _Piece(name + (emit._bracket(inside) if given else ""))


class _Put(_Latex):
    """LaTeX with a mark for each number, holding the JavaScript that finds it."""

    def __init__(self, source: _Source) -> None:
        marks = {name: _Piece(f"{OPEN}{name}{CLOSE}") for name in source.arguments}
        super().__init__(source, marks)
        self.script = _JavaScript(source, [])

    def visit_Attribute(self, node: ast.Attribute) -> _Piece:
        return _Piece(f"{OPEN}{self.script.value(node)}{CLOSE}")

    def visit_IfExp(self, node: ast.IfExp) -> _Piece:
        test = self.script.condition(node.test)
        body, rest = self.value(node.body).text, self.value(node.orelse).text
        text = f"${{{test} ? String.raw`{body}` : String.raw`{rest}`}}"
        return _Piece(text, emit._MOD)

    def visit_Call(self, node: ast.Call) -> _Piece:
        if isinstance(self.callee(node), str):
            return super().visit_Call(node)
        return _Piece(f"{OPEN}{self.script.value(node)}{CLOSE}")


def _locals(source: _Source, node: ast.expr) -> str:
    """The local names that an expression needs, in the order of the source."""
    used: set[str] = set()
    todo: list[ast.expr] = [node]
    while todo:
        for part in ast.walk(todo.pop()):
            name = part.id if isinstance(part, ast.Name) else ""
            if name in source.locals and name not in used:
                used.add(name)
                todo.append(source.locals[name])
    script = _JavaScript(source, [])
    kept = [(name, n) for name, n in source.locals.items() if name in used]
    return "".join(f"const {name} = {script.value(n)}; " for name, n in kept)


def derivation(fn: Callable[..., Any], field: str | None) -> str:
    """A JavaScript object: name, symbols, and at(given): the numbers and the value."""
    source = _read(fn)
    node = _node(source, field)
    piece = _Put(source).value(node).text
    body = MARK.sub(lambda m: f"${{$n({m[1]})}}", piece)
    value = _JavaScript(source, []).value(node)
    name = fn.__name__ if field is None else field
    args = ", ".join(source.arguments)
    doc = " ".join((fn.__doc__ or "").split())
    return (
        f"{{name: {json.dumps(name)}, of: {json.dumps(doc)}, "
        f"symbols: {json.dumps(field_latex(fn, field))}, "
        f"at: ({{{args}}}) => {{ {_locals(source, node)}"
        f"return {{tex: String.raw`{body}`, value: {value}}}; }}}}"
    )
