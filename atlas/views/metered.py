"""What a metered run shows, as plain values: the same in the terminal and on a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Report = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One operation of one line of code, on the rank that does most of it."""

    op: str
    site: str
    calls: str
    per_step: str
    payload: str
    wire: str
    wait: str


def rows(report: Report) -> list[Row]:
    """What carries most comes first."""
    found = sorted(report["rows"], key=lambda r: (-max(r["wire"]), -max(r["payload"])))
    return [
        Row(
            row["op"].replace("_", "-"),
            place(row),
            span(row["calls"]),
            "" if row["per_step"][0] is None else span(row["per_step"]),
            size(max(row["payload"])),
            size(max(row["wire"])),
            seconds(max(row["wait"])),
        )
        for row in found
    ]


def place(row: Mapping[str, Any]) -> str:
    """The line of code, and what of torch called for it."""
    return " ".join(filter(None, [row["by"], row["site"]])) or "unknown"


def span(numbers: Sequence[float]) -> str:
    """One number if all ranks have it, else from the least to the most."""
    low, high = min(numbers), max(numbers)
    return f"{low:g}" if low == high else f"{low:g}–{high:g}"


def size(count: float) -> str:
    """Bytes, as people say them."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:,.0f} B" if unit == "B" else f"{count:,.3g} {unit}"


def seconds(count: float) -> str:
    """Seconds or milliseconds."""
    return f"{count:.2f} s" if count >= 1 else f"{count * 1e3:.1f} ms"


def summary(report: Report) -> list[str]:
    """The sentences under the table."""
    steps, lines = report["steps"], []
    if steps:
        lines.append(f"{steps} optimizer steps in {seconds(report['seconds'])}")
    else:
        lines.append(
            f"no optimizer step was seen in {seconds(report['seconds'])}: "
            "the counts are of the whole run"
        )
    hidden = [share for share in report["overlap"] if share is not None]
    if hidden:
        low, high = min(hidden), max(hidden)
        between = f"{low:.0%}" if low == high else f"{low:.0%} to {high:.0%}"
        lines.append(
            f"{between} of the communication was hidden behind compute; "
            f"a rank waited up to {seconds(max(report['waiting']))}"
        )
    held = {kind: max(n) for kind, n in report["memory"].items() if max(n)}
    if held:
        told = ", ".join(f"{size(n)} of {kind}" for kind, n in held.items())
        lines.append(f"the fullest rank held {told}")
    for facet, answer in report["classification"].items():
        lines.append(f"{facet}: {answer['family']}; {answer['evidence']}")
    return lines


def hang(verdict: Any) -> list[str]:
    """A verdict in lines: who, why, where each rank was, who waited for whom."""
    lines = [f"guilty: {verdict.says}", ""]
    lines += verdict.where
    if verdict.first:
        lines += ["", "the first collective that differs:"]
        lines += [f"  rank {r}: {what}" for r, what in sorted(verdict.first.items())]
    if verdict.cycle:
        circle = " → ".join(map(str, [*verdict.cycle, verdict.cycle[0]]))
        lines += ["", f"they wait in a circle: {circle}"]
    elif verdict.edges:
        lines += ["", "who waits for whom:"]
        lines += [
            f"  rank {e.waiter} → rank {e.waited_for}: {e.why}" for e in verdict.edges
        ]
    return lines
