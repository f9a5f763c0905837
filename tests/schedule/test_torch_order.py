"""Torch's schedules, as torch makes and compiles them, are read and written."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.pipelining import schedules as theirs

from atlas.schedule import (
    GENERATORS,
    Work,
    from_csv,
    from_torch,
    generate,
    problems,
    stuck,
    to_csv,
    to_torch,
)
from atlas.schedule.checker import Post, Program


def torchs(name: str, p: int, m: int, v: int) -> Any:
    """Torch's own schedule object, of stages that hold no layers."""
    stages = [
        SimpleNamespace(
            group_size=p, group_rank=0, num_stages=p * v, submod=None, group=None,
            stage_index=s * p, has_backward=True, is_first=s == 0, is_last=False,
            device=None, stage_index_to_group_rank={},
        )
        for s in range(v)
    ]  # fmt: skip
    return getattr(theirs, name)(stages, m, loss_fn=lambda: None)


NAMES = {
    "ScheduleInterleaved1F1B": "interleaved-1f1b",
    "ScheduleInterleavedZeroBubble": "zb-h1",
    "ScheduleZBVZeroBubble": "zb-v",
    "ScheduleDualPipeV": "dualpipe-v",
}
#: Ranks, micro-batches and chunks per rank.
SIZES = {
    "ScheduleInterleaved1F1B": [(2, 4, 2), (3, 2, 2), (3, 6, 1), (4, 10, 3)],
    "ScheduleInterleavedZeroBubble": [(2, 4, 1), (3, 2, 1), (4, 8, 1)],
    "ScheduleZBVZeroBubble": [(2, 4, 2), (3, 2, 2), (4, 9, 2)],
    "ScheduleDualPipeV": [(2, 4, 2), (3, 7, 2), (4, 8, 2)],
}


@pytest.mark.parametrize(
    ("name", "p", "m", "v"), [(name, *size) for name in NAMES for size in SIZES[name]]
)
def test_the_order_is_torchs(name: str, p: int, m: int, v: int) -> None:
    """The same work in the same order on every rank."""
    one = GENERATORS[NAMES[name]]
    ours = generate(NAMES[name], p, m, v if one.free else None)
    theirs = torchs(name, p, m, v)
    assert from_torch(theirs.pipeline_order).ranks == ours.ranks
    assert from_torch(theirs.pipeline_order_with_comms).ranks == ours.ranks


@pytest.mark.parametrize("name", list(NAMES))
def test_torchs_own_messages_cannot_deadlock(name: str) -> None:
    """Its compiled order, judged by our checker of NCCL's pairing."""
    chunks = 1 if name == "ScheduleInterleavedZeroBubble" else 2
    theirs, ours = torchs(name, 4, 8, chunks), generate(NAMES[name], 4, 8)
    place = {s: r for r in range(4) for s in ours.held(r)}
    ranks: list[Program] = [
        [item for cell in row for item in posted(str(cell), place)]
        for row in theirs.pipeline_order_with_comms.values()
    ]
    assert any(isinstance(item, Post) for item in ranks[0])
    assert stuck(ranks) == []


def posted(cell: str, place: dict[int, int]) -> list[Work | Post]:
    """Torch's cell, with its message."""
    for way in ("SEND_F", "RECV_F", "SEND_B", "RECV_B"):
        if way in cell:
            s, i = map(int, cell.split(way))
            kind, step = way[-1], 1 if way[-1] == "F" else -1
            if way.startswith("SEND"):
                return [Post("send", place[s + step], Work(kind, i, s))]
            return [Post("recv", place[s - step], Work(kind, i, s - step))]
    return list(from_torch([[cell]]).ranks[0])


@pytest.mark.parametrize("messages", [False, True])
@pytest.mark.parametrize(
    "name", [n for n in GENERATORS if n not in {"chimera", "dualpipe"}]
)
def test_a_file_is_read_as_it_was_written(name: str, messages: bool) -> None:
    schedule = generate(name, 4, 8)
    assert from_csv(to_csv(schedule, messages=messages)).ranks == schedule.ranks


@pytest.mark.parametrize("messages", [False, True])
def test_torch_reads_what_we_write(tmp_path: Path, messages: bool) -> None:
    """By its own reader, which validates it and compiles messages into it."""
    schedule = generate("v-half", 4, 8)
    path = tmp_path / "schedule.csv"
    path.write_text(to_csv(schedule, messages=messages))
    runtime = torchs("ScheduleZBVZeroBubble", 4, 8, 2)
    form = "compute_comms" if messages else "compute_only"
    runtime._load_csv(str(path), format=form)
    assert from_torch(runtime.pipeline_order_with_comms).ranks == schedule.ranks
    assert problems(from_torch(runtime.pipeline_order_with_comms)) == []


def test_what_torch_cannot_say_is_refused() -> None:
    with pytest.raises(ValueError, match="two ranks hold a copy"):
        to_torch(generate("chimera", 2, 2))
    with pytest.raises(ValueError, match="'2X3' is no action"):
        from_csv("0F0,2X3")
