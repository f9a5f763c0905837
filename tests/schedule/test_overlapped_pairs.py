"""The published bubble of DualPipe is that of pairs which overlap."""

from collections.abc import Iterator, Mapping

from by_name import f as formula
from hypothesis import given
from hypothesis import strategies as st

from atlas.schedule import Schedule, Work, cost, generate, needs

Group = tuple[Work, ...]


def groups(schedule: Schedule, rank: int) -> Iterator[Group]:
    """A rank's work, a forward together with the whole backward that follows it."""
    works = list(schedule.ranks[rank])
    while works:
        a, *rest = works
        pair = bool(rest) and (a.kind, rest[0].kind) == ("F", "B")
        if pair and (rest[0].micro, rest[0].stage) not in schedule.split:
            yield a, rest[0]
            works = rest[1:]
        else:
            yield (a,)
            works = rest


def idle(schedule: Schedule, seconds: Mapping[str, float], pair: float) -> list[float]:
    """Of each rank, if a pair is one piece of work and both results come at its end."""
    todo = [list(groups(schedule, r)) for r in range(len(schedule.ranks))]
    free, busy = [0.0] * len(todo), [0.0] * len(todo)
    end: dict[Work, float] = {}
    while any(todo):
        ready = [
            r for r, left in enumerate(todo) if left and _can(schedule, left[0], end)
        ]
        assert ready, "all ranks wait"
        for r in ready:
            group = todo[r].pop(0)
            came = [end[n] for w in group for n in needs(w, schedule.stages)]
            one = schedule.seconds(group[0], seconds)
            time = pair if len(group) == 2 else one
            free[r] = max([free[r], *came]) + time
            busy[r] += time
            end |= dict.fromkeys(group, free[r])
    return [max(free) - b for b in busy]


def _can(schedule: Schedule, group: Group, end: Mapping[Work, float]) -> bool:
    return all(n in end for w in group for n in needs(w, schedule.stages))


#: By the ranks that hold a copy of each stage.
NAMES = {1: "dualpipe-v", 2: "dualpipe"}
hidden = st.integers(0, 4)
times = st.tuples(*[st.integers(1, 4)] * 3).filter(lambda t: max(t) == t[1])


@given(st.integers(1, 2), st.integers(1, 4), st.integers(0, 5), times, hidden)
def test_the_published_bubble_of_dualpipe_is_that_of_whole_pairs(
    copies: int, half: int, more: int, t: tuple[int, int, int], hidden: int
) -> None:
    """Neither F nor W takes longer than the gradient of the input."""
    f, b, w = t
    p = copies * half
    schedule = generate(NAMES[copies], p, 2 * p + copies * more)
    pair = max(f, b + w, f + b + w - hidden)
    seen = idle(schedule, {"F": f, "B": b, "W": w}, pair)
    assert max(seen) == formula.dualpipe_published_idle(p, copies, pair, b + w, w)


@given(st.integers(1, 2), st.integers(1, 4), st.integers(0, 5))
def test_one_after_the_other_dualpipe_idles_for_half(
    copies: int, half: int, more: int
) -> None:
    p = copies * half
    schedule = generate(NAMES[copies], p, 2 * p + copies * more)
    seen = cost(schedule, {"F": 1, "B": 1, "W": 1}).idle
    assert seen == [half - 1] * p
    assert 2 * (half - 1) == formula.dualpipe_published_idle(p, copies, 3, 2, 1)
