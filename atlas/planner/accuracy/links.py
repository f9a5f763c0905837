"""What the exchanges of the strategies cost, called as the exemplars call them.

A gather of maps is more than its messages: the parts are padded, sent, joined and
put in order. All of it goes by bytes, so all of it is timed, at sizes of its own.
And in training an exchange follows work: the threads that carry it are asleep, the
caches hold other things. So some work comes first here, and an exchange lasts from
when the last rank comes to it until the last one leaves.
"""

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

import torch
import torch.distributed as dist
from torch import Tensor, nn

from atlas.planner.calibrate.fit import fit
from atlas.planner.calibrate.timing import stamps
from atlas.planner.records import Link
from exemplars.parameter_distribution.hybrid import data_filter
from exemplars.parameter_distribution.intra_layer import filter as filters
from exemplars.parameter_distribution.within_sample import spatial
from exemplars.runtime import World

__all__ = ["NEAR", "Points", "link", "measured", "points"]

SIZES = tuple(2**k for k in range(12, 27, 2))
LARGE = 2**28  # bytes, of gradients alone
NEAR = 8.0  # a link is fitted to sizes within this factor of its messages
REPEATS = 15
BATCH, CHANNELS = 6, 64  # of the maps that are exchanged

Points = dict[str, list[tuple[float, float]]]  # what -> (bytes, seconds)
Stay = tuple[float, float]  # when a rank came to an exchange, and when it left
Seen = dict[str, list[tuple[float, list[Stay]]]]  # of every size and repetition
Call = tuple[str, Callable[[], object], int]  # what, the call, messages in a row


def measured(w: World) -> Seen:
    """On a rank: by exchange and by size, when it came to each one and left it."""
    found: Seen = {}
    calls = _pair(w) if w.size == 2 else _groups(w)
    for n in (*SIZES, LARGE):
        for what, work, halves in calls(n):
            if n < LARGE or what in ("replicas", "all"):
                repeats = REPEATS if n < LARGE else 3
                turns = stamps(w, [_work(w), work], repeats)
                times = [
                    (came, came + (left - came) / halves) for _, came, left in turns
                ]
                found.setdefault(what, []).append((float(n), times))
    return found


def _work(w: World) -> Callable[[], object]:
    """A layer's worth of it, about a millisecond on one core."""
    conv = nn.Conv2d(16, 16, 3, padding=1).to(w.device)
    x = torch.zeros(4, 16, 36, 36, device=w.device)
    return lambda: conv(x).sum().backward()


def _map(w: World, n: int, parts: int) -> Tensor:
    """A part of maps of n bytes."""
    columns = max(1, n // (4 * BATCH * CHANNELS))
    return torch.zeros(BATCH, CHANNELS // parts, 1, columns, device=w.device)


def _pair(w: World) -> Callable[[int], Iterator[Call]]:
    """Between two ranks; of gathers and sums, the size is that of the whole."""

    def calls(n: int) -> Iterator[Call]:
        part, whole = _map(w, n, 2), _map(w, n, 1)
        flat = torch.zeros(n // 4, device=w.device)
        yield "gather", lambda: filters.Leave.apply(part, CHANNELS, None), 1
        yield "sum", lambda: dist.all_reduce(whole.clone()), 1
        yield "swap", lambda: spatial.swap(flat, flat), 1
        yield "replicas", lambda: dist.all_reduce(flat), 1
        yield "message", lambda: _pass_on(w, flat), 2

    return calls


def _pass_on(w: World, x: Tensor) -> None:
    """There and back: two messages, one after the other."""
    if w.rank == 0:
        dist.send(x, 1)
        dist.recv(x, 1)
    else:
        dist.recv(x, 0)
        dist.send(x, 0)


def _groups(w: World) -> Callable[[int], Iterator[Call]]:
    """In two groups of two at once, as hybrids do."""
    inside, between = data_filter.grid(w, BATCH)

    def calls(n: int) -> Iterator[Call]:
        part, whole = _map(w, n, 2), _map(w, n, 1)
        flat = torch.zeros(n // 4, device=w.device)
        yield "gather", lambda: filters.Leave.apply(part, CHANNELS, inside), 1
        yield "sum", lambda: dist.all_reduce(whole.clone(), group=inside), 1
        yield "swap", lambda: spatial.swap(flat, flat, inside), 1
        yield "replicas", lambda: dist.all_reduce(flat, group=between), 1
        yield "all", lambda: dist.all_reduce(flat), 1

    return calls


def points(ranks: Sequence[Seen]) -> Points:
    """What the ranks saw: from the last one's coming to the last one's leaving."""
    return {
        what: [
            (size, _lasted([rank[what][i][1] for rank in ranks]))
            for i, (size, _) in enumerate(ranks[0][what])
        ]
        for what in ranks[0]
    }


def _lasted(ranks: Sequence[list[Stay]]) -> float:
    """The mean of the repetitions but the longest and the shortest.

    A step has many exchanges, and means add up where medians do not: some exchanges
    are several times as long as most.
    """
    _, *most, _ = sorted(
        max(left for _, left in turn) - max(came for came, _ in turn)
        for turn in zip(*ranks, strict=True)
    )
    return fmean(most)


def link(
    seen: Sequence[tuple[float, float]], message: float, p: int, rounds: int
) -> Link:
    """The line through the sizes near this message's, as the oracle counts it.

    There a collective of p ranks has so many rounds, each of a p-th of its bytes; a
    message alone, with no rounds, carries all of them at once.
    """
    near = [(n, s) for n, s in seen if message / NEAR <= n <= message * NEAR]
    if len(near) < 3:  # beyond what was timed: the nearest three
        near = sorted(seen, key=lambda row: abs(row[0] - message))[:3]
    start, each = fit([((1.0, n), s) for n, s in near]).costs
    return Link(start / rounds, each * p / rounds) if rounds else Link(start, each)
