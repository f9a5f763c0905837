"""Why a run stopped answering, and who is guilty: read off the ranks' journals.

A rank that waits, waits for others: for those of its group that have not come to the
same collective, for the sender of a message, for the receiver of one. That is a graph.
It ends at ranks that wait for nobody, which have left, failed, or are elsewhere; or it
goes round in a circle. Before that, one looks for what cannot be right however long
one waits: ranks whose k-th collective of a group is not the same one.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from atlas.yours.script import End

Line = dict[str, Any]
#: Operations whose ranks must all hand over equally much.
EQUAL = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_NOT_THE_READERS = ("site-packages", "dist-packages", "/lib/python", "/atlas/", "<")


@dataclass(frozen=True)
class Edge:
    """One rank waits for another."""

    waiter: int
    waited_for: int
    why: str


@dataclass(frozen=True)
class Verdict:
    """Who is guilty and why; where each rank was; who waited for whom."""

    kind: str
    guilty: tuple[int, ...]
    says: str
    where: tuple[str, ...]
    edges: tuple[Edge, ...] = ()
    cycle: tuple[int, ...] = ()
    #: the first collective on which ranks disagree: rank -> what it called
    first: dict[int, str] = field(default_factory=dict)


@dataclass
class At:
    """What one rank was at, by its journal."""

    rank: int
    end: End
    lines: Sequence[Line]
    stack: str = ""
    ops: dict[int, Line] = field(default_factory=dict)
    calls: dict[str, list[Line]] = field(default_factory=lambda: defaultdict(list))
    makes: list[Line] = field(default_factory=list)
    groups: dict[str, list[int]] = field(default_factory=dict)
    children: list[Line] = field(default_factory=list)
    pending: Line | None = None  # the operation, or the group, that it waits for
    explicit: bool = False  # it was seen to wait

    def __post_init__(self) -> None:
        over: set[int] = set()
        waits: dict[int, int] = {}
        made: set[int] = set()
        for place, line in enumerate(self.lines):
            match line["k"]:
                case "op":
                    self.ops[line["i"]] = line
                    if "turn" in line:
                        self.calls[line["group"]].append(line)
                case "wait":
                    waits[line["i"]] = place
                case "waited" | "done":
                    over.add(line["i"])
                    if line["k"] == "waited":
                        waits.pop(line["i"], None)
                case "make":
                    self.makes.append(line)
                case "made":
                    made.add(line["n"])
                case "members":
                    self.groups[line["group"]] = line["ranks"]
                case "child":
                    self.children.append(line)
        self.choose(over, waits, made)

    def choose(self, over: set[int], waits: dict[int, int], made: set[int]) -> None:
        """What it waits for: seen to, or left without an end."""
        if self.end.well:
            return
        unmade = [m for m in self.makes if m["n"] not in made]
        still = {i: place for i, place in waits.items() if i not in over}
        if still:
            self.pending = self.ops[max(still, key=lambda i: still[i])]
            self.explicit = True
        elif unmade:
            self.pending, self.explicit = unmade[-1], True
        elif self.alive or self.end.echo:
            left = [i for i in self.ops if i not in over]
            self.pending = self.ops[left[0]] if left else None

    @property
    def alive(self) -> bool:
        """Whether it was still at work when the run was ended."""
        return self.end.kind == "unfinished"

    @property
    def site(self) -> str:
        """Where its main thread was, by its stack."""
        main = self.stack.partition("MainThread")[2] or self.stack
        main = main.partition("(most recent call last):\n")[2] or main
        block = re.split(r"\n\S[^\n]* \(most recent call", main)[0]
        frames = _FRAME.findall(block)
        own = [f for f in frames if not any(w in f[0] for w in _NOT_THE_READERS)]
        if not own:
            return ""
        path, line = own[-1]
        return f"{path.rpartition('/')[2]}:{line}"


def judge(
    journals: Sequence[Sequence[Line]], ends: Sequence[End], stacks: Sequence[str] = ()
) -> Verdict | None:
    """The verdict, or None if nothing is wrong that the journals tell of."""
    padded = [*stacks, *[""] * (len(ends) - len(stacks))]
    ranks = [
        At(r, end, lines, padded[r])
        for r, (lines, end) in enumerate(zip(journals, ends, strict=True))
    ]
    if all(at.end.well for at in ranks):
        return None
    edges = tuple(waits_for(ranks))
    cycle = tuple(circle(edges))
    where = tuple(told(at) for at in ranks)
    for rule in (_children, _groups, _disagree, _failed, _missing, _circle, _elsewhere):
        found = rule(ranks, edges, cycle)
        if found is not None:
            kind, guilty, says, first = found
            return Verdict(kind, tuple(guilty), says, where, edges, cycle, first)
    return None


def proven(journals: Sequence[Sequence[Line]], ends: Sequence[End]) -> bool:
    """Whether no waiting can help: every rank has left, or waits for such a one."""
    ranks = [At(r, e, j) for r, (j, e) in enumerate(zip(journals, ends, strict=True))]
    living = [at for at in ranks if at.alive]
    if not living or not all(at.explicit for at in living):
        return False
    if any("thread" in op for at in ranks for op in at.ops.values()):
        return False  # another thread may still send what is missing
    edges = list(waits_for(ranks))
    waiting = {e.waiter for e in edges}
    disagree = _disagree(ranks, (), ()) or _groups(ranks, (), ())
    return bool(disagree) or waiting >= {at.rank for at in living}


# Words


def ordinal(n: int) -> str:
    """1st, 2nd, 3rd, 4th ..."""
    tail = (
        "th" if 10 <= n % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    )
    return f"{n}{tail}"


def some(ranks: Iterable[int]) -> str:
    """rank 1; ranks 0 and 2; ranks 0, 2 and 3."""
    names = [str(r) for r in sorted(ranks)]
    if len(names) == 1:
        return f"rank {names[0]}"
    return f"ranks {', '.join(names[:-1])} and {names[-1]}"


def called(op: Line) -> str:
    """What an operation was: name, size, line."""
    if op["k"] == "make":
        members = f" of ranks {op['ranks']}" if op.get("ranks") is not None else ""
        return f"{op['what']}{members}{_by(op)}"
    size = f" of {op['elements']} {op['dtype']}" if "elements" in op else ""
    root = f" from rank {op['root']}" if "root" in op else ""
    if op["op"] in ("send", "recv"):
        word = "to" if op["op"] == "send" else "from"
        peer = f"rank {op['peer']}" if op["peer"] >= 0 else "anyone"
        return f"{op['op']}{size} {word} {peer}{_by(op)}"
    return f"{op['op']}{size}{root}{_by(op)}"


def _by(op: Line) -> str:
    by = f" by {op['by']}" if op.get("by") else ""
    return f"{by} at {op['site']}" if op.get("site") else by


def told(at: At) -> str:
    """Where a rank is, in a line."""
    if at.pending is not None and not (at.end.kind == "raised" and not at.end.echo):
        op = at.pending
        place = ""
        if "turn" in op:
            place = f"the {ordinal(op['turn'] + 1)} collective of group {op['group']}, "
        lost = " until it lost a peer" if at.end.echo else ""
        return f"rank {at.rank} waits in {place}{called(op)}{lost}"
    if at.alive:
        where = f" at {at.site}" if at.site else ""
        return f"rank {at.rank} is at work{where}{_so_far(at)}"
    return f"rank {at.rank}: {at.end.line}{_so_far(at)}"


def _so_far(at: At) -> str:
    count = sum(map(len, at.calls.values()))
    return f", after {count} collective{'s' if count != 1 else ''}"


# Who waits for whom


def waits_for(ranks: Sequence[At]) -> Iterable[Edge]:
    """An edge from each waiting rank to each that it waits for."""
    for at in ranks:
        op = at.pending
        if op is None:
            continue
        if op["k"] == "make":
            for other in ranks:
                if len(other.makes) < len(at.makes):
                    why = f"it has made {len(other.makes)} of {len(at.makes)} groups"
                    yield Edge(at.rank, other.rank, why)
        elif "turn" in op:
            for r in at.groups.get(op["group"], []):
                there = len(ranks[r].calls[op["group"]])
                if there <= op["turn"]:
                    why = f"it has called {there} of {op['turn'] + 1} collectives"
                    yield Edge(at.rank, r, why)
        elif op["peer"] >= 0:
            yield from _message(ranks, at, op)


def _message(ranks: Sequence[At], at: At, op: Line) -> Iterable[Edge]:
    other = ranks[op["peer"]]
    partner = {"send": "recv", "recv": "send"}[op["op"]]

    def between(a: At, kind: str, b: int) -> int:
        return sum(
            1
            for line in a.ops.values()
            if line["op"] == kind and line["peer"] in (b, -1) and line["i"] <= upto(a)
        )

    def upto(a: At) -> int:
        return int(op["i"]) if a is at else 10**9

    if between(other, partner, at.rank) < between(at, op["op"], other.rank):
        verb = "received" if op["op"] == "send" else "sent"
        yield Edge(at.rank, other.rank, f"it has not {verb} this message")


def circle(edges: Sequence[Edge]) -> list[int]:
    """Ranks that wait for one another in a circle, if any do."""
    after: dict[int, list[int]] = defaultdict(list)
    for edge in edges:
        after[edge.waiter].append(edge.waited_for)
    for start in sorted(after):
        path, seen = [start], {start}
        if found := _walk(start, after, path, seen):
            return found
    return []


def _walk(
    start: int, after: dict[int, list[int]], path: list[int], seen: set[int]
) -> list[int]:
    for nxt in after.get(path[-1], []):
        if nxt == start:
            return list(path)
        if nxt not in seen:
            seen.add(nxt)
            if found := _walk(start, after, [*path, nxt], seen):
                return found
    return []


# The rules, the surest first

Found = tuple[str, Iterable[int], str, dict[int, str]] | None


def _children(
    ranks: Sequence[At], edges: Sequence[Edge], cycle: Sequence[int]
) -> Found:
    guilty = [at.rank for at in ranks if at.children]
    if not guilty:
        return None
    line = ranks[guilty[0]].children[0]
    says = (
        f"{some(guilty)} called {line['op']} at {line['site']} in a child process, "
        "such as a worker of a DataLoader: a process group does not survive a fork"
    )
    return "child", guilty, says, {}


def _groups(ranks: Sequence[At], edges: Sequence[Edge], cycle: Sequence[int]) -> Found:
    """All ranks must make all groups, in the same order."""
    for k in range(max((len(at.makes) for at in ranks), default=0)):
        here = {at.rank: at.makes[k] for at in ranks if len(at.makes) > k}
        signs = {r: str((m["what"], m["ranks"])) for r, m in here.items()}
        if len(set(signs.values())) > 1:
            odd = minority(signs)
            rest = [r for r in signs if r not in odd]
            says = (
                f"{some(odd)} made {called(here[odd[0]])} where {some(rest)} made "
                f"{called(here[rest[0]])}: all ranks must make all groups in one order"
            )
            return "groups", odd, says, {r: called(m) for r, m in here.items()}
    return None


def signature(op: Line) -> tuple[Any, ...]:
    """What must be the same on all ranks."""
    size = (op.get("elements"), op.get("dtype")) if op["op"] in EQUAL else ()
    return (op["op"], op.get("root"), *size)


def minority(signs: dict[int, Any]) -> list[int]:
    """The ranks that differ from most; of two halves, the one without the lowest."""
    counts = Counter(signs.values())
    lowest = signs[min(signs)]
    usual = max(counts, key=lambda s: (counts[s], s == lowest))
    return [r for r in sorted(signs) if signs[r] != usual]


def _disagree(
    ranks: Sequence[At], edges: Sequence[Edge], cycle: Sequence[int]
) -> Found:
    """The first collective of a group that is not the same on all its ranks."""
    found = []
    for group in {name for at in ranks for name in at.calls}:
        for k in range(max(len(at.calls[group]) for at in ranks)):
            here = {
                at.rank: at.calls[group][k] for at in ranks if len(at.calls[group]) > k
            }
            signs = {r: signature(op) for r, op in here.items()}
            if len(set(signs.values())) > 1:
                found.append((min(op["at"] for op in here.values()), k, here, signs))
                break
    if not found:
        return None
    _, k, here, signs = min(found, key=lambda f: f[0])
    odd = minority(signs)
    rest = [r for r in signs if r not in odd]
    a, b = here[odd[0]], here[rest[0]]
    says = (
        f"{some(odd)} called {called(a)} as the {ordinal(k + 1)} collective, where "
        f"{some(rest)} called {called(b)}"
    )
    kind = "sizes" if a["op"] == b["op"] else "order"
    reducer = "DistributedDataParallel"
    if b.get("by") == reducer and a.get("by") != reducer:
        kind = "unused"
        says += (
            f": the backward pass of {some(odd)} left gradients unreduced, because a "
            "parameter was not used there (find_unused_parameters=True)"
        )
    return kind, odd, says, {r: called(op) for r, op in here.items()}


def _failed(ranks: Sequence[At], edges: Sequence[Edge], cycle: Sequence[int]) -> Found:
    """An error of a rank's own, or its death."""
    bad = [
        at
        for at in ranks
        if at.end.kind in ("killed", "refused")
        or (at.end.kind == "raised" and not at.end.echo)
        or (at.end.kind == "returned" and at.end.code)
    ]
    if not bad:
        return None
    first = bad[0]
    kind = "dead" if first.end.kind == "killed" else "error"
    if "finished reduction in the prior iteration" in first.end.message:
        kind = "unused"
        says = (
            f"{some([first.rank])} did not use every parameter in a backward pass, so "
            "DistributedDataParallel never reduced its gradients there "
            "(find_unused_parameters=True)"
        )
        return kind, [at.rank for at in bad], says, {}
    says = f"{some([first.rank])}: {first.end.line}"
    return kind, [at.rank for at in bad], says, {}


def _missing(ranks: Sequence[At], edges: Sequence[Edge], cycle: Sequence[int]) -> Found:
    """Those who wait, wait for ranks that have left."""
    left = sorted({e.waited_for for e in edges if ranks[e.waited_for].end.well})
    if not left:
        return None
    waiting = sorted({e.waiter for e in edges if e.waited_for in left})
    op = ranks[waiting[0]].pending
    assert op is not None
    if "turn" not in op:
        says = f"{some(left)} left, and {some(waiting)} waits in {called(op)}"
        return "left", left, says, {}
    where = _sites(ranks, op["group"])
    if where is not None:
        k, here, odd = where
        rest = [r for r in here if r not in odd]
        says = (
            f"{some(odd)} called {called(here[odd[0]])} as the {ordinal(k + 1)} "
            f"collective, which {some(rest)} did not"
        )
        return "extra", odd, says, {r: called(o) for r, o in here.items()}
    count = op["turn"] + 1
    if len(waiting) < len(left):
        says = (
            f"{some(waiting)} called {called(op)} as the {ordinal(count)} collective; "
            f"{some(left)} had left after "
            f"{max(len(ranks[r].calls[op['group']]) for r in left)}"
        )
        return "extra", waiting, says, {}
    says = (
        f"{some(left)} left after "
        f"{max(len(ranks[r].calls[op['group']]) for r in left)} collectives, and "
        f"{some(waiting)} wait in the {ordinal(count)}: {called(op)}"
    )
    return "left", left, says, {}


def _sites(
    ranks: Sequence[At], group: str
) -> tuple[int, dict[int, Line], list[int]] | None:
    """The first collective that was called from different lines."""
    for k in range(min(len(at.calls[group]) for at in ranks)):
        here = {at.rank: at.calls[group][k] for at in ranks}
        lines = {r: op.get("site") for r, op in here.items()}
        if len(set(lines.values())) > 1:
            return k, here, minority(lines)
    return None


def _circle(ranks: Sequence[At], edges: Sequence[Edge], cycle: Sequence[int]) -> Found:
    if not cycle:
        return None
    parts = []
    for r in cycle:
        op = ranks[r].pending
        assert op is not None
        parts.append(f"rank {r} in {called(op)}")
    says = f"{some(cycle)} wait for one another: {'; '.join(parts)}"
    return "cycle", sorted(cycle), says, {}


def _elsewhere(
    ranks: Sequence[At], edges: Sequence[Edge], cycle: Sequence[int]
) -> Found:
    """The others wait for ranks that communicate nothing."""
    waiting = {e.waiter for e in edges}
    absent = sorted({e.waited_for for e in edges} - waiting)
    silent = absent or [at.rank for at in ranks if at.alive and at.pending is None]
    if not silent:
        return None
    at = ranks[silent[0]]
    where = f" at {at.site}" if at.site else ""
    rest = f", and {some(waiting)} wait for it" if waiting else ""
    count = sum(map(len, at.calls.values()))
    says = f"{some(silent)} stays{where} after {count} collectives{rest}"
    return "elsewhere", silent, says, {}
