"""Every collective of the atlas and gloo's own: what each costs, and what was timed.

The table has no torch in it: the study in `atlas.collectives` calls what it names, and
the page draws what it predicts. A cost is that of the longest chain of messages:

    seconds = rounds * alpha + sent * n * beta + added * n * gamma

where n is the bytes of the whole tensor: of a gather its result, of an all-to-all all
blocks of one rank. Constants are those of one round in which every rank sends one
message and receives one, and of one addition, on as many ranks.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from atlas.record import source_hash
from atlas.taxonomy import load
from atlas.views.context import Context, Json

PLACE = Path("measurements") / "studies" / "collectives.json"
KINDS = ("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast")
PIECES = 4  # of a double binary tree

Factor = Callable[[int], float]  # of the number of ranks


@dataclass(frozen=True)
class Constants:
    """Seconds of a round, of a byte sent, and of a byte added to another."""

    alpha: float
    beta: float
    gamma: float


@dataclass(frozen=True)
class Collective:
    """One way to do one collective; without a technique it is the library's own."""

    kind: str
    technique: str | None
    says: str
    rounds: Factor | None = None  # None: no messages, so no such law
    sent: Factor = lambda p: 0.0
    added: Factor = lambda p: 0.0

    def seconds(self, p: int, n: float, c: Constants) -> float | None:
        """What the law says of n bytes on p ranks; None if it has no law."""
        if self.rounds is None:
            return None
        moved = self.sent(p) * c.beta + self.added(p) * c.gamma
        return self.rounds(p) * c.alpha + n * moved


def depth(p: int) -> int:
    """Rounds of a binomial tree."""
    return (p - 1).bit_length()


def node_size(p: int) -> int:
    """Ranks in a pretended node: the table of nodes is as square as p allows."""
    return p // max(g for g in range(1, p + 1) if p % g == 0 and g * g <= p)


def _part(p: int) -> float:
    return (p - 1) / p


def _levels(p: int) -> int:
    """Ranks of a node, and nodes, less one each: rounds of two levels."""
    c = node_size(p)
    return c - 1 + p // c - 1


def _two_level(p: int) -> float:
    c = node_size(p)
    return _part(c) + _part(p // c)


def _tree_rounds(p: int) -> int:
    return 4 * (PIECES + p.bit_length() - 2)


#: Name -> collective. The first of every kind is the library's own.
COLLECTIVES: Mapping[str, Collective] = {
    "gloo all-reduce": Collective(
        "all-reduce",
        None,
        "gloo's all_reduce, a ring",
        lambda p: 2 * (p - 1),
        lambda p: 2 * _part(p),
        _part,
    ),
    "ring-all-reduce": Collective(
        "all-reduce",
        "ring-all-reduce",
        "ring",
        lambda p: 2 * (p - 1),
        lambda p: 2 * _part(p),
        _part,
    ),
    "halving-doubling": Collective(
        "all-reduce",
        "halving-doubling",
        "halving-doubling",
        lambda p: 2 * depth(p),
        lambda p: 2 * _part(p),
        _part,
    ),
    "recursive-doubling": Collective(
        "all-reduce",
        "recursive-doubling",
        "recursive doubling",
        depth,
        depth,
        depth,
    ),
    "tree-all-reduce": Collective(
        "all-reduce",
        "tree-all-reduce",
        "binomial tree",
        lambda p: 2 * depth(p),
        lambda p: 2 * depth(p),
        depth,
    ),
    "double-binary-tree": Collective(
        "all-reduce",
        "double-binary-tree",
        "double binary tree",
        _tree_rounds,
        lambda p: _tree_rounds(p) / (2 * PIECES),
        lambda p: _tree_rounds(p) / (4 * PIECES),
    ),
    "hierarchical": Collective(
        "all-reduce",
        "hierarchical",
        "hierarchical",
        lambda p: 2 * _levels(p),
        lambda p: 2 * _part(p),
        _part,
    ),
    "reduce-scatter-all-gather": Collective(
        "all-reduce",
        "reduce-scatter-all-gather",
        "reduce-scatter, all-gather",
        lambda p: 2 * (p - 1),
        lambda p: 2 * _part(p),
        _part,
    ),
    "shared-memory-all-reduce": Collective(
        "all-reduce", "shared-memory-all-reduce", "shared memory"
    ),
    "invariant-reduction": Collective(
        "all-reduce",
        "invariant-reduction",
        "invariant tree, a leaf per rank",
        lambda p: 2 * depth(p),
        lambda p: 2 * depth(p),
        depth,
    ),
    "gloo reduce-scatter": Collective(
        "reduce-scatter",
        None,
        "gloo's reduce_scatter, an all-reduce",
        lambda p: 2 * (p - 1),
        lambda p: 2 * _part(p),
        _part,
    ),
    "pairwise reduce-scatter": Collective(
        "reduce-scatter",
        "reduce-scatter-all-gather",
        "in pairs",
        lambda p: p - 1,
        _part,
        _part,
    ),
    "ring reduce-scatter": Collective(
        "reduce-scatter",
        "hierarchical",
        "ring",
        lambda p: p - 1,
        _part,
        _part,
    ),
    "gloo all-gather": Collective(
        "all-gather", None, "gloo's all_gather, a ring", lambda p: p - 1, _part
    ),
    "pairwise all-gather": Collective(
        "all-gather", "reduce-scatter-all-gather", "in pairs", lambda p: p - 1, _part
    ),
    "ring all-gather": Collective(
        "all-gather", "hierarchical", "ring", lambda p: p - 1, _part
    ),
    "gloo all-to-all": Collective(
        "all-to-all", None, "gloo's all_to_all", lambda p: p - 1, _part
    ),
    "all-to-all": Collective(
        "all-to-all", "all-to-all", "direct, in pairs", lambda p: p - 1, _part
    ),
    "bruck-all-to-all": Collective(
        "all-to-all",
        "bruck-all-to-all",
        "Bruck",
        depth,
        # In round k go the blocks whose distance has bit k.
        lambda p: sum(k.bit_count() for k in range(p)) / p,
    ),
    "two-level-all-to-all": Collective(
        "all-to-all", "two-level-all-to-all", "two levels", _levels, _two_level
    ),
    "gloo broadcast": Collective(
        "broadcast",
        None,
        "gloo's broadcast, a tree",
        depth,
        # A rank sends to all its children at once, and they share its link.
        lambda p: depth(p) * (depth(p) + 1) / 2,
    ),
    "binomial-broadcast": Collective(
        "broadcast", "binomial-broadcast", "binomial tree", depth, depth
    ),
    "scatter-all-gather-broadcast": Collective(
        "broadcast",
        "scatter-all-gather-broadcast",
        "scatter, all-gather",
        lambda p: depth(p) + p - 1,
        lambda p: 2 * _part(p),
    ),
}


def of_kind(kind: str) -> dict[str, Collective]:
    """The collectives of a kind, the library's own first."""
    return {name: c for name, c in COLLECTIVES.items() if c.kind == kind}


# The study as it lies there


def study(ctx: Context) -> Json | None:
    """The kept study, or None."""
    path = ctx.root / PLACE
    if not path.is_file():
        return None
    found: Json = json.loads(path.read_text(encoding="utf-8"))
    return found


def sources(root: Path) -> dict[str, str]:
    """By technique, the hash of what would be timed today."""
    known = load(root).techniques
    ids = sorted({c.technique for c in COLLECTIVES.values() if c.technique})
    return {id: source_hash(root, known[id]) for id in ids}


def constants(found: Json, p: int) -> Constants:
    """Of this machine with so many ranks, as the study measured them."""
    kept = found["constants"][str(p)]
    return Constants(kept["alpha"], kept["beta"], kept["gamma"])


def measured(found: Json, p: int, name: str) -> list[tuple[int, float]]:
    """(bytes, median seconds), by size."""
    cells = found["cells"][str(p)]
    return sorted(
        (int(n), row[name]["median"]) for n, row in cells.items() if name in row
    )


# Where two of them cross


@dataclass(frozen=True)
class Crossing:
    """Two collectives, the better one for small tensors first; bytes, or None."""

    small: str
    large: str
    ranks: int
    predicted: float | None
    measured: float | None
    #: Which is faster everywhere, where they do not cross.
    said: str
    seen: str


#: The better one for small tensors first.
PAIRS: tuple[tuple[str, str], ...] = (
    ("recursive-doubling", "ring-all-reduce"),
    ("tree-all-reduce", "ring-all-reduce"),
    ("bruck-all-to-all", "all-to-all"),
    ("binomial-broadcast", "scatter-all-gather-broadcast"),
)


def crossings(found: Json) -> Iterator[Crossing]:
    """By pair and number of ranks."""
    for small, large in PAIRS:
        for p in found["given"]["ranks"]:
            yield crossing(found, small, large, p)


def crossing(found: Json, small: str, large: str, p: int) -> Crossing:
    """Of two collectives on p ranks."""
    c, sizes = constants(found, p), found["given"]["sizes"]
    a, b = COLLECTIVES[small], COLLECTIVES[large]
    said = [(n, a.seconds(p, n, c) or 0.0, b.seconds(p, n, c) or 0.0) for n in sizes]
    pairs = zip(measured(found, p, small), measured(found, p, large), strict=True)
    seen = [(n, s, t) for (n, s), (_, t) in pairs]
    return Crossing(
        small,
        large,
        p,
        exact(a, b, p, c),
        between(seen),
        faster(small, large, said),
        faster(small, large, seen),
    )


def exact(a: Collective, b: Collective, p: int, c: Constants) -> float | None:
    """The bytes at which both laws say the same; None if they never do."""
    start = (a.seconds(p, 0, c) or 0.0) - (b.seconds(p, 0, c) or 0.0)
    slope = (a.seconds(p, 1, c) or 0.0) - (b.seconds(p, 1, c) or 0.0) - start
    return -start / slope if start * slope < 0 else None


def between(rows: Sequence[tuple[float, float, float]]) -> float | None:
    """The bytes at which the first stops being faster for good, in between sizes."""
    found = None
    for (n, s, t), (m, u, v) in pairwise(rows):
        low, high = math.log(s / t), math.log(u / v)
        if low < 0 <= high:
            share = -low / (high - low)
            found = math.exp(math.log(n) + share * math.log(m / n))
    return found if rows and rows[-1][1] >= rows[-1][2] else None


def faster(small: str, large: str, rows: Sequence[tuple[float, float, float]]) -> str:
    """Who wins at the most sizes."""
    wins = sum(s < t for _, s, t in rows)
    return small if 2 * wins > len(rows) else large
