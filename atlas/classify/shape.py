"""Who sent to whom: the graph of messages, and the shape it has."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from atlas.classify.log import Entry

Edges = frozenset[tuple[int, int]]

#: The families of the facet that a shape is found in.
FAMILIES = {
    "group": ("collective",),
    "star": ("star",),
    "line": ("neighbor",),
    "ring": ("neighbor", "collective"),
    "hypercube": ("neighbor", "collective"),
    "all pairs": ("collective", "star"),
    "two levels": ("collective",),
    "graph": ("neighbor", "collective"),
}


@dataclass(frozen=True)
class Topology:
    """The shapes of a run's exchanges, those that carry most first."""

    shapes: tuple[str, ...]
    edges: tuple[tuple[int, int, int], ...]  # from, to, bytes; without collectives
    group_bytes: int


def families(shapes: Iterable[str]) -> tuple[str, ...]:
    """The families that exchanges of these shapes may belong to."""
    return tuple(dict.fromkeys(f for shape in shapes for f in FAMILIES[shape]))


def topology(ranks: Sequence[Sequence[Entry]]) -> Topology:
    """What the messages and the collectives of all ranks draw."""
    edges: Counter[tuple[int, int]] = Counter()
    grouped = calls = 0
    for rank, log in enumerate(ranks):
        for entry in log:
            if entry.kind == "send" and entry.peer != rank:
                edges[rank, entry.peer] += entry.bytes
            elif entry.kind == "collective" and len(entry.group) > 1:
                grouped += entry.bytes
                calls += 1
    found = [(edges.total(), shape(frozenset(edges), len(ranks)))] if edges else []
    found += [(grouped, "group")] if calls else []
    shapes = tuple(word for _, word in sorted(found, reverse=True))
    drawn = tuple((a, b, n) for (a, b), n in sorted(edges.items()))
    return Topology(shapes, drawn, grouped)


def shape(edges: Edges, p: int) -> str:
    """The name of a graph over p ranks, whichever way its edges point.

    Where it falls apart into several graphs of one shape, the name of that shape.
    """
    pairs = {frozenset(edge) for edge in edges}
    parts = _parts(pairs)
    if len(parts) > 1:
        found = {_named(_numbered(part), len(set().union(*part))) for part in parts}
        return found.pop() if len(found) == 1 else "graph"
    return _named(pairs, p)


def _named(pairs: "Pairs", p: int) -> str:
    fitting = (name for name, fits in _SHAPES.items() if fits(pairs, p))
    return next(fitting, "graph")


def _parts(pairs: "Pairs") -> list["Pairs"]:
    """The parts of a graph that no edge joins."""
    parts: list[Pairs] = []
    for pair in pairs:
        joined = [part for part in parts if pair & frozenset().union(*part)]
        parts = [part for part in parts if part not in joined]
        parts.append({pair}.union(*joined))
    return parts


def _numbered(pairs: "Pairs") -> "Pairs":
    """The same, with its ranks numbered from 0 on."""
    number = {rank: n for n, rank in enumerate(sorted(frozenset().union(*pairs)))}
    return {frozenset(number[rank] for rank in pair) for pair in pairs}


Pairs = set[frozenset[int]]


def _is_star(pairs: Pairs, p: int) -> bool:
    hubs = frozenset.intersection(*pairs)
    return bool(hubs) and (len(pairs) > 1 or p == 2) and len(pairs) == p - 1


def _is_line(pairs: Pairs, p: int) -> bool:
    return pairs == {frozenset((r, r + 1)) for r in range(p - 1)}


def _is_ring(pairs: Pairs, p: int) -> bool:
    return pairs == {frozenset((r, (r + 1) % p)) for r in range(p)}


def _is_cube(pairs: Pairs, p: int) -> bool:
    dims = [1 << i for i in range(p.bit_length() - 1)]
    return 1 << len(dims) == p and pairs == {
        frozenset((r, r ^ d)) for r in range(p) for d in dims
    }


def _is_complete(pairs: Pairs, p: int) -> bool:
    return len(pairs) == p * (p - 1) // 2


def _is_two_levels(pairs: Pairs, p: int) -> bool:
    """Rows and columns of a table: rings or all pairs within each."""
    for width in range(2, p):
        if p % width:
            continue
        inside = [a // width == b // width or a % width == b % width for a, b in pairs]
        if all(inside):
            return True
    return False


_SHAPES: dict[str, Callable[[Pairs, int], bool]] = {
    "line": _is_line,
    "star": _is_star,
    "ring": _is_ring,
    "hypercube": _is_cube,
    "all pairs": _is_complete,
    "two levels": _is_two_levels,
}
