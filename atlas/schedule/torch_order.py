"""To and from torch.distributed.pipelining: its compiled order, and its CSV.

Torch writes a schedule as rows of cells, one row per rank: `3F2` is the forward of
micro-batch 2 at stage 3, `I` the gradient of the input, `W` that of the weights, `B`
both at once, `(0F4;7B1)OVERLAP_F_B` two at the same time, and an empty cell a pause.
The compiled form also has `SEND_F`, `RECV_B` and the like. A schedule's work is read
from either; a pause and an overlap are not part of it.
"""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence

from atlas.schedule.actions import Schedule, Work, schedule_of
from atlas.schedule.checker import Post, programs

_CELL = re.compile(r"(\d+)(F|I|B|W)(\d+)")
_OTHER = re.compile(r"\d+(SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)\d*")
_PAIR = re.compile(r"\((.*)\)OVERLAP_F_B")


def from_torch(
    order: Mapping[int, Sequence[object]] | Sequence[Sequence[object]], name: str = ""
) -> Schedule:
    """Of `pipeline_order` or `pipeline_order_with_comms`, or of cells as text."""
    rows = [order[r] for r in sorted(order)] if isinstance(order, Mapping) else order
    return schedule_of(([w for cell in row for w in _read(cell)] for row in rows), name)


def _read(cell: object) -> list[Work]:
    text = "" if cell is None else str(cell).strip()
    if pair := _PAIR.fullmatch(text):
        return [w for part in pair[1].split(";") for w in _read(part)]
    if match := _CELL.fullmatch(text):
        kind = "B" if match[2] == "I" else match[2]
        return [Work(kind, int(match[3]), int(match[1]))]
    if text and not _OTHER.fullmatch(text):
        raise ValueError(f"{text!r} is no action of torch's, such as 3F2 or 0SEND_F1")
    return []


def to_torch(schedule: Schedule, *, messages: bool = False) -> list[list[str]]:
    """Cells, one row per rank; with messages, as torch's runtime runs them."""
    if len({s for s in _homes(schedule)}) < len(_homes(schedule)):
        twice = "two ranks hold a copy of one stage, which torch cannot say"
        raise ValueError(f"{schedule.name or 'the schedule'}: {twice}")
    rows: Iterable[Iterable[Work | Post]] = programs(schedule) if messages else schedule
    return [[_cell(schedule, item) for item in row] for row in rows]


def _homes(schedule: Schedule) -> list[int]:
    return [s for r in range(len(schedule.ranks)) for s in schedule.held(r)]


def _cell(schedule: Schedule, item: Work | Post) -> str:
    if isinstance(item, Post):
        kind, i, s = item.work
        way = 0 if item.kind == "send" else 1 if kind == "F" else -1
        return f"{s + way}{item.kind.upper()}_{kind}{i}"
    kind = "I" if item.kind == "B" and item[1:] in schedule.split else item.kind
    return f"{item.stage}{kind}{item.micro}"


def to_csv(schedule: Schedule, *, messages: bool = False) -> str:
    """A file that torch's `_load_csv` reads, as compute_only or compute_comms."""
    text = io.StringIO()
    csv.writer(text).writerows(to_torch(schedule, messages=messages))
    return text.getvalue()


def from_csv(text: str, name: str = "") -> Schedule:
    """What torch's `_dump_csv` wrote."""
    return from_torch(list(csv.reader(io.StringIO(text))), name)
