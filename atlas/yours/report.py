"""What a run moved, by operation and by line of code: from journals to plain values."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import Any

from atlas.classify import Classification, classify
from atlas.classify.shape import families
from atlas.yours.events import events
from atlas.yours.run import Ran

FORMAT = 1
Line = dict[str, Any]
Span = tuple[float, float]


def report(ran: Ran) -> dict[str, Any]:
    """The run as JSON can hold it; lists have one value per rank."""
    ranks = [_rank(lines) for lines in ran.journals]
    keys = dict.fromkeys(key for rank in ranks for key in rank["rows"])
    init = next((x for lines in ran.journals for x in lines if x["k"] == "rank"), {})
    steps = min((len(rank["steps"]) for rank in ranks), default=0)
    return {
        "format": FORMAT,
        "script": Path(ran.script.path).name,
        "arguments": list(ran.script.arguments),
        "ranks": len(ranks),
        "backend": init.get("backend", ""),
        "seconds": round(ran.seconds, 3),
        "steps": steps,
        "rows": [_row(key, ranks, steps) for key in keys],
        "communicating": [round(rank["communicating"], 6) for rank in ranks],
        "waiting": [round(rank["waiting"], 6) for rank in ranks],
        "overlap": [_share(rank) for rank in ranks],
        "memory": {
            kind: [rank["held"].get(kind, 0) for rank in ranks]
            for kind in ("parameters", "gradients", "optimizer")
        },
        "classification": _placed(classify(events(ran.journals))),
    }


def _placed(found: Classification) -> dict[str, Line]:
    """Where the run stands, facet by facet, each with its evidence."""
    shapes = found.topology.shapes
    placed: dict[str, Line] = {}
    if shapes:
        told = "exchanges: " + ", ".join(shapes)
        placed["topology"] = {"family": families(shapes)[0], "evidence": told}
    for facet in ("consistency", "pipelining", "credit"):
        answer = getattr(found, facet)
        if answer.family is not None:
            placed[facet] = {"family": answer.family, "evidence": answer.evidence}
    return placed


def _row(key: tuple[str, str, str], ranks: Sequence[Line], steps: int) -> Line:
    """One operation of one line of code, rank by rank."""
    op, site, by = key
    rows = [rank["rows"].get(key, _nothing()) for rank in ranks]
    row: Line = {"op": op, "site": site, "by": by}
    for figure in ("calls", "payload", "wait"):
        row[figure] = [_round(r[figure]) for r in rows]
    row["wire"] = [_number(r["wire"]) for r in rows]
    row["per_step"] = [
        _number(median(r["in_step"].get(s, 0) for s in range(1, steps)))
        if steps > 1
        else None
        for r in rows
    ]
    return row


def _nothing() -> Line:
    return {
        "calls": 0,
        "payload": 0,
        "wire": Fraction(0),
        "wait": 0.0,
        "in_step": defaultdict(int),
    }


def _round(x: float) -> float:
    return x if isinstance(x, int) else round(x, 6)


def _number(x: Any) -> int | float:
    return int(x) if x == int(x) else float(x)


def _rank(lines: Sequence[Line]) -> Line:
    """The rows of one rank, and what it spent on them."""
    from atlas.meter.operators import wire_bytes

    rows: dict[tuple[str, str, str], Line] = defaultdict(_nothing)
    groups = {x["group"]: x["ranks"] for x in lines if x["k"] == "members"}
    ops = {x["i"]: x for x in lines if x["k"] == "op"}
    waits = _intervals(lines, "wait", "waited")
    steps: list[Line] = []
    held: dict[str, int] = {}
    rank = _own_rank(lines)
    for x in lines:
        if x["k"] == "step" and x["first"]:
            steps.append(x)
        if x["k"] == "step":
            held = {k: max(held.get(k, 0), n) for k, n in x["held"].items()}
        if x["k"] != "op":
            continue
        row = rows[x["op"], x["site"], x["by"]]
        row["calls"] += 1
        row["in_step"][len(steps)] += 1
        row["payload"] += x["bytes"]
        is_root = x.get("root", -1) == rank
        size = len(groups[x["group"]])
        row["wire"] += wire_bytes(x["op"], x["bytes"], size, is_root)
        start, end = waits.get(x["i"], (0.0, 0.0))
        row["wait"] += end - start
    busy = _busy(ops, lines)
    still = union([*waits.values(), *_reducer(ops, busy, waits)])
    return {
        "rows": rows,
        "steps": steps,
        "held": held,
        "communicating": length(union(busy.values())),
        "waiting": length(still),
    }


def _own_rank(lines: Sequence[Line]) -> int:
    return next((x["rank"] for x in lines if x["k"] == "rank"), -1)


def _intervals(lines: Sequence[Line], begin: str, end: str) -> dict[int, Span]:
    began = {x["i"]: x["at"] for x in lines if x["k"] == begin}
    return {
        x["i"]: (began[x["i"]], x["at"])
        for x in lines
        if x["k"] == end and x["i"] in began
    }


def _busy(ops: dict[int, Line], lines: Sequence[Line]) -> dict[int, Span]:
    """From when an operation was posted until it was over, as far as that was seen."""
    over: dict[int, float] = {}
    for x in lines:
        if x["k"] in ("done", "waited"):
            over.setdefault(x["i"], x["at"])
    return {i: (ops[i]["at"], end) for i, end in over.items() if i in ops}


def _reducer(
    ops: dict[int, Line], busy: dict[int, Span], waits: dict[int, Span]
) -> Iterable[Span]:
    """DDP waits in C++, from when it posts the last gradient until all are over."""
    run: list[int] = []
    for i in [*sorted(ops), None]:
        mine = i is not None and ops[i]["by"] == "DistributedDataParallel"
        if mine and i in busy and i not in waits:
            assert i is not None
            run.append(i)
        elif run:
            last, end = ops[run[-1]]["at"], max(busy[j][1] for j in run)
            yield (last, max(last, end))
            run = []


def union(spans: Iterable[Span]) -> list[Span]:
    """The same moments, each once."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def length(spans: Iterable[Span]) -> float:
    """How long they are together."""
    return sum(end - start for start, end in spans)


def _share(rank: Line) -> float | None:
    """Of the time in which something was on its way, the part nobody waited in."""
    if not rank["communicating"]:
        return None
    hidden = 1 - min(1.0, rank["waiting"] / rank["communicating"])
    return round(hidden, 4)


# Against what was expected


def changes(before: Line, after: Line) -> list[str]:
    """Where two reports differ in calls or bytes: a sentence for each line of code."""
    keys = ("op", "site", "by")
    old = {tuple(row[k] for k in keys): row for row in before["rows"]}
    new = {tuple(row[k] for k in keys): row for row in after["rows"]}
    found = []
    if before["ranks"] != after["ranks"]:
        found.append(f"ranks: {before['ranks']} before, {after['ranks']} now")
    for key in dict.fromkeys([*old, *new]):
        op, site, by = key
        where = f"{op} at {site or '?'}" + (f" by {by}" if by else "")
        if key not in new:
            found.append(f"{where}: {_said(old[key])} before, none now")
        elif key not in old:
            found.append(f"{where}: none before, {_said(new[key])} now")
        elif any(old[key][k] != new[key][k] for k in ("calls", "payload")):
            found.append(f"{where}: {_said(old[key])} before, {_said(new[key])} now")
    return found


def _said(row: Line) -> str:
    return f"{max(row['calls'])} calls of {max(row['payload']):,} bytes"


def expectation(made: Line) -> Line:
    """The part of a report that is the same on every run: what `--expect` compares."""
    keys = ("op", "site", "by", "calls", "payload")
    rows = [{key: row[key] for key in keys} for row in made["rows"]]
    return {"format": FORMAT, "ranks": made["ranks"], "rows": rows}
