"""The exchanges that are timed on a wire, and what the oracle says of each.

`seconds` is the oracle's own function for what an exchange is called. Where gloo
does something else under that name, `really` says what, and its source; the times
and bytes that are expected are those of what is really done.

Receiving after sending costs turns. Before gloo sends, the receiver's notice has to
be there, and notices wait in line behind data. Of two ranks that both send first and
then receive, the one that is late finds the other's notice and begins; its own
notice goes out when all its data have, and only then does the other begin. `turns`
is the factor of n that this leaves on the wire, one direction after the other.
Source: gloo/transport/tcp/pair.cc.
"""

from collections.abc import Callable
from dataclasses import dataclass

from atlas.planner import rings
from atlas.planner.accuracy.wire import Wire
from atlas.planner.records import Link

Seconds = Callable[[int, float, Link], float]
Factor = Callable[[int], float]  # of the ranks: bytes for a byte of n
Share = Callable[[int, int], float]  # of the ranks and the rank


@dataclass(frozen=True)
class Exchange:
    """One exchange of n bytes; rounds are those of its formula."""

    says: str
    by: str  # gloo, or ours: an exemplar
    seconds: Seconds
    rounds: Callable[[int], int]
    sent: Share
    received: Share
    ideal: Share | None = None  # bytes of the formula, where gloo sends others
    really: Seconds | None = None
    why: str = ""
    turns: Factor | None = None
    both_ways: bool = True  # a node receives while it sends
    links: Callable[[int], int] = lambda p: 1  # wires that a byte passes in series
    nodes: tuple[int, ...] = (2, 4)  # on fewer or more it is nothing new

    @property
    def expected(self) -> Seconds:
        """Seconds of what is really done."""
        return self.really or self.seconds

    def link(self, p: int, wire: Wire, latency: float) -> Link:
        """What a round and a byte cost: latency from small messages, beta declared."""
        return Link(latency / self.rounds(p), wire.beta(self.both_ways))

    def predict(self, p: int, n: float, wire: Wire, latency: float) -> float:
        """Seconds of what is really done; full buckets let their part pass at once."""
        link = self.link(p, wire, latency)
        return self.expected(p, n, link) - self.links(p) * wire.credit

    def by_name(self, p: int, n: float, wire: Wire, latency: float) -> float:
        """Seconds of what the exchange is called, whatever is done."""
        return self.seconds(p, n, self.link(p, wire, latency)) - wire.credit

    def in_turns(self, p: int, n: float, wire: Wire, latency: float) -> float | None:
        """Seconds if two ranks never send to each other at once."""
        if self.turns is None:
            return None
        alone = Link(latency, wire.beta(False))
        return rings.send_seconds(1, self.turns(p) * n, alone) - wire.credit

    def wire_bytes(self, p: int, n: float, wire: Wire) -> list[float]:
        """What every node puts on its wire, headers and acknowledgements too."""
        nodes = range(p)
        return [wire.sent(self.sent(p, r) * n, self.received(p, r) * n) for r in nodes]


def _reduce(p: int, n: float, link: Link) -> float:
    return rings.reduce_seconds(p, 1, n, link)


def _gather(p: int, n: float, link: Link) -> float:
    return rings.gather_seconds(p, 1, n, link)


def _send(p: int, n: float, link: Link) -> float:
    return rings.send_seconds(1, n, link)


def _ring(p: int, r: int) -> float:
    return 2 * (p - 1) / p


def _half_ring(p: int, r: int) -> float:
    return (p - 1) / p


def _from_first(p: int, r: int) -> float:
    return float(r == 0)


def _to_second(p: int, r: int) -> float:
    return float(r == 1)


def _whole(p: int, r: int) -> float:
    return 1.0


def depth(p: int) -> int:
    """Rounds of a binomial tree."""
    return (p - 1).bit_length()


def tree_seconds(p: int, n: float, link: Link) -> float:
    """Seconds of a binomial tree's broadcast: every round the whole message.

    Source: Thakur et al. 2005, section 4.
    """
    return depth(p) * rings.send_seconds(1, n, link)


def shared_tree_seconds(p: int, n: float, link: Link) -> float:
    """Seconds of gloo's tree: a rank sends to all its children at once.

    The root's d messages share its link and all arrive after d of their times; the
    first child then has d - 1 to send. For p a power of two.
    Source: gloo/broadcast.cc: all sends are begun before one is waited for.
    """
    d = depth(p)
    return d * link.alpha + d * (d + 1) / 2 * n * link.beta


def children(p: int, r: int) -> int:
    """Of rank r in gloo's tree, whose root is rank 0."""
    return sum(r + (1 << i) < p for i in range(r.bit_length(), depth(p)))


EXCHANGES = {
    "send": Exchange(
        "send, 0 to 1",
        "gloo",
        _send,
        lambda p: 1,
        _from_first,
        _to_second,
        both_ways=False,
        nodes=(2,),
    ),
    "all_reduce": Exchange(
        "all-reduce", "gloo", _reduce, lambda p: 2 * (p - 1), _ring, _ring
    ),
    "reduce_scatter": Exchange(
        "reduce-scatter",
        "gloo",
        _gather,
        lambda p: 2 * (p - 1),
        _ring,
        _ring,
        ideal=_half_ring,
        really=_reduce,
        why="an all-reduce of everything, of which a rank keeps its part "
        "(ProcessGroupGloo.cpp, reduce_scatter_tensor_coalesced)",
    ),
    "all_gather": Exchange(
        "all-gather",
        "gloo",
        _gather,
        lambda p: p - 1,
        _half_ring,
        _half_ring,
        # Halves of chunks, a notice behind each: one half more than at once.
        turns=lambda p: (p - 1 + 0.5 * (p == 2)) / p,
    ),
    "all_to_all": Exchange(
        "all-to-all",
        "gloo",
        _gather,
        lambda p: p - 1,
        _half_ring,
        _half_ring,
        turns=lambda p: 1.0,
    ),
    "broadcast": Exchange(
        "broadcast",
        "gloo",
        tree_seconds,
        depth,
        children,
        lambda p, r: float(r > 0),
        really=shared_tree_seconds,
        why="a tree whose ranks send to all their children at once and share their "
        "own link among them (gloo/broadcast.cc)",
        both_ways=False,
        links=depth,
    ),
    "ring": Exchange(
        "ring all-reduce",
        "ours",
        _reduce,
        lambda p: 2 * (p - 1),
        _ring,
        _ring,
        turns=lambda p: 2.0 if p == 2 else 2 * (p - 1) / p,
    ),
    "halving_doubling": Exchange(
        "halving-doubling",
        "ours",
        _reduce,
        lambda p: 2 * depth(p),
        _ring,
        _ring,
        turns=lambda p: 4 * (p - 1) / p,
        nodes=(4,),
    ),
}

#: The same swap between two nodes, in two orders.
SWAPS = {
    name: Exchange(
        says, "ours", _send, lambda p: 1, _whole, _whole, turns=lambda p: 2.0
    )
    for name, says in (
        ("send_first", "a swap, sending first"),
        ("receive_first", "a swap, receiving first"),
    )
}
