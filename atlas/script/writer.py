"""Functions of Python as JavaScript, statement by statement.

One writer for all: formulas, and modules of classes, loops and generators. Whatever
has no translation is a `ScriptError` that names the line, so that nothing outgrows the
page unseen. Records are objects with the same fields, made by name; a member of an
enumeration is its value; `python.js` has Python's own words, as far as they are used.

JavaScript's numbers are doubles: integers are exact up to 2**53, `//` and `%` round
as Python's do, and a larger result is rounded to 53 bits.
"""

import ast
import dataclasses
import inspect
import json
from collections.abc import Mapping
from enum import Enum
from types import FunctionType
from typing import Any, NoReturn, Protocol

from atlas.script.source import is_enum, is_record

__all__ = ["Scope", "Writer", "constant", "parameters", "safe", "signature"]

BINARY: dict[type[ast.AST], str] = {
    ast.Add: "$add({}, {})",
    ast.Sub: "({} - {})",
    ast.Mult: "({} * {})",
    ast.Div: "({} / {})",
    ast.FloorDiv: "$div({}, {})",
    ast.Mod: "$mod({}, {})",
    ast.Pow: "$pow({}, {})",
    ast.BitOr: "$union({}, {})",
    ast.BitAnd: "({} & {})",
}
ORDER: dict[type[ast.AST], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
#: Python's own functions, as the runtime has them.
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
#: Annotations of arguments that are numbers.
NUMBERS = {"int", "float", "Count", "Positive", "Amount", "Ranks", "Rank"}
WORDS = {"function", "default", "new", "this", "delete", "in", "var", "let", "const"}


class Scope(Protocol):
    """What surrounds a function: the names of its module, and how to refuse."""

    @property
    def names(self) -> Mapping[str, Any]:
        """What the module's names stand for."""

    def refuse(self, node: ast.AST, why: str) -> NoReturn:
        """Say what cannot be written, and where."""


def safe(name: str) -> str:
    """The name, unless it means something else in JavaScript."""
    return f"{name}_" if name in WORDS else name


def parameters(args: ast.arguments) -> list[str]:
    """The names of a function's arguments, in order."""
    return [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)]


def signature(fn: Any) -> list[str] | None:
    """The arguments of a function or a class that is known here, in order."""
    if is_record(fn):
        return list(fn._fields)
    if isinstance(fn, type) and dataclasses.is_dataclass(fn):
        return [f.name for f in dataclasses.fields(fn) if f.init]
    if isinstance(fn, FunctionType):
        given = inspect.signature(fn).parameters
        star = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
        return None if star & {a.kind for a in given.values()} else list(given)
    return None


def constant(value: Any) -> str:
    """A value as JavaScript: records as objects, members as what they stand for."""
    if isinstance(value, Enum):
        return constant(value.value)
    if isinstance(value, tuple) and is_record(type(value)):
        pairs = value._asdict().items()  # type: ignore[attr-defined]
        return "{" + ", ".join(f"{f}: {constant(v)}" for f, v in pairs) + "}"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value).replace("</", r"<\/")


class Writer:
    """One function, or an expression outside of any."""

    def __init__(self, scope: Scope, node: ast.FunctionDef | None = None):
        self.scope, self.node = scope, node
        self.hidden = 0

    def refuse(self, node: ast.AST, what: str) -> NoReturn:
        self.scope.refuse(node, f"cannot translate {what}")

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
            safe(a.arg) + ("" if d is None else f" = {self.expression(d)}")
            for a, d in pairs
        ]
        return ", ".join([*given, *([f"...{args.vararg.arg}"] if args.vararg else [])])

    def block(self, first: str = "") -> str:
        assert self.node is not None
        taken = {*parameters(self.node.args)}
        if self.node.args.vararg:
            taken.add(self.node.args.vararg.arg)
        local = sorted(map(safe, _assigned(self.node.body) - taken))
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
                inner = Writer(self.scope, node)
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
                return safe(name)
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
        return constant(node.value)

    def visit_Name(self, node: ast.Name) -> str:
        own = self.node is not None and node.id in parameters(self.node.args)
        if node.id in BUILTINS and not own and node.id not in self.scope.names:
            return f"$b.{node.id}"
        return safe(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> str:
        kind = self.known(node.value)
        if is_enum(kind) and node.attr in kind.__members__:
            return constant(kind[node.attr])
        value = self.expression(node.value)
        if node.attr == "_fields":
            return f"$fields({value})"
        return f"{value}.{'name' if node.attr == '__name__' else node.attr}"

    def visit_BinOp(self, node: ast.BinOp) -> str:
        if type(node.op) not in BINARY:
            self.refuse(node, f"`{ast.unparse(node)}`")
        added = isinstance(node.op, ast.Add) and self.is_number(node)
        form = "({} + {})" if added else BINARY[type(node.op)]
        return form.format(self.expression(node.left), self.expression(node.right))

    def is_number(self, node: ast.expr) -> bool:
        """Whether it is certainly a number, so that + adds and does not join."""
        match node:
            case ast.Constant(value=value):
                return isinstance(value, int | float)
            case ast.UnaryOp(op=ast.USub()):
                return True
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                return self.is_number(left) or self.is_number(right)
            case ast.BinOp(op=op):
                return isinstance(op, ast.Sub | ast.Mult | ast.Div | ast.FloorDiv)
            case ast.Name(id=name) if self.node is not None:
                args = self.node.args
                typed = {a.arg: a.annotation for a in (*args.args, *args.kwonlyargs)}
                kind = typed.get(name)
                return kind is not None and ast.unparse(kind) in NUMBERS
        return False

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
        return f"(({', '.join(parameters(node.args))}) => {self.expression(node.body)})"

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
                    parts.append(f"$str({self.expression(value)})")
                case ast.FormattedValue(value=value, format_spec=spec):
                    assert isinstance(spec, ast.JoinedStr)
                    form = self.visit_JoinedStr(spec)
                    parts.append(f"$format({self.expression(value)}, {form})")
        return f"({' + '.join(parts)})" if parts else '""'

    def visit_Call(self, node: ast.Call) -> str:
        fn = node.func
        if isinstance(fn, ast.Subscript) and ast.unparse(fn.value) in BUILTINS:
            fn = fn.value  # list[int]() is list()
        if isinstance(fn, ast.Attribute):
            return self.method_called(fn, node)
        kind = self.known(fn)
        if is_enum(kind):
            return f"$member({self.expression(fn)}, {self.expression(node.args[0])})"
        name = self.expression(fn)
        if node.keywords:
            return self.called_by_name(name, fn, node)
        given = ", ".join(map(self.element, node.args))
        return f"{'new ' if isinstance(kind, type) else ''}{name}({given})"

    def known(self, node: ast.expr) -> Any:
        """The class, function or module that a name stands for, if it is a global."""
        match node:
            case ast.Name(id=name):
                own = self.node is not None and name in parameters(self.node.args)
                return None if own else self.scope.names.get(name)
            case ast.Attribute(value=ast.Name() as owner, attr=name):
                module = self.known(owner)
                return getattr(module, name, None) if inspect.ismodule(module) else None
        return None

    def called_by_name(self, name: str, fn: ast.expr, node: ast.Call) -> str:
        """A call with names: by place if its function is known, else as it runs."""
        kind = self.known(fn)
        order = signature(kind)
        given = [self.element(a) for a in node.args]
        named = {k.arg: self.expression(k.value) for k in node.keywords if k.arg}
        every = len(named) == len(node.keywords)
        if order is None or not every or any("..." in a[:3] for a in given):
            return f"$call({name}, [{', '.join(given)}], {self.keywords(node)})"
        for argument in named:
            if argument not in order[len(given) :]:
                self.refuse(node, f"`{ast.unparse(node)}`: no argument {argument}")
        given += [named.get(one, "undefined") for one in order[len(given) :]]
        while given[-1] == "undefined":
            given.pop()
        return f"{'new ' if isinstance(kind, type) else ''}{name}({', '.join(given)})"

    def keywords(self, node: ast.Call) -> str:
        pairs = [
            f"...$object({self.expression(k.value)})"
            if k.arg is None
            else f"{k.arg}: {self.expression(k.value)}"
            for k in node.keywords
        ]
        return f"{{{', '.join(pairs)}}}"

    def method_called(self, fn: ast.Attribute, node: ast.Call) -> str:
        value, name = self.expression(fn.value), fn.attr
        given = [self.element(a) for a in node.args]
        if name == "_replace":
            return f"$replace({value}, {self.keywords(node)})"
        if name == "_asdict":
            return f"$object({value})"
        if ast.unparse(fn) == "dataclasses.fields":
            return f"{given[0]}.constructor.$fields"
        if ast.unparse(fn.value) in ("math", "dataclasses", "itertools"):
            value = "$runtime"
        if node.keywords:
            return self.called_by_name(f"{value}.{name}", fn, node)
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
