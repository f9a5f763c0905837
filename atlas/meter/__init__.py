"""Counts what any torch.distributed code moves: calls, bytes, peers, waits.

    with meter() as moved:
        dist.all_reduce(x)
    moved.calls["all_reduce"]      # Count(count=1, payload=800, wire=1200)

`counting` has the meter; `tap` hears every operation in every thread; `journal`
writes them down with the line of code that called.
"""

from atlas.meter.counting import (
    Count,
    Counts,
    Meter,
    absorb,
    forget,
    meter,
    nbytes,
    note,
    plain,
    span,
    unseen,
    written,
)
from atlas.meter.operators import OPERATORS, MeterError, wire_bytes

__all__ = [
    "OPERATORS",
    "Count",
    "Counts",
    "Meter",
    "MeterError",
    "absorb",
    "forget",
    "meter",
    "nbytes",
    "note",
    "plain",
    "span",
    "unseen",
    "wire_bytes",
    "written",
]
