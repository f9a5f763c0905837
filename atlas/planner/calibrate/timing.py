"""Seconds of what a rank does: from a barrier on, as long as the slowest rank takes.

All ranks do the same at once. Computing is timed that way too: two processes on one
machine share its caches and its memory, and neither is as fast as it is alone.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from exemplars.runtime import World

__all__ = ["WARM_UP", "Work", "settled", "slowest", "stamps", "timed"]

WARM_UP = 2
Work = Callable[[], object]


def timed(w: World, work: Work, repeats: int, warm_up: int = WARM_UP) -> list[float]:
    """Seconds of every repetition on this rank."""
    return [end - start for start, end in stamps(w, [work], repeats, warm_up)]


def stamps(
    w: World, parts: Sequence[Work], repeats: int, warm_up: int = WARM_UP
) -> list[list[float]]:
    """Of every repetition: when it began, from a barrier on, and each part's end.

    The clock is the machine's: all its processes read the same.
    """
    found = []
    for turn in range(-warm_up, repeats):
        settled(w)
        dist.barrier()
        times = [time.perf_counter()]
        for part in parts:
            part()
            settled(w)
            times.append(time.perf_counter())
        if turn >= 0:
            found.append(times)
    return found


def settled(w: World) -> None:
    """Wait until the device has done what it was given."""
    if w.device.type != "cpu":
        torch.accelerator.synchronize()


def slowest(ranks: Sequence[Any]) -> float:
    """Of the repetitions as every rank saw them: the median of the slowest rank's."""
    return median(max(turn) for turn in zip(*ranks, strict=True))
