"""The schedules that have names, for any legal ranks, micro-batches and chunks.

A rank's list comes from a pure function; `generate` puts the lists together. What an
exemplar draws in its docstring is tested against these.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from atlas.schedule.actions import Schedule, Work, schedule_of
from atlas.schedule.shaped import v_shape


@dataclass(frozen=True)
class Generator:
    """How a schedule is made, and of what."""

    make: Callable[[int, int, int], Iterable[Iterable[Work]]]
    says: str
    #: Why not, in a few words; None if these ranks, micro-batches and chunks are legal.
    refuses: Callable[[int, int, int], str | None]
    chunks: int = 1  # stages of a rank, where they are not free
    free: bool = False  # whether the number of chunks may be chosen
    split: bool = False  # whether some backward is in two parts


def generate(
    name: str, ranks: int, microbatches: int, chunks: int | None = None
) -> Schedule:
    """The schedule of that name; a ValueError says why it cannot be.

    `chunks`, the stages of a rank, may only be chosen for interleaved-1f1b.
    """
    if name not in GENERATORS:
        known = ", ".join(GENERATORS)
        raise ValueError(f"{name}: no such schedule; there are {known}")
    one = GENERATORS[name]
    v = one.chunks if chunks is None else chunks
    why = one.refuses(ranks, microbatches, v)
    if min(ranks, microbatches, v) < 1:
        why = "all must be 1 or more"
    elif v != one.chunks and not one.free:
        why = f"it has {one.chunks} chunks per rank"
    if why:
        given = f"{ranks} ranks, {microbatches} micro-batches, {v} chunks"
        raise ValueError(f"{name} of {given}: {why}")
    return schedule_of(one.make(ranks, microbatches, v), name)


# --- one direction


def gpipe(rank: int, ranks: int, microbatches: int) -> Iterator[Work]:
    """All forwards, then all backwards, the last micro-batch first."""
    yield from (Work("F", i, rank) for i in range(microbatches))
    yield from (Work("B", i, rank) for i in reversed(range(microbatches)))


def one_f_one_b(rank: int, ranks: int, microbatches: int) -> Iterator[Work]:
    """A forward for every stage behind; then forward and backward in turn."""
    ahead = min(microbatches, ranks - 1 - rank)
    yield from (Work("F", i, rank) for i in range(ahead))
    for i in range(microbatches):
        if ahead + i < microbatches:
            yield Work("F", ahead + i, rank)
        yield Work("B", i, rank)


def zero_bubble(rank: int, ranks: int, microbatches: int, depth: int) -> Iterator[Work]:
    """1F1B with weight gradients that lag behind; depth 1 is ZB-H1, depth 2 ZB-H2.

    Source: Qi et al. 2023, sections 2.1 and 2.2.
    """
    ahead = min(microbatches, depth * (ranks - 1 - rank))
    lag = depth * rank
    yield from (Work("F", i, rank) for i in range(ahead))
    for i in range(microbatches):
        if ahead + i < microbatches:
            yield Work("F", ahead + i, rank)
        yield Work("B", i, rank)
        if i >= lag:
            yield Work("W", i - lag, rank)
    done = max(0, microbatches - lag)
    yield from (Work("W", i, rank) for i in range(done, microbatches))


def interleaved(
    rank: int, ranks: int, microbatches: int, chunks: int
) -> Iterator[Work]:
    """1F1B over the chunks of a rank: a round of micro-batches at each in turn.

    Source: Narayanan et al. 2021, section 2.2.2; rounds of other sizes than the
    number of ranks as in torch.
    """
    size, total = round_size(ranks, microbatches), microbatches * chunks

    def nth(kind: str, n: int) -> Work:
        turn, i = divmod(n, size)
        round_, chunk = divmod(turn, chunks)
        chunk = chunk if kind == "F" else chunks - 1 - chunk
        return Work(kind, round_ * size + i, chunk * ranks + rank)

    ahead = min(total, (chunks - 1) * size + 2 * (ranks - 1 - rank))
    yield from (nth("F", n) for n in range(ahead))
    for n in range(total):
        if ahead + n < total:
            yield nth("F", ahead + n)
        yield nth("B", n)


def round_size(ranks: int, microbatches: int) -> int:
    """Micro-batches that one chunk takes before the next chunk has its turn."""
    return microbatches // max(1, microbatches // ranks)


def _rounds(ranks: int, microbatches: int, chunks: int) -> str | None:
    rounds = max(1, microbatches // ranks)
    whole = microbatches % rounds == 0
    return None if whole else f"no {rounds} equal rounds of {ranks} or more"


# --- two directions


def chimera(rank: int, ranks: int, microbatches: int) -> list[Work]:
    """Half of the micro-batches go down the ranks, half up.

    With passes of equal time, micro-batch 2j is at stage s in slot s + 2j, and back in
    slot 2p-1-s + 2j. In the other direction rank r is stage p-1-r: of the other parity
    if p is even, so that no two are due in one slot. If p is odd they take turns.

    Source: Li and Hoefler 2021, section 3.1, for even p; more micro-batches, 3.5.
    """
    down, half = (microbatches + 1) // 2, (ranks + 1) // 2
    due: list[tuple[int, bool, Work]] = []
    for i in range(microbatches):
        up = i >= down
        s, nth = (ranks - 1 - rank, i - down) if up else (rank, i)
        block, j = divmod(nth, half)
        start = 2 * ranks * block + 2 * j
        due.append((start + s, up, Work("F", i, s)))
        due.append((start + 2 * ranks - 1 - s, up, Work("B", i, s)))
    return [work for *_, work in sorted(due)]


def dualpipe_v(rank: int, ranks: int, microbatches: int) -> Iterator[Work]:
    """Down the ranks and up again, a forward beside a backward where both are due.

    Source: DeepSeek 2025, dualpipev.py, in eight steps; a pair that they overlap is
    here a forward and then a backward.
    """
    ups = (rank, 2 * ranks - 1 - rank)
    for kind, i, way in _dualpipe(rank, ranks, microbatches):
        yield Work(kind, i, ups[way])


def dualpipe(rank: int, ranks: int, microbatches: int) -> Iterator[Work]:
    """Two pipelines in opposite directions; a rank of each half does as in DualPipeV.

    Source: DeepSeek 2024 (DeepSeek-V3), section 3.2.1; dualpipe.py.
    """
    half = microbatches // 2
    near = min(rank, ranks - 1 - rank)
    for kind, i, way in _dualpipe(near, ranks // 2, half):
        down = (way == 0) == (rank == near)
        yield Work(kind, i if down else half + i, rank if down else ranks - 1 - rank)


def _dualpipe(
    rank: int, ranks: int, microbatches: int
) -> Iterator[tuple[str, int, int]]:
    """Kind, micro-batch and way (0 or 1) of what a rank does."""
    behind = ranks - 1 - rank
    #: What each step does, in pairs of a kind and a way; b is a B with its W put off.
    steps = [("F0", 2 * behind), ("F0 F1", rank + 1), ("b1 W F1", behind)]
    steps += [("F0 B1 F1 B0", microbatches - 2 * ranks + rank + 1)]
    steps += [("B1 F1 B0", behind)]
    whole, rest = divmod(rank + 1, 2)
    steps += [("B1 B0", whole), ("B1 b0", rest), ("b1 b0", whole)]
    steps += [("W b0", behind), ("W", rank + 1)]
    counts: dict[tuple[str, str], int] = {}
    off: list[tuple[str, int, int]] = []
    for words, times in steps:
        for word in words.split() * times:
            if word == "W":
                yield off.pop(0)
                continue
            kind, way = word[0].upper(), word[1]
            i = counts.get((kind, way), 0)
            counts[kind, way] = i + 1
            yield kind, i, int(way)
            if word[0] == "b":
                off.append(("W", i, int(way)))


def _dual(ranks: int, microbatches: int, chunks: int) -> str | None:
    if microbatches % 2 or microbatches < 2 * ranks:
        return f"micro-batches must be even, and {2 * ranks} or more"
    return "the number of ranks must be even" if ranks % 2 else None


def _dual_v(ranks: int, microbatches: int, chunks: int) -> str | None:
    few = microbatches < 2 * ranks
    return f"micro-batches must be {2 * ranks} or more" if few else None


# --- a V: down the ranks and up again, so that the first has both ends


def zb_v(rank: int, ranks: int, microbatches: int) -> Iterator[Work]:
    """Zero bubble over a V, for passes of equal time.

    Source: Qi et al. 2023, first version on arXiv, section 6; as in torch, with few
    micro-batches it is the start of a longer one.
    """
    down, up = rank, 2 * ranks - 1 - rank
    count = max(2 * ranks - 1, microbatches)
    behind = ranks - 1 - rank
    both = count - 2 * ranks + 1 + rank
    words = ["F0"] * (2 * behind + 1) + ["F1", "F0"] * rank
    words += ["F1", "B1", "W1"] * (behind + 1)
    words += ["F0", "B0", "W0", "F1", "B1", "W1"] * both
    words += ["B0", "W0", "F1", "B1", "W1"] * behind
    words += ["B0", "B1"] * rank + ["B0", "W0"] * (behind + 1)
    words += ["W1"] * rank + ["W0"] * rank
    counts: dict[str, int] = {}
    for word in words:
        i = counts.get(word, 0)
        counts[word] = i + 1
        if i < microbatches:
            yield Work(word[0], i, up if word[1] == "1" else down)


def _any(ranks: int, microbatches: int, chunks: int) -> str | None:
    return None


def _each(
    of: Callable[[int, int, int], Iterable[Work]],
) -> Callable[[int, int, int], Iterable[Iterable[Work]]]:
    def make(ranks: int, microbatches: int, chunks: int) -> Iterator[Iterable[Work]]:
        return (of(r, ranks, microbatches) for r in range(ranks))

    return make


def _interleaved(p: int, m: int, v: int) -> Iterator[Iterable[Work]]:
    return (interleaved(r, p, m, v) for r in range(p))


def _shaped(kind: str) -> Callable[[int, int, int], list[list[Work]]]:
    return lambda ranks, microbatches, _: v_shape(kind, ranks, microbatches)


GENERATORS: dict[str, Generator] = {
    "gpipe": Generator(_each(gpipe), "all forwards, then all backwards", _any),
    "1f1b": Generator(_each(one_f_one_b), "one forward, one backward", _any),
    "interleaved-1f1b": Generator(
        _interleaved, "1F1B over several chunks per rank", _rounds, chunks=2, free=True
    ),
    "zb-h1": Generator(
        _each(partial(zero_bubble, depth=1)),
        "zero bubble with 1F1B's memory",
        _any,
        split=True,
    ),
    "zb-h2": Generator(
        _each(partial(zero_bubble, depth=2)),
        "zero bubble with twice the memory",
        _any,
        split=True,
    ),
    "zb-v": Generator(
        _each(zb_v), "zero bubble over a V, with 1F1B's memory", _any, 2, split=True
    ),
    "v-half": Generator(
        _shaped("v-half"), "a V with half of 1F1B's memory", _any, 2, split=True
    ),
    "v-min": Generator(
        _shaped("v-min"), "a V with a third of 1F1B's memory", _any, 2, split=True
    ),
    "chimera": Generator(_each(chimera), "two directions", _any, 2),
    "dualpipe": Generator(
        _each(dualpipe), "two directions, backwards split", _dual, 2, split=True
    ),
    "dualpipe-v": Generator(
        _each(dualpipe_v), "DualPipe cut in half: a V", _dual_v, 2, split=True
    ),
}
