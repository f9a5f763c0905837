"""Is a schedule legal, and can its messages deadlock?

NCCL pairs the messages of two ranks in the order in which both post them: there are no
tags. A send ends only when its receive has been posted, and what one rank exchanges
with another runs in the order of posting. So two ranks must post the messages between
them in the same order, and no rank may stand still in one message for another that it
has yet to post.

`programs` posts them so that this always holds. All ranks walk through the same list
of all work, `Schedule.in_order`. A rank does what is its own and sends what others need
of it; where the result of another's work is for this rank, it posts the receive.
`plain_programs` does what one would write first: receive before use, send after, and
wait for each. GPipe survives that, and most others deadlock.
"""

from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple

from atlas.schedule.actions import Schedule, Work, needs


class Post(NamedTuple):
    """A message that a rank posts: what `work` makes, to or from a peer."""

    kind: str  # send or recv
    peer: int
    work: Work

    def __str__(self) -> str:
        way = "to" if self.kind == "send" else "from"
        return f"{self.kind} of {self.work} {way} rank {self.peer}"


#: What one rank does, in order, with its messages.
Program = list[Work | Post]


def problems(schedule: Schedule) -> list[str]:
    """What is wrong with it, one line each; nothing if it can run."""
    return _incomplete(schedule) or _disordered(schedule) or stuck(programs(schedule))


def _incomplete(schedule: Schedule) -> list[str]:
    """Work that is missing, done twice, or done where its forward was not."""
    found = []
    times = Counter(w for works in schedule for w in works)
    found += [f"{w} is done {n} times" for w, n in times.items() if n > 1]
    found += [f"{w} is not F, B or W" for w in times if w.kind not in {"F", "B", "W"}]
    for i in range(schedule.microbatches):
        for s in range(schedule.stages):
            wanted = (Work("F", i, s), Work("B", i, s))
            found += [f"{w} is missing" for w in wanted if w not in times]
    for r, works in enumerate(schedule):
        for w in works:
            home = schedule.place.get((w.micro, w.stage), r)
            if home != r:
                found.append(f"{w} is on rank {r}, its forward on rank {home}")
    return found


def _disordered(schedule: Schedule) -> list[str]:
    """Work that waits for other work that waits for it."""
    done = {w for _, w in schedule.in_order()}
    found = []
    for r, works in enumerate(schedule):
        blocked = next((w for w in works if w not in done), None)
        if blocked is not None:
            missing = [n for n in needs(blocked, schedule.stages) if n not in done]
            after = " and ".join(map(str, missing))
            found.append(f"rank {r} waits in {blocked} for {after}")
    return found


def _taker(schedule: Schedule, work: Work) -> int | None:
    """The other rank that needs what this work makes."""
    after = schedule.taker(work)
    home = schedule.place[work.micro, work.stage]
    return None if after is None or after[1] == home else after[1]


def programs(schedule: Schedule) -> list[Program]:
    """The work with its messages, posted by all ranks in one order."""
    found: list[Program] = [[] for _ in schedule]
    for r, work in schedule.in_order():
        found[r].append(work)
        taker = _taker(schedule, work)
        if taker is not None:
            found[r].append(Post("send", taker, work))
            found[taker].append(Post("recv", r, work))
    return found


def plain_programs(schedule: Schedule) -> list[Program]:
    """The work with each receive just before its use and each send just after."""
    found: list[Program] = [[] for _ in schedule]
    for r, works in enumerate(schedule):
        for work in works:
            for need in needs(work, schedule.stages):
                source = schedule.place[need.micro, need.stage]
                if source != r:
                    found[r].append(Post("recv", source, need))
            found[r].append(work)
            taker = _taker(schedule, work)
            if taker is not None:
                found[r].append(Post("send", taker, work))
    return found


def stuck(ranks: Sequence[Program], *, blocking: bool = False) -> list[str]:
    """The ranks that never end, under NCCL's rules, and what each waits for.

    `blocking`: a rank waits in each message; otherwise only for what its work needs.
    """
    run = _Pairing(ranks, blocking)
    while any([run.go_on(r) for r in range(len(ranks))]):
        pass
    return run.complaints()


class _Pairing:
    """Every rank goes on until it must wait; between two ranks, first to first."""

    def __init__(self, ranks: Sequence[Program], blocking: bool) -> None:
        self.ranks, self.blocking = ranks, blocking
        self.next = [0] * len(ranks)
        self.posted: dict[tuple[int, int], deque[Post]] = {}
        self.came: list[set[Work]] = [set() for _ in ranks]
        posts = [[p for p in x if isinstance(p, Post)] for x in ranks]
        self.comes = [{p.work for p in x if p.kind == "recv"} for x in posts]
        self.wrong: list[str] = []

    def queue(self, r: int, peer: int) -> deque[Post]:
        """What rank r has posted with a peer and is not over."""
        return self.posted.setdefault((r, peer), deque())

    def go_on(self, r: int) -> bool:
        """Do what rank r can do now; whether that was anything."""
        start = self.next[r]
        while not self.wrong and self.next[r] < len(self.ranks[r]) and self.may(r):
            item = self.ranks[r][self.next[r]]
            self.next[r] += 1
            if isinstance(item, Post):
                self.queue(r, item.peer).append(item)
                self.meet(r, item.peer)
        return self.next[r] > start

    def may(self, r: int) -> bool:
        """Whether nothing that rank r must wait for is missing."""
        item = self.ranks[r][self.next[r]]
        if self.blocking and any(q for (a, _), q in self.posted.items() if a == r):
            return False
        if isinstance(item, Post):
            return True
        source = item.stage + {"F": -1, "B": 1, "W": 0}[item.kind]
        need = Work(item.kind, item.micro, source)
        return need not in self.comes[r] or need in self.came[r]

    def meet(self, r: int, peer: int) -> None:
        """First with first, as long as they fit together."""
        ours, theirs = self.queue(r, peer), self.queue(peer, r)
        while ours and theirs and {ours[0].kind, theirs[0].kind} == {"send", "recv"}:
            one, other = ours.popleft(), theirs.popleft()
            if one.work != other.work:
                self.wrong.append(f"rank {r}: {one} meets {other} on rank {peer}")
                return
            self.came[r if one.kind == "recv" else peer].add(one.work)

    def complaints(self) -> list[str]:
        """One line for each rank that has not ended."""
        found = list(self.wrong)
        for r, program in enumerate(self.ranks):
            heads = [
                str(q[0]) for (a, _), q in sorted(self.posted.items()) if a == r and q
            ]
            if self.next[r] < len(program):
                item = program[self.next[r]]
                found.append(f"rank {r} never reaches {item}: waits in {heads}")
            elif heads:
                found.append(f"rank {r} ends with {heads} open")
        return found
