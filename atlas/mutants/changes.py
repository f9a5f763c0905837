"""What may go wrong at one place of a program: for a node, the nodes instead of it.

Each change is one that a person could have made: another operator, an index off by
one, a statement forgotten, the other peer, MAX for SUM. Those that only fail to
run (a name that was never assigned) are left out, for any test would catch them.
"""

import ast
import copy
from collections.abc import Iterator

#: A kind of change, and what then stands in the place of the node.
Change = tuple[str, ast.AST]

OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
#: Whose right side may be forgotten: x / y becomes x.
FORGOTTEN = (ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.Mult)
COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
#: Sides that a person confuses; a name is swapped where its function has both.
PEERS = [
    ("src", "dst"),
    ("source", "target"),
    ("left", "right"),
    ("up", "down"),
    ("above", "below"),
    ("first", "last"),
    ("before", "after"),
    ("previous", "following"),
    ("incoming", "outgoing"),
    ("near", "far"),
]
OTHER_PEER = {**dict(PEERS), **{b: a for a, b in PEERS}}
#: Methods and functions whose opposite or neighbor is as easily written.
OTHER_NAME = {
    "add_": ("sub_", "copy_"),
    "sub_": ("add_",),
    "mul_": ("div_",),
    "div_": ("mul_",),
    "max": ("min",),
    "min": ("max",),
    "sum": ("mean",),
    "mean": ("sum",),
    "amax": ("amin",),
    "amin": ("amax",),
    "argmax": ("argmin",),
    "argmin": ("argmax",),
    "any": ("all",),
    "all": ("any",),
    "floor": ("ceil",),
    "ceil": ("floor",),
}
#: A call that may be forgotten around, or behind, what it is called with.
TRANSPARENT = ("reversed", "abs", "sorted")
TRANSPARENT_METHODS = ("abs", "clone", "square", "sqrt", "neg", "t")
REDUCTIONS = {
    "SUM": ("MAX", "MIN"),
    "MAX": ("SUM", "MIN"),
    "MIN": ("SUM", "MAX"),
    "AVG": ("MAX",),
    "PRODUCT": ("SUM",),
}
REDUCING = ("all_reduce", "reduce", "reduce_scatter_single", "reduce_scatter")
FORGOTTEN_KEYWORDS = ("group", "op", "alpha")


def changes(node: ast.AST, peers: frozenset[str]) -> Iterator[Change]:
    """Everything that may stand in the place of this node.

    `peers` are the names that the function around it uses.
    """
    match node:
        case ast.BinOp():
            yield from _operator(node)
        case ast.AugAssign():
            yield from _augmented(node)
        case ast.Compare():
            yield from _comparison(node)
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert()):
            yield "sign or negation removed", node.operand
        case ast.Constant():
            yield from _constant(node.value)
        case ast.IfExp() | ast.If() | ast.While() | ast.BoolOp():
            yield from _condition(node)
        case ast.comprehension(ifs=[_, *_]):
            yield "filter removed", _with(node, ifs=[])
        case ast.Slice():
            yield from _slice(node)
        case ast.Name(ctx=ast.Load()) if OTHER_PEER.get(node.id) in peers:
            yield "other peer", ast.Name(OTHER_PEER[node.id], node.ctx)
        case ast.Attribute():
            yield from _attribute(node)
        case ast.Call():
            yield from _call(node)


def _with(node: ast.AST, **fields: object) -> ast.AST:
    """The node with other fields."""
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def _operator(node: ast.BinOp) -> Iterator[Change]:
    if isinstance(node.left, ast.Constant) and isinstance(node.left.value, str):
        return
    if other := OPERATORS.get(type(node.op)):
        yield "other operator", ast.BinOp(node.left, other(), node.right)
    if isinstance(node.op, FORGOTTEN):
        yield "right side forgotten", node.left


def _augmented(node: ast.AugAssign) -> Iterator[Change]:
    yield "= for an update", ast.Assign([node.target], node.value, lineno=0)
    if other := OPERATORS.get(type(node.op)):
        yield "other update", _with(node, op=other())


def _comparison(node: ast.Compare) -> Iterator[Change]:
    for i, op in enumerate(node.ops):
        for other in COMPARISONS[type(op)]:
            ops = [*node.ops[:i], other(), *node.ops[i + 1 :]]
            yield "other comparison", ast.Compare(node.left, ops, node.comparators)


def _constant(value: object) -> Iterator[Change]:
    match value:
        case bool():
            yield "other truth", ast.Constant(not value)
        case 0 | 1 if isinstance(value, int):
            yield "other number", ast.Constant(1 - value)
            if value:
                yield "other number", ast.Constant(2)
        case int():
            yield "other number", ast.Constant(value + 1)
            yield "other number", ast.Constant(value - 1)
        case float():
            yield "other number", ast.Constant(2 * value if value else 1.0)


def _condition(node: ast.If | ast.IfExp | ast.While | ast.BoolOp) -> Iterator[Change]:
    match node:
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "and/or", ast.BoolOp(other, node.values)
        case ast.IfExp():
            yield "condition forced", node.body
            yield "condition forced", node.orelse
        case ast.While():  # forced to be true, it would only run into the deadline
            yield "condition forced", _with(node, test=ast.Constant(False))
        case ast.If():
            for truth in (True, False):
                yield "condition forced", _with(node, test=ast.Constant(truth))


def _slice(node: ast.Slice) -> Iterator[Change]:
    if node.lower is not None:
        later = ast.BinOp(node.lower, ast.Add(), ast.Constant(1))
        yield "slice shifted", _with(node, lower=later)
    elif node.upper is not None:
        yield "slice shifted", _with(node, lower=ast.Constant(1))
    if node.upper is not None:
        sooner = ast.BinOp(node.upper, ast.Sub(), ast.Constant(1))
        yield "slice shifted", _with(node, upper=sooner)
    elif node.lower is not None:
        yield "slice shifted", _with(node, upper=ast.Constant(-1))


def _attribute(node: ast.Attribute) -> Iterator[Change]:
    if ast.unparse(node.value).endswith("ReduceOp"):
        for other in REDUCTIONS.get(node.attr, ()):
            yield "other reduction", ast.Attribute(node.value, other, node.ctx)


def _call(node: ast.Call) -> Iterator[Change]:
    function = node.func
    match function:
        case ast.Attribute(value=of, attr=name):
            for other in OTHER_NAME.get(name, ()):
                made = ast.Attribute(of, other, ast.Load())
                yield "other function", _with(node, func=made)
            if name in TRANSPARENT_METHODS and not node.args:
                yield "call removed", of
            if name in REDUCING and ast.unparse(of) == "dist":
                yield from _reducing(node)
        case ast.Name(id=name):
            for other in OTHER_NAME.get(name, ()):
                yield "other function", _with(node, func=ast.Name(other, ast.Load()))
            if name in TRANSPARENT and len(node.args) == 1:
                yield "call removed", node.args[0]
            if name == "range" and not isinstance(node.args[-1], ast.BinOp):
                end = ast.BinOp(node.args[-1], ast.Sub(), ast.Constant(1))
                place = min(1, len(node.args) - 1)
                if place == len(node.args) - 1:
                    fewer = [*node.args[:place], end]
                    yield "one turn fewer", _with(node, args=fewer)
    for k in node.keywords:
        if k.arg in FORGOTTEN_KEYWORDS:
            fewer_keywords = [other for other in node.keywords if other is not k]
            yield "argument forgotten", _with(node, keywords=fewer_keywords)


def _reducing(node: ast.Call) -> Iterator[Change]:
    """A collective that sums because nothing else is said."""
    said = any(k.arg == "op" for k in node.keywords)
    said |= any("ReduceOp" in ast.unparse(a) for a in node.args)
    if not said:
        for other in REDUCTIONS["SUM"]:
            value = ast.parse(f"dist.ReduceOp.{other}", mode="eval").body
            keywords = [*node.keywords, ast.keyword("op", value)]
            yield "other reduction", _with(node, keywords=keywords)
