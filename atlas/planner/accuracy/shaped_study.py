"""Times the exchanges on wires of known speed; measurements/studies/shaped-link.json.

Judged: 1 to 16 MB. The latency comes from messages that fit into a full bucket, the
time of a byte from the declared rate and the headers; nothing is fitted to what is
judged.
"""

import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from atlas import taxonomy
from atlas.bench.study import today, versions
from atlas.launch import launch
from atlas.planner.accuracy import wire as wires
from atlas.planner.accuracy.exchanges import EXCHANGES, SWAPS, Exchange
from atlas.planner.accuracy.wire import Wire
from atlas.record import compact, source_of, write_text

PLACE = Path("measurements") / "studies" / "shaped-link.json"
NODES = (2, 4)
RATES = (50_000_000, 100_000_000, 500_000_000)  # bits a second
SIZES = (1_000_000, 2_000_000, 4_000_000, 8_000_000, 16_000_000)
#: What the latency is taken from: smaller than any bucket, and not judged.
SMALL, SMALL_REPEATS = 1024, 25
GOAL = 0.05  # median error
#: The order of a swap is asked of one size at one rate.
SWAP_RATE, SWAP_SIZE, SWAP_REPEATS = 100_000_000, 4_000_000, 9
TECHNIQUES = ("ring-all-reduce", "halving-doubling")
GROUP_TIMEOUT = 60.0
SETUP = 1.5  # seconds to make the nodes and connect them
ALL = {**EXCHANGES, **SWAPS}

Json = dict[str, Any]
#: Hears what begins, and how many seconds of it are expected.
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Case:
    """One exchange at several sizes, on nodes made for it."""

    exchange: str
    nodes: int
    wire: Wire
    sizes: tuple[int, ...]
    repeats: int | None = None  # None: by how long one lasts

    @property
    def plan(self) -> list[tuple[int, int]]:
        """(bytes, repeats), the small ones first."""
        judged = [(n, self.repeats or repeats(self.lasting(n))) for n in self.sizes]
        return [(SMALL, SMALL_REPEATS), *judged]

    def lasting(self, n: int) -> float:
        """Seconds, roughly."""
        return ALL[self.exchange].predict(self.nodes, n, self.wire, 0.0)

    @property
    def seconds(self) -> float:
        """How long the case lasts, roughly."""
        return SETUP + sum(self.lasting(n) * count for n, count in self.plan[1:])

    @property
    def label(self) -> str:
        """For a progress bar."""
        return f"{self.nodes} nodes, {self.wire.rate / 1e6:g} Mbit/s, {self.exchange}"


def repeats(seconds: float) -> int:
    """More where one is short; odd, so that the median is one that was seen."""
    return 3 if seconds > 0.5 else 5 if seconds > 0.1 else 7


def cases(
    nodes: Sequence[int] = NODES,
    rates: Sequence[int] = RATES,
    sizes: Sequence[int] = SIZES,
    exchanges: Sequence[str] = tuple(EXCHANGES),
) -> list[Case]:
    """What is judged."""
    return [
        Case(name, p, Wire(rate), tuple(sizes))
        for p in nodes
        for rate in rates
        for name in exchanges
        if p in EXCHANGES[name].nodes
    ]


def swaps() -> list[Case]:
    """What is asked beside the table: does the order of a swap matter?"""
    wire = Wire(SWAP_RATE)
    return [Case(name, 2, wire, (SWAP_SIZE,), SWAP_REPEATS) for name in SWAPS]


def measure(chosen: Sequence[Case], progress: Progress) -> list[Json]:
    """The rows of all the cases, in their order."""
    rows = []
    for case in chosen:
        progress(case.label, case.seconds)
        rows += list(_rows(case))
    return rows


def _rows(case: Case) -> Iterator[Json]:
    from atlas.planner.accuracy.timed import timed

    seen = launch(
        timed,
        case.nodes,
        case.wire,
        case.exchange,
        case.plan,
        GROUP_TIMEOUT,
        timeout=GROUP_TIMEOUT + 5 * case.seconds,
        env={"CUDA_VISIBLE_DEVICES": ""},
    )
    small, *judged = zip(*seen, strict=True)
    latency = median(lasted([node["times"] for node in small]))
    for n, nodes in zip(case.sizes, judged, strict=True):
        times = lasted([node["times"] for node in nodes])
        wire = [node["wire"] for node in nodes]
        lost = sum(node["lost"] for node in nodes)
        yield row(case, n, times, latency, wire, lost)


def lasted(nodes: Sequence[Sequence[tuple[float, float]]]) -> list[float]:
    """By repetition: from when the last node entered until the last one left."""
    turns = zip(*nodes, strict=True)
    return [max(end for _, end in t) - max(start for start, _ in t) for t in turns]


def row(
    case: Case,
    n: int,
    times: Sequence[float],
    latency: float,
    wire: Sequence[float],
    lost: int = 0,
) -> Json:
    """What was measured, and what was expected of it."""
    p, exchange = case.nodes, ALL[case.exchange]
    made: Json = {
        "nodes": p,
        "rate": case.wire.rate,
        "exchange": case.exchange,
        "bytes": n,
        "repeats": len(times),
        "seconds": round(median(times), 6),
        "fastest": round(min(times), 6),
        "slowest": round(max(times), 6),
        "latency": round(latency, 6),
        "wire": [round(x) for x in wire],
        "lost": lost,
    }
    return {**made, **expected(made, exchange, case.wire)}


def expected(seen: Json, exchange: Exchange, wire: Wire) -> Json:
    """The predictions for a row, and how far it is from them."""
    p, n, latency = seen["nodes"], seen["bytes"], seen["latency"]
    predicted = exchange.predict(p, n, wire, latency)
    payload = max(exchange.sent(p, r) for r in range(p)) * n
    ideal = exchange.ideal or exchange.sent
    made: Json = {
        "predicted": round(predicted, 6),
        "error": error(predicted, seen["seconds"]),
        "payload": round(payload),
        "ideal": round(max(ideal(p, r) for r in range(p)) * n),
        "wire_predicted": [round(x) for x in exchange.wire_bytes(p, n, wire)],
    }
    if exchange.really:
        named = exchange.by_name(p, n, wire, latency)
        made["named"] = round(named, 6)
        made["named_error"] = error(named, seen["seconds"])
    turns = exchange.in_turns(p, n, wire, latency)
    if turns is not None and turns > 1.01 * predicted:
        made["turns"] = round(turns, 6)
    return made


def error(predicted: float, measured: float) -> float:
    """Relative to what was measured; negative where it took longer than said."""
    return round((predicted - measured) / measured, 5)


def summary(rows: Sequence[Json]) -> Json:
    """Errors over all rows, failures included: gloo's are judged, ours lie beside."""
    groups: dict[str, list[Json]] = {}
    for r in rows:
        by = ALL[r["exchange"]].by
        groups.setdefault("judged" if by == "gloo" else by, []).append(r)
        groups.setdefault(f"{r['exchange']}, {r['nodes']}", []).append(r)
    return {name: _errors(some) for name, some in groups.items()}


def _errors(rows: Sequence[Json]) -> Json:
    off = [abs(r["error"]) for r in rows]
    named = [abs(r["named_error" if "named" in r else "error"]) for r in rows]
    wire = [abs(x - 1) for r in rows for x in wire_ratios(r)]
    return {
        "rows": len(rows),
        "median": round(median(off), 5),
        "worst": max(off),
        "accuracy": round(fmean(1 - x for x in off), 5),
        "named_median": round(median(named), 5),
        "wire_median": round(median(wire), 5),
        "wire_worst": round(max(wire), 5),
        "turns": sum(took_turns(r) for r in rows),
    }


def wire_ratios(r: Json) -> list[float]:
    """Bytes on the wire over those expected, for the nodes that send data."""
    pairs = zip(r["wire"], r["wire_predicted"], strict=True)
    return [seen / said for seen, said in pairs if said > r["bytes"] / 10]


def took_turns(r: Json) -> bool:
    """Whether the median is nearer to taking turns than to going at once."""
    seen = r["seconds"]
    return "turns" in r and abs(r["turns"] - seen) < abs(r["predicted"] - seen)


def keep(root: Path, parts: dict[str, list[Json]], load: Sequence[float]) -> Path:
    """Write the whole study."""
    known = taxonomy.load(root).techniques
    machine = {
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "load": [round(x, 2) for x in load],
    }
    made = {
        "recorded": today(),
        "versions": versions(),
        "machine": machine,
        "source": source_of(root, [known[id] for id in TECHNIQUES]),
        "given": given(),
        "exchanges": {
            name: {"says": e.says, "by": e.by, "why": e.why} for name, e in ALL.items()
        },
        "summary": summary(parts["rows"]),
        **parts,
    }
    text = json.dumps(made, indent=1, sort_keys=True) + "\n"
    write_text(root / PLACE, compact(text))
    return root / PLACE


def given() -> Json:
    """The wire in numbers."""
    return {
        "mtu": wires.MTU,
        "payload": wires.PAYLOAD,
        "frame": wires.FRAME,
        "acknowledgement": wires.ACKNOWLEDGEMENT,
        "burst_seconds": wires.BURST_SECONDS,
        "together": {str(rate): Wire(rate).together for rate in RATES},
        "small": SMALL,
        "goal": GOAL,
        "nodes": NODES,
        "rates": RATES,
        "sizes": SIZES,
    }
