"""Write modules of the oracle as JavaScript: the calculator runs the oracle itself.

The arithmetic is written by atlas.oracle.emit. What composes it, strategies, meshes,
stages, traffic, findings, sentences, is plain Python of classes, loops and generators,
and is written here, statement by statement. Whatever has no translation is a
`TranspileError` that names the line, so the oracle cannot outgrow its calculator
unseen. Values are checked where they are made: `__post_init__` is left out.
"""

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import json
import types
import typing
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from atlas.oracle import CORE, FORMULAS

__all__ = ["TranspileError", "attributes", "needed", "transpile"]

#: The modules that atlas.oracle.emit writes.
ARITHMETIC = {
    "atlas.oracle.core",
    *(fn.__module__ for fn in (*CORE.values(), *FORMULAS.values())),
}
RECORDS = "atlas.oracle.records"
#: Python's own words, in as much of JavaScript as the oracle needs.
RUNTIME = Path(__file__).with_name("python.js")
KEPT_METHODS = ("__str__",)
BINARY = {
    ast.Add: "$add({}, {})",
    ast.Sub: "({} - {})",
    ast.Mult: "({} * {})",
    ast.Div: "({} / {})",
    ast.FloorDiv: "$floordiv({}, {})",
    ast.Mod: "$mod({}, {})",
    ast.Pow: "Math.pow({}, {})",
    ast.BitOr: "$union({}, {})",
    ast.BitAnd: "({} & {})",
}
ORDER = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
#: Python's own functions, as the runtime below has them.
BUILTINS = {
    *("abs", "all", "any", "bool", "dict", "enumerate", "float", "getattr", "int"),
    *("isinstance", "len", "list", "map", "max", "min", "next", "range", "reversed"),
    *("round", "set", "sorted", "str", "sum", "tuple", "type", "zip"),
}
METHODS = {
    *("append", "count", "extend", "fromkeys", "get", "index", "insert", "items"),
    *("join", "keys", "lower", "partition", "removeprefix", "removesuffix", "sort"),
    *("split", "startswith", "upper", "values"),
}
WORDS = {"function", "default", "new", "this", "delete", "in", "var", "let", "const"}


class TranspileError(Exception):
    """A statement of the oracle that has no JavaScript."""


def transpile(modules: Iterable[ModuleType], overrides: Iterable[str] = ()) -> str:
    """One classic script that defines `atlasOracle`: module -> name -> value.

    `overrides` are names that the page defines itself, of the runtime.
    """
    own = list(modules)
    names = {module.__name__ for module in own}
    by_name = set().union(*map(_called_by_name, own))
    left_out = set(overrides)
    body = "".join(_Module(m, names, left_out, by_name).text() for m in own)
    return (
        f"{RUNTIME.read_text(encoding='utf-8')}{_records()}{body}return $M;\n}})();\n"
    )


@cache  # four passes read every module
def _parsed(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def needed(roots: Iterable[str]) -> list[ModuleType]:
    """The modules that these import, of the oracle and ours, each after its own."""
    found: dict[str, ModuleType] = {}

    def visit(name: str) -> None:
        if name in found or name in ARITHMETIC or name == RECORDS:
            return
        module = importlib.import_module(name)
        for node in _parsed(module).body:
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith(
                "atlas."
            ):
                for one in _imported(node):
                    visit(one)
        found[name] = module

    for root in roots:
        visit(root)
    return list(found.values())


def attributes(module: ModuleType) -> set[str]:
    """Every name that a module imports or reads with a dot."""
    found: set[str] = set()
    for node in ast.walk(_parsed(module)):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            found |= {name.name for name in node.names}
    return found


def _called_by_name(module: ModuleType) -> set[str]:
    """The functions that a module calls with arguments by name."""
    return {
        ast.unparse(node.func).rpartition(".")[2]
        for node in ast.walk(_parsed(module))
        if isinstance(node, ast.Call) and node.keywords
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


def _records() -> str:
    """The records that the arithmetic takes and gives."""
    from atlas.oracle import records

    made = [getattr(records, name) for name in records.__all__]
    lines = [f'$M["{RECORDS}"] = (function () {{']
    lines += [_record(kind) for kind in made]
    lines.append(f"return {{{', '.join(kind.__name__ for kind in made)}}};\n}})();\n")
    return "\n".join(lines)


def _record(kind: Any) -> str:
    """A NamedTuple as a class with the same fields."""
    defaults = [
        _value(kind._field_defaults[f]) if f in kind._field_defaults else "undefined"
        for f in kind._fields
    ]
    fields = json.dumps(kind._fields, separators=(",", ":"))
    name = kind.__name__
    return f'const {name} = $record("{name}", {fields}, [{",".join(defaults)}]);'


def _value(value: Any) -> str:
    """A default as JSON, records as objects."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        pairs = zip(value._fields, value, strict=True)
        return "{" + ", ".join(f"{f}: {_value(v)}" for f, v in pairs) + "}"
    return json.dumps(value)


class _Module:
    """One module in a scope of its own."""

    def __init__(
        self,
        module: ModuleType,
        known: set[str],
        overrides: set[str],
        by_name: set[str],
    ):
        self.module, self.known, self.overrides = module, known, overrides
        self.by_name = by_name
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
        raise TranspileError(f"{self.module.__name__}:{line}: {why}")

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
                made = _Function(self, None).expression(value)
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
        return [f"let {name} = {_Function(self, None).expression(value)};"]

    def function(self, node: ast.FunctionDef) -> list[str]:
        self.exports.append(node.name)
        lines = [_Function(self, node).declaration(node.name)]
        if node.name in self.by_name:
            lines.append(f"{node.name}.$p = {json.dumps(_names(node.args))};")
        if any(_is_cache(d) for d in node.decorator_list):
            lines.append(f"{node.name} = $cached({node.name});")
        return lines


def _safe(name: str) -> str:
    """The name, unless it means something else in JavaScript."""
    return f"{name}_" if name in WORDS else name


def _is_cache(node: ast.expr) -> bool:
    return "cache" in ast.unparse(node)


def _import(node: ast.ImportFrom, known: set[str]) -> list[str]:
    """What an import binds; modules that are not written bind nothing."""
    lines, taken = [], []
    for name in node.names:
        whole, own = f"{node.module}.{name.name}", name.asname or name.name
        if whole in ARITHMETIC:
            lines.append(f"const {own} = $F;")
        elif whole in known:
            lines.append(f'const {own} = $M["{whole}"];')
        else:
            taken.append(name.name if own == name.name else f"{name.name}: {own}")
    if node.module in ARITHMETIC:
        lines.append(f"const {{{', '.join(taken)}}} = $F;")
    elif taken and (node.module in known or node.module == RECORDS):
        lines.append(f'const {{{", ".join(taken)}}} = $M["{node.module}"];')
    return lines


def _names(args: ast.arguments) -> list[str]:
    return [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)]


class _Class:
    """A class: a dataclass with its constructor, methods and properties."""

    def __init__(self, module: _Module, node: ast.ClassDef):
        self.module, self.node = module, node
        self.kind: Any = getattr(module.module, node.name)

    def text(self) -> list[str]:
        name = self.node.name
        if issubclass(self.kind, Exception):
            return [f"class {name} extends Error {{}}"]
        if hasattr(self.kind, "_field_defaults"):
            return [_record(self.kind)]
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
                    return _Function(self.module, None).expression(k.value)
                if k.arg == "default_factory":
                    return "{}"
            return None
        return _Function(self.module, None).expression(value)

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
        return _Function(self.module, node).method(kind, "staticmethod" in marks)


def _kept(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and (
        not node.name.startswith("__") or node.name in KEPT_METHODS
    )


def _class_source(module: _Module, kind: type) -> ast.ClassDef | None:
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
            return node
    return None


class _Function:
    """One function, or an expression outside of any."""

    def __init__(self, module: _Module, node: ast.FunctionDef | None):
        self.module, self.node = module, node
        self.hidden = 0

    def refuse(self, node: ast.AST, what: str) -> NoReturn:
        self.module.refuse(node, f"cannot translate {what}")

    # Definitions

    def declaration(self, name: str) -> str:
        assert self.node is not None
        star = "*" if _yields(self.node) else ""
        return f"let {name} = function{star} ({self.parameters(0)}) {self.block()};"

    def method(self, kind: str, static: bool) -> str:
        assert self.node is not None
        star = "*" if _yields(self.node) else ""
        given = self.parameters(0 if static else 1)
        own = "" if static else f"const {self.node.args.args[0].arg} = this;"
        return f"{kind}{star}{self.node.name}({given}) {self.block(own)}"

    def parameters(self, skip: int) -> str:
        assert self.node is not None
        args = self.node.args
        plain = args.args
        defaults: list[ast.expr | None] = [None] * (len(plain) - len(args.defaults))
        defaults += args.defaults
        pairs = list(zip(plain, defaults, strict=True))[skip:]
        pairs += list(zip(args.kwonlyargs, args.kw_defaults, strict=True))
        given = [
            _safe(a.arg) + ("" if d is None else f" = {self.expression(d)}")
            for a, d in pairs
        ]
        return ", ".join([*given, *([f"...{args.vararg.arg}"] if args.vararg else [])])

    def block(self, first: str = "") -> str:
        assert self.node is not None
        taken = {*_names(self.node.args)}
        if self.node.args.vararg:
            taken.add(self.node.args.vararg.arg)
        local = sorted(map(_safe, _assigned(self.node.body) - taken))
        lines = ["{", first, f"let {', '.join(local)};" if local else ""]
        lines += self.statements(self.node.body)
        return "\n".join([*filter(None, lines), "}"])

    # Statements

    def statements(self, nodes: list[ast.stmt]) -> list[str]:
        return [line for node in nodes for line in self.statement(node)]

    def statement(self, node: ast.stmt) -> list[str]:
        match node:
            case ast.Expr(value=ast.Constant()) | ast.Pass() | ast.Assert():
                return []
            case ast.Expr(value=ast.Yield() | ast.YieldFrom() as value):
                return [self.yielded(value)]
            case ast.Expr(value=value):
                return [f"{self.expression(value)};"]
            case ast.ImportFrom():
                return _import(node, self.module.known)
            case ast.Return(value=value):
                return [f"return {self.expression(value)};" if value else "return;"]
            case ast.Assign(targets=[target], value=value):
                return [self.assigned(target, self.expression(value))]
            case ast.AnnAssign(target=target, value=value):
                return [self.assigned(target, self.expression(value))] if value else []
            case ast.AugAssign(target=target, op=op, value=value):
                form = BINARY[type(op)]
                made = form.format(self.expression(target), self.expression(value))
                return [self.assigned(target, made)]
            case ast.Raise(exc=ast.Call() as made):
                return [f"throw {self.expression(made)};"]
        return self.compound(node)

    def compound(self, node: ast.stmt) -> list[str]:
        """A statement that holds others, or says where to go on."""
        match node:
            case ast.If():
                return self.branches(node)
            case ast.For(target=target, iter=iterated, orelse=[]):
                head = f"for ({self.target(target)} of $iter("
                inside = self.statements(node.body)
                return [f"{head}{self.expression(iterated)})) {{", *inside, "}"]
            case ast.While(test=test, orelse=[]):
                inside = self.statements(node.body)
                return [f"while ({self.condition(test)}) {{", *inside, "}"]
            case ast.Continue():
                return ["continue;"]
            case ast.Break():
                return ["break;"]
            case ast.FunctionDef():
                inner = _Function(self.module, node)
                return [f"{inner.declaration(node.name).removeprefix('let ')}"]
            case ast.Match():
                return self.matched(node)
        self.refuse(node, type(node).__name__)

    def yielded(self, node: ast.Yield | ast.YieldFrom) -> str:
        if isinstance(node, ast.YieldFrom):
            return f"yield* $iter({self.expression(node.value)});"
        return f"yield {self.expression(node.value) if node.value else 'undefined'};"

    def branches(self, node: ast.If) -> list[str]:
        lines = [f"if ({self.condition(node.test)}) {{"]
        lines += self.statements(node.body)
        if node.orelse:
            lines += ["} else {", *self.statements(node.orelse)]
        return [*lines, "}"]

    def matched(self, node: ast.Match) -> list[str]:
        self.hidden += 1
        subject = f"$s{self.hidden}"
        lines = [f"const {subject} = {self.expression(node.subject)};"]
        for i, case in enumerate(node.cases):
            test, binds = self.pattern(case.pattern, subject)
            if case.guard is not None:
                test = f"{test} && {self.condition(case.guard)}"
            lines.append(f"{'} else ' if i else ''}if ({test}) {{")
            lines += [f"{name} = {subject}.{at};" for name, at in binds.items()]
            lines += self.statements(case.body)
        return [*lines, "}"]

    def pattern(self, node: ast.pattern, subject: str) -> tuple[str, dict[str, str]]:
        match node:
            case ast.MatchOr(patterns=parts):
                found = [self.pattern(part, subject) for part in parts]
                return " || ".join(f"({test})" for test, _ in found), found[0][1]
            case ast.MatchClass(cls=kind, patterns=[]):
                binds = {}
                for name, part in zip(node.kwd_attrs, node.kwd_patterns, strict=True):
                    if not isinstance(part, ast.MatchAs) or part.name is None:
                        self.refuse(node, "this pattern")
                    binds[part.name] = name
                return f"({subject} instanceof {self.expression(kind)})", binds
            case ast.MatchAs(pattern=None, name=None):
                return "true", {}
        self.refuse(node, "this pattern")

    def assigned(self, target: ast.expr, value: str) -> str:
        if isinstance(target, ast.Subscript):
            at = self.expression(target.slice)
            return f"$set({self.expression(target.value)}, {at}, {value});"
        made = self.target(target)
        if isinstance(target, ast.Tuple):
            return f"({made} = $list({value}));"
        return f"{made} = {value};"

    def target(self, node: ast.expr) -> str:
        match node:
            case ast.Name(id=name):
                return _safe(name)
            case ast.Tuple(elts=parts):
                return f"[{', '.join(map(self.target, parts))}]"
        self.refuse(node, f"an assignment to {ast.unparse(node)}")

    # Expressions

    def condition(self, node: ast.expr) -> str:
        """A test, with Python's truth."""
        if isinstance(node, ast.Compare):
            return self.expression(node)
        if isinstance(node, ast.BoolOp):
            sign = " && " if isinstance(node.op, ast.And) else " || "
            return f"({sign.join(map(self.condition, node.values))})"
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return f"!{self.condition(node.operand)}"
        return f"$truth({self.expression(node)})"

    def expression(self, node: ast.expr) -> str:
        found = getattr(self, f"visit_{type(node).__name__}", None)
        if found is None:
            self.refuse(node, f"`{ast.unparse(node)}`")
        text: str = found(node)
        return text

    def visit_Constant(self, node: ast.Constant) -> str:
        if isinstance(node.value, str):
            return json.dumps(node.value).replace("</", r"<\/")
        words = {None: "null", True: "true", False: "false"}
        if node.value is None or isinstance(node.value, bool):
            return words[node.value]
        return repr(node.value)

    def visit_Name(self, node: ast.Name) -> str:
        own = self.node is not None and node.id in _names(self.node.args)
        if node.id in BUILTINS and not own and not hasattr(self.module.module, node.id):
            return f"$b.{node.id}"
        return _safe(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> str:
        value = self.expression(node.value)
        special = {"__name__": "name", "_fields": None}
        if node.attr == "_fields":
            return f"$fields({value})"
        return f"{value}.{special.get(node.attr) or node.attr}"

    def visit_BinOp(self, node: ast.BinOp) -> str:
        if type(node.op) not in BINARY:
            self.refuse(node, f"`{ast.unparse(node)}`")
        form = BINARY[type(node.op)]
        return form.format(self.expression(node.left), self.expression(node.right))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> str:
        match node.op:
            case ast.Not():
                return f"(!{self.condition(node.operand)})"
            case ast.USub():
                return f"(-{self.expression(node.operand)})"
        self.refuse(node, f"`{ast.unparse(node)}`")

    def visit_BoolOp(self, node: ast.BoolOp) -> str:
        name = "$and" if isinstance(node.op, ast.And) else "$or"
        rest = ", ".join(f"() => {self.expression(v)}" for v in node.values)
        return f"{name}({rest})"

    def visit_Compare(self, node: ast.Compare) -> str:
        terms = [node.left, *node.comparators]
        links = [
            self.compared(a, op, b)
            for a, op, b in zip(terms, node.ops, terms[1:], strict=False)
        ]
        return f"({' && '.join(links)})"

    def compared(self, a: ast.expr, op: ast.cmpop, b: ast.expr) -> str:
        left, right = self.expression(a), self.expression(b)
        if type(op) in ORDER:
            return f"{left} {ORDER[type(op)]} {right}"
        none = isinstance(b, ast.Constant) and b.value is None
        match op:
            case ast.Is() | ast.Eq():
                return f"{left} {'==' if none else '==='} {right}"
            case ast.IsNot() | ast.NotEq():
                return f"{left} {'!=' if none else '!=='} {right}"
            case ast.In():
                return f"$in({left}, {right})"
            case ast.NotIn():
                return f"!$in({left}, {right})"
        self.refuse(a, "this comparison")

    def visit_IfExp(self, node: ast.IfExp) -> str:
        body, rest = self.expression(node.body), self.expression(node.orelse)
        return f"({self.condition(node.test)} ? {body} : {rest})"

    def visit_Lambda(self, node: ast.Lambda) -> str:
        return f"(({', '.join(_names(node.args))}) => {self.expression(node.body)})"

    def visit_Tuple(self, node: ast.Tuple) -> str:
        return f"[{', '.join(map(self.element, node.elts))}]"

    visit_List = visit_Tuple

    def visit_Set(self, node: ast.Set) -> str:
        return f"new Set([{', '.join(map(self.element, node.elts))}])"

    def element(self, node: ast.expr) -> str:
        if isinstance(node, ast.Starred):
            return f"...$iter({self.expression(node.value)})"
        return self.expression(node)

    def visit_Dict(self, node: ast.Dict) -> str:
        pairs = []
        for k, v in zip(node.keys, node.values, strict=True):
            if k is None:
                pairs.append(f"...$b.dict({self.expression(v)})")
            else:
                pairs.append(f"[{self.expression(k)}, {self.expression(v)}]")
        return f"new Map([{', '.join(pairs)}])"

    def visit_Subscript(self, node: ast.Subscript) -> str:
        value = self.expression(node.value)
        if isinstance(node.slice, ast.Slice):
            low, high = node.slice.lower, node.slice.upper
            if node.slice.step is not None:
                self.refuse(node, f"`{ast.unparse(node)}`")
            at = [self.expression(x) if x else "undefined" for x in (low, high)]
            return f"{value}.slice({', '.join(at)})"
        return f"$at({value}, {self.expression(node.slice)})"

    def comprehended(
        self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp
    ) -> str:
        """A list, by loops in a function of their own."""
        if isinstance(node, ast.DictComp):
            made = f"[{self.expression(node.key)}, {self.expression(node.value)}]"
        else:
            made = self.expression(node.elt)
        inside = f"$r.push({made});"
        for part in reversed(node.generators):
            for test in reversed(part.ifs):
                inside = f"if ({self.condition(test)}) {{ {inside} }}"
            head = f"for (const {self.target(part.target)} of "
            inside = f"{head}$iter({self.expression(part.iter)})) {{ {inside} }}"
        return f"(() => {{ const $r = []; {inside} return $r; }})()"

    visit_ListComp = comprehended
    visit_GeneratorExp = comprehended

    def visit_SetComp(self, node: ast.SetComp) -> str:
        return f"new Set({self.comprehended(node)})"

    def visit_DictComp(self, node: ast.DictComp) -> str:
        return f"new Map({self.comprehended(node)})"

    def visit_JoinedStr(self, node: ast.JoinedStr) -> str:
        parts = []
        for part in node.values:
            match part:
                case ast.Constant():
                    parts.append(self.visit_Constant(part))
                case ast.FormattedValue(value=value, conversion=114):
                    parts.append(f"$repr({self.expression(value)})")
                case ast.FormattedValue(value=value, format_spec=None):
                    parts.append(f"$b.str({self.expression(value)})")
                case ast.FormattedValue(value=value, format_spec=spec):
                    assert isinstance(spec, ast.JoinedStr)
                    form = self.visit_JoinedStr(spec)
                    parts.append(f"$format({self.expression(value)}, {form})")
        return f"({' + '.join(parts)})" if parts else '""'

    def visit_Call(self, node: ast.Call) -> str:
        fn = node.func
        if isinstance(fn, ast.Subscript) and ast.unparse(fn.value) in BUILTINS:
            fn = fn.value  # list[int]() is list()
        given = [self.element(a) for a in node.args]
        if isinstance(fn, ast.Attribute):
            return self.method_called(fn, given, node)
        name = self.expression(fn)
        made = self.is_class(fn)
        if not node.keywords:
            return f"{'new ' if made else ''}{name}({', '.join(given)})"
        return f"$call({name}, [{', '.join(given)}], {self.keywords(node)})"

    def is_class(self, fn: ast.expr) -> bool:
        name = fn.id if isinstance(fn, ast.Name) else ""
        found = getattr(self.module.module, name, None)
        return isinstance(found, type)

    def keywords(self, node: ast.Call) -> str:
        pairs = [
            f"...$object({self.expression(k.value)})"
            if k.arg is None
            else f"{k.arg}: {self.expression(k.value)}"
            for k in node.keywords
        ]
        return f"{{{', '.join(pairs)}}}"

    def method_called(self, fn: ast.Attribute, given: list[str], node: ast.Call) -> str:
        value, name = self.expression(fn.value), fn.attr
        if name == "_replace":
            return f"$replace({value}, {self.keywords(node)})"
        if name == "_asdict":
            return f"$object({value})"
        if ast.unparse(fn) == "dataclasses.fields":
            return f"{given[0]}.constructor.$fields"
        if ast.unparse(fn.value) in ("math", "dataclasses", "itertools"):
            value = "$runtime"
        if node.keywords:
            return f"$call({value}.{name}, [{', '.join(given)}], {self.keywords(node)})"
        if name in METHODS:
            rest = "".join(f", {g}" for g in given)
            return f'$method({value}, "{name}"{rest})'
        return f"{value}.{name}({', '.join(given)})"


def _yields(node: ast.FunctionDef) -> bool:
    """Whether it is a generator: its own yields, not those of functions inside."""
    todo: list[ast.AST] = list(node.body)
    while todo:
        one = todo.pop()
        if isinstance(one, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(one, ast.FunctionDef | ast.Lambda):
            todo += ast.iter_child_nodes(one)
    return False


def _assigned(body: list[ast.stmt]) -> set[str]:
    """The names that a function's own statements assign."""
    found: set[str] = set()
    for node in body:
        match node:
            case ast.Assign(targets=targets):
                for target in targets:
                    found |= _targets(target)
            case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
                found |= _targets(target)
            case ast.For(target=target):
                found |= _targets(target)
            case ast.FunctionDef(name=name):
                found.add(name)
                continue
            case ast.Match(cases=cases):
                for case in cases:
                    for part in ast.walk(case.pattern):
                        if isinstance(part, ast.MatchAs) and part.name:
                            found.add(part.name)
                    found |= _assigned(case.body)
        for inside in ("body", "orelse"):
            found |= _assigned(getattr(node, inside, []))
    return found


def _targets(node: ast.expr) -> set[str]:
    match node:
        case ast.Name(id=name):
            return {name}
        case ast.Tuple(elts=parts):
            return set().union(*map(_targets, parts))
    return set()
