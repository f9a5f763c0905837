"""Which of an exemplar's definitions are the mechanism, and which are the truth.

    main ---> what runs up to the end of the last meter  = the mechanism
         '--> reference, and what a check compares with   = the truth

A definition may serve both. Then the truth gets a copy under another name, so that
a mistake in the mechanism cannot agree with the same mistake in the reference.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

#: What an exemplar's checks compare with.
TRUTHS = ("reference", "one_process")
#: A copy that only the truth uses.
COPY = "true_"

Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign
Scope = ast.FunctionDef | ast.Lambda
S = TypeVar("S", ast.FunctionDef, ast.Lambda)


@dataclass(frozen=True)
class Parts:
    """An exemplar's source, taken apart."""

    tree: ast.Module

    @cached_property
    def definitions(self) -> dict[str, Definition]:
        """Everything that the module itself defines, by name."""
        found: dict[str, Definition] = {}
        for node in self.tree.body:
            for name in _defines(node):
                assert isinstance(node, Definition)
                found[name] = node
        return found

    @cached_property
    def main(self) -> ast.FunctionDef:
        """The function that runs, checks and reports."""
        found = self.definitions["main"]
        assert isinstance(found, ast.FunctionDef)
        return found

    @cached_property
    def roots(self) -> set[str]:
        """The functions that checks compare with."""
        named = {n for n in self.definitions if n in TRUTHS}
        for function in self.definitions.values():
            if isinstance(function, ast.FunctionDef):
                own = local_names(function)
                for compared in compared_with(function):
                    named |= set(names(compared, own)) & self.functions
        return named - {"main"}

    @property
    def functions(self) -> set[str]:
        """The functions and classes of the module."""
        made = (ast.FunctionDef, ast.ClassDef)
        return {n for n, node in self.definitions.items() if isinstance(node, made)}

    @cached_property
    def truth(self) -> set[str]:
        """All that the references reach."""
        return self.reached(self.roots)

    @cached_property
    def mechanism(self) -> set[str]:
        """All that runs before the last meter ends, but for the references."""
        statements = list(before_the_proof(self.main.body))
        found = {name for s in statements for name in _names_outside_checks(s)}
        given = {n for n, node in self.definitions.items() if makes_a_task(node)}
        truth = {*TRUTHS, *given}
        every = self.reached((found & self.definitions.keys()) - truth, truth)
        return {n for n in every if not any(compared_with(self.definitions[n]))}

    @property
    def shared(self) -> set[str]:
        """What serves both: the truth needs a copy of its own."""
        both = self.truth & self.mechanism
        return {n for n in both if not is_given(self.definitions[n])}

    def reached(self, start: Iterable[str], stop: Iterable[str] = ()) -> set[str]:
        """The definitions that these name, and those that they name in turn."""
        found: set[str] = set()
        left = [name for name in start if name in self.definitions]
        stopped = {"main", *stop}
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                there = set(names(self.definitions[name])) & self.definitions.keys()
                left += there - stopped
        return found

    def apart(self) -> ast.Module:
        """The same program, in which the truth shares nothing with the mechanism."""
        copies = {name: COPY + name for name in self.shared}
        body: list[ast.stmt] = []
        for node in self.tree.body:
            named = set(_defines(node))
            if named & self.shared:
                body += [node, _Rename(copies, define=True).visit(_copy(node))]
            elif named & self.truth:
                body.append(_Rename(copies).visit(_copy(node)))
            elif any(compared_with(node)):
                body.append(_RenameInChecks(copies).visit(_copy(node)))
            else:
                body.append(node)
        return ast.fix_missing_locations(ast.Module(body, []))


def parts(text: str) -> Parts:
    """Take a source apart."""
    return Parts(ast.parse(text))


def is_given(node: ast.AST) -> bool:
    """A size or a setting: a module's constant that is written as a value."""
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return False
    made = (ast.Lambda, ast.BinOp, ast.ListComp, ast.DictComp, ast.GeneratorExp)
    return not any(isinstance(inside, made) for inside in ast.walk(node.value))


def makes_a_task(node: ast.AST) -> bool:
    """Data and a model, which both sides are given: whichever it is, both agree."""
    if not isinstance(node, ast.FunctionDef) or node.returns is None:
        return False
    return ast.unparse(node.returns) == "Task"


def compared_with(function: ast.AST) -> Iterator[ast.expr]:
    """What its checks compare with: the third argument of `w.check`."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and called(node) == "w.check":
            yield from node.args[2:3]
            yield from (k.value for k in node.keywords if k.arg == "reference")


def called(node: ast.expr) -> str:
    """The dotted name that a call calls, or nothing."""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def is_metered(node: ast.AST) -> bool:
    """Whether a `with` counts what happens inside it."""
    if not isinstance(node, ast.With):
        return False
    inside = (n for item in node.items for n in ast.walk(item.context_expr))
    said = {called(n) for n in inside if isinstance(n, ast.Call)}
    named = {ast.unparse(item.context_expr) for item in node.items}
    return bool(said & {"meter", "w.memory"} or named & {"memory", "ledger"})


def before_the_proof(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of main up to the last meter, in every block on the way."""
    metered = [any(map(is_metered, ast.walk(s))) for s in body]
    if True not in metered:
        yield from body
        return
    last = len(body) - 1 - metered[::-1].index(True)
    yield from body[:last]
    ends = body[last]
    if is_metered(ends):
        yield ends
        return
    inner = getattr(ends, "body", [])
    yield from before_the_proof(inner)
    if isinstance(ends, ast.For):
        yield ast.Expr(ends.iter)


PROOF = ("w.check", "w.check_same", "report", "w.require")


def _names_outside_checks(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call) and called(node) in PROOF:
        return
    if isinstance(node, ast.Name):
        yield node.id
    for child in ast.iter_child_nodes(node):
        yield from _names_outside_checks(child)


def names(node: ast.AST, bound: frozenset[str] = frozenset()) -> Iterator[str]:
    """The names of the module that some code uses: no local ones, no annotations."""
    if isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Load) and node.id not in bound:
            yield node.id
        return
    if isinstance(node, Scope):
        bound |= local_names(node)
    for field, child in _children(node):
        if field not in ("annotation", "returns"):
            yield from names(child, bound)


def local_names(function: Scope) -> frozenset[str]:
    """The names that a function binds: its arguments and what it assigns."""
    found = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return frozenset(found)


def _children(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield field, child


def _defines(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            found = (n for n in ast.walk(target) if isinstance(n, ast.Name))
            yield from (n.id for n in found)
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id


def _copy(node: ast.stmt) -> ast.stmt:
    return ast.parse(ast.unparse(node)).body[0]


class _Rename(ast.NodeTransformer):
    """Puts copies in the place of what the truth shares with the mechanism."""

    def __init__(self, copies: Mapping[str, str], define: bool = False) -> None:
        self.copies, self.define = copies, define
        self.bound: list[frozenset[str]] = []

    def visit_Name(self, node: ast.Name) -> ast.Name:
        local = any(node.id in bound for bound in self.bound)
        if node.id in self.copies and not local:
            node.id = self.copies[node.id]
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        if self.define and not self.bound:
            node.name = self.copies.get(node.name, node.name)
        return self.inside(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        return self.inside(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        if self.define:
            node.name = self.copies.get(node.name, node.name)
        define, self.define = self.define, False  # a method is no definition
        self.generic_visit(node)
        self.define = define
        return node

    def inside(self, node: S) -> S:
        self.bound.append(local_names(node))
        self.generic_visit(node)
        self.bound.pop()
        return node


class _RenameInChecks(ast.NodeTransformer):
    """The same, only in what checks compare with."""

    def __init__(self, copies: Mapping[str, str]) -> None:
        self.copies = copies

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        if called(node) == "w.check":
            rename = _Rename(self.copies)
            node.args[2:3] = [rename.visit(a) for a in node.args[2:3]]
        return node
