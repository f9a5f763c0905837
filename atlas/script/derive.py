"""A formula of the planner for a click: its LaTeX, and with numbers put in.

Both are written from the function's own source. The second is JavaScript that makes
LaTeX: which case holds, and every number, are found when it is run.
"""

import ast
import json
import re
from collections.abc import Callable
from typing import Any

from atlas.script.formulas import Script
from atlas.script.latex import MOD, Latex, Piece, field_latex, node_of
from atlas.script.source import Source, read

__all__ = ["derivation"]

OPEN, CLOSE = "0\u27e6", "\u27e70"  # digits outside, so that products get a sign
MARK = re.compile(f"{OPEN}(.*?){CLOSE}", re.DOTALL)


class _Put(Latex):
    """LaTeX with a mark for each number, holding the JavaScript that finds it."""

    def __init__(self, source: Source) -> None:
        marks = {name: Piece(f"{OPEN}{name}{CLOSE}") for name in source.arguments}
        super().__init__(source, marks)
        self.script = Script(source)

    def visit_Attribute(self, node: ast.Attribute) -> Piece:
        return Piece(f"{OPEN}{self.script.expression(node)}{CLOSE}")

    def visit_IfExp(self, node: ast.IfExp) -> Piece:
        test = self.script.condition(node.test)
        body, rest = self.value(node.body).text, self.value(node.orelse).text
        text = f"${{{test} ? String.raw`{body}` : String.raw`{rest}`}}"
        return Piece(text, MOD)

    def visit_Call(self, node: ast.Call) -> Piece:
        if isinstance(self.callee(node), str):
            return super().visit_Call(node)
        return Piece(f"{OPEN}{self.script.expression(node)}{CLOSE}")


def _locals(source: Source, node: ast.expr) -> str:
    """The local names that an expression needs, in the order of the source."""
    used: set[str] = set()
    todo: list[ast.expr] = [node]
    while todo:
        for part in ast.walk(todo.pop()):
            name = part.id if isinstance(part, ast.Name) else ""
            if name in source.locals and name not in used:
                used.add(name)
                todo.append(source.locals[name])
    script = Script(source)
    kept = [(name, n) for name, n in source.locals.items() if name in used]
    return "".join(f"const {name} = {script.expression(n)}; " for name, n in kept)


def derivation(fn: Callable[..., Any], field: str | None) -> str:
    """A JavaScript object: name, symbols, and at(given): the numbers and the value."""
    source = read(fn)
    node = node_of(source, field)
    piece = _Put(source).value(node).text
    body = MARK.sub(lambda m: f"${{$n({m[1]})}}", piece)
    value = Script(source).expression(node)
    name = fn.__name__ if field is None else field
    args = ", ".join(source.arguments)
    doc = " ".join((fn.__doc__ or "").split())
    return (
        f"{{name: {json.dumps(name)}, of: {json.dumps(doc)}, "
        f"symbols: {json.dumps(field_latex(fn, field))}, "
        f"at: ({{{args}}}) => {{ {_locals(source, node)}"
        f"return {{tex: String.raw`{body}`, value: {value}}}; }}}}"
    )
