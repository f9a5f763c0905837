"""Every mutation of an exemplar: one change, in the mechanism and nowhere else."""

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from atlas.mutants.changes import Change, changes
from atlas.mutants.parts import Parts, called, is_given, is_metered, parts

#: From the module down to a node: the field, and the place in it if it is a list.
Path = tuple[tuple[str, int | None], ...]
#: Said to the reader or refused to them: what is tried is legal anyway.
GUARDS = (ast.Assert, ast.Raise, ast.Import, ast.ImportFrom, ast.Global, ast.Pass)
#: Calls that only draw or refuse: a span's name and cost are the picture's.
SILENT = ("span", "w.require", "print", "super().__init__")


@dataclass(frozen=True)
class Mutation:
    """One change of one line."""

    id: str
    where: str
    line: int
    kind: str
    was: str
    now: str
    path: Path = field(repr=False)
    instead: ast.AST = field(repr=False, compare=False)

    @property
    def change(self) -> str:
        """What was written, and what is written instead."""
        return f"{self.was}  ->  {self.now}"

    @property
    def diff(self) -> str:
        """The change with its place, as one line."""
        return f"{self.where}:{self.line}: {self.change}"


@dataclass(frozen=True)
class Mutants:
    """An exemplar's source with its mutations."""

    text: str

    @cached_property
    def _parts(self) -> Parts:
        return parts(self.text)

    @cached_property
    def _apart(self) -> ast.Module:
        return self._parts.apart()

    @property
    def unchanged(self) -> str:
        """The program as every mutation has it, but for the one change."""
        return ast.unparse(self._apart)

    @cached_property
    def all(self) -> tuple[Mutation, ...]:
        """Every mutation, in the order of the source."""
        return tuple(_mutations(self._parts, self._apart))

    def source(self, mutation: Mutation) -> str:
        """The program with this mutation in it."""
        tree = copy.deepcopy(self._apart)
        _put(tree, mutation.path, mutation.instead)
        return ast.unparse(ast.fix_missing_locations(tree))


def _mutations(of: Parts, tree: ast.Module) -> Iterator[Mutation]:
    seen: Counter[str] = Counter()
    for name, path, node in _mechanism(of, tree):
        for where, at, line, (kind, instead) in _inside(name, path, node):
            statement, within = _statement(tree, at)
            was = shown(statement)
            changed = copy.deepcopy(statement)
            now = shown(_put(changed, within, instead) if within else instead)
            if was == now:
                continue
            key = "\n".join((where, kind, was, now))
            seen[key] += 1
            digest = hashlib.sha256(f"{key}\n{seen[key]}".encode()).hexdigest()
            yield Mutation(digest[:10], where, line, kind, was, now, at, instead)


def _mechanism(of: Parts, tree: ast.Module) -> Iterator[tuple[str, Path, ast.AST]]:
    """The definitions of the mechanism, and what main itself does of it."""
    named = {id(node): n for n, node in of.definitions.items() if n in of.mechanism}
    for i, node in enumerate(tree.body):
        if id(node) in named and not is_given(node):
            yield named[id(node)], (("body", i),), node
        elif isinstance(node, ast.FunctionDef) and node.name == "main":
            for path, block in _metered(node, (("body", i),)):
                for j, statement in enumerate(block.body):
                    if not _is_plain(statement):
                        yield "main", (*path, ("body", j)), statement


def _metered(node: ast.AST, path: Path) -> Iterator[tuple[Path, ast.With]]:
    if isinstance(node, ast.With) and is_metered(node):
        yield path, node
        return
    for step, child in _children(node):
        yield from _metered(child, (*path, step))


def _is_plain(node: ast.stmt) -> bool:
    """A call of the mechanism, or a loop over it that does nothing else."""
    if isinstance(node, ast.For):
        return _is_call(node.iter) and all(map(_is_plain, node.body))
    if isinstance(node, ast.Expr | ast.Assign | ast.AnnAssign | ast.AugAssign):
        return node.value is not None and _is_call(node.value)
    return isinstance(node, ast.Pass | ast.With)


def _is_call(node: ast.expr) -> bool:
    inside = (n for n in ast.walk(node))
    work = (ast.BinOp, ast.Compare, ast.BoolOp, ast.IfExp, ast.Subscript)
    return not any(isinstance(n, work) for n in inside)


def _inside(
    where: str, path: Path, node: ast.AST
) -> Iterator[tuple[str, Path, int, Change]]:
    """Every change at this node and below it: its function, its path, its line."""
    yield from _walk(where, path, node, _known(node), getattr(node, "lineno", 0))


def _known(node: ast.AST) -> frozenset[str]:
    """The names that occur in a function."""
    found = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return frozenset(found | {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)})


def _walk(
    where: str, path: Path, node: ast.AST, peers: frozenset[str], line: int
) -> Iterator[tuple[str, Path, int, Change]]:
    line = getattr(node, "lineno", line)
    if isinstance(node, GUARDS) or _is_silent(node) or _is_guard(node):
        return
    for change in changes(node, peers):
        yield where, path, line, change
    for step, child in _children(node):
        if _is_said(node, step, child):
            continue
        inner, known = where, peers
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            inner = f"{where}.{child.name}"
        if isinstance(child, ast.FunctionDef):
            known = _known(child)
        at = (*path, step)
        if _may_be_dropped(node, child, known if child is not node else peers):
            yield inner, at, child.lineno, ("statement dropped", ast.Pass())  # type: ignore[attr-defined]
        yield from _walk(inner, at, child, known, line)


def _is_silent(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and called(node) in SILENT


def _is_guard(node: ast.AST) -> bool:
    """Refuses what cannot work: `if ...: raise ...`."""
    if not isinstance(node, ast.If) or node.orelse:
        return False
    return all(isinstance(s, ast.Raise) for s in node.body)


def _is_said(parent: ast.AST, step: tuple[str, int | None], child: ast.AST) -> bool:
    """Not executed, or only said: annotations, docstrings, defaults, texts."""
    if step[0] in ("annotation", "returns", "defaults", "kw_defaults"):
        return True
    if step[0] in ("decorator_list", "bases", "ctx", "op", "ops"):
        return True
    if isinstance(child, ast.JoinedStr):
        return True
    if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
        return True
    # The right side of x ** 2 or of a negative number is that operator's.
    return isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.USub)


def _may_be_dropped(parent: ast.AST, node: ast.AST, known: frozenset[str]) -> bool:
    """A statement without which the program still runs."""
    match node:
        case ast.Expr(value=ast.Constant()):
            return False
        case ast.Expr(value=ast.Call() as call):
            return called(call) not in SILENT
        case ast.Expr() | ast.AugAssign() | ast.Break() | ast.Continue():
            return True
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return not _is_init(parent)
        case ast.Assign(targets=[ast.Name(id=name)]):
            return _bound_before(parent, node, name)
        case ast.Return():
            return not isinstance(parent, ast.FunctionDef) and node.value is None
    return False


def _is_init(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "__init__"


def _bound_before(parent: ast.AST, node: ast.AST, name: str) -> bool:
    """Whether the name had a value already: it is used in its own new one."""
    uses = (n for n in ast.walk(node.value) if isinstance(n, ast.Name))  # type: ignore[attr-defined]
    return any(n.id == name for n in uses)


def _children(node: ast.AST) -> Iterator[tuple[tuple[str, int | None], ast.AST]]:
    for name, value in ast.iter_fields(node):
        if isinstance(value, list):
            for i, child in enumerate(value):
                if isinstance(child, ast.AST):
                    yield (name, i), child
        elif isinstance(value, ast.AST):
            yield (name, None), value


def _statement(tree: ast.AST, path: Path) -> tuple[ast.AST, Path]:
    """The innermost statement around a node, and the rest of the way to it."""
    node, found, rest = tree, tree, path
    for i, (name, place) in enumerate(path):
        value = getattr(node, name)
        node = value if place is None else value[place]
        if isinstance(node, ast.stmt):
            found, rest = node, path[i + 1 :]
    return found, rest


def _put(tree: ast.AST, path: Path, instead: ast.AST) -> ast.AST:
    """Put another node at the end of the path; the tree."""
    node = tree
    for name, place in path[:-1]:
        value = getattr(node, name)
        node = value if place is None else value[place]
    name, place = path[-1]
    if place is None:
        setattr(node, name, instead)
    else:
        getattr(node, name)[place] = instead
    return tree


def shown(node: ast.AST) -> str:
    """A statement in one line; of a block, its head."""
    text = ast.unparse(ast.fix_missing_locations(copy.deepcopy(node)))
    if hasattr(node, "body") and isinstance(node, ast.stmt):
        return text.splitlines()[0]
    return " ".join(line.strip() for line in text.splitlines())


def chosen(
    every: list[tuple[str, Mutation]], count: int, seed: int
) -> list[tuple[str, Mutation]]:
    """Some of them, spread over the techniques: each in turn gives one."""
    order = sorted(
        every,
        key=lambda pair: hashlib.sha256(f"{seed} {pair[1].id}".encode()).digest(),
    )
    turns: Counter[str] = Counter()
    ranked = []
    for i, (technique, mutation) in enumerate(order):
        ranked.append((turns[technique], i, technique, mutation))
        turns[technique] += 1
    ranked.sort(key=lambda entry: entry[:2])
    return [(technique, mutation) for _, _, technique, mutation in ranked[:count]]
