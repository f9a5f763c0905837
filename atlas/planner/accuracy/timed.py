"""On a node: an exchange again and again, when it began and ended, and its bytes."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from atlas.planner.accuracy.nodes import Node, plug_in
from atlas.planner.accuracy.wire import Wire
from exemplars.communication_pattern.collective import (
    halving_doubling,
    ring_all_reduce,
)
from exemplars.runtime import World

Step = Callable[[], object]
#: Seconds in which a bucket fills and the last acknowledgements go.
REST = 0.01
WARM_UP = 1_000_000  # bytes: connections begin slowly
ELEMENT = 4  # bytes


def timed(
    w: World, wire: Wire, name: str, sizes: Sequence[tuple[int, int]], timeout: float
) -> list[dict[str, Any]]:
    """What this node saw of every (bytes, repeats)."""
    node = plug_in(w, wire, timeout)
    _times(node, STEPS[name](WARM_UP // ELEMENT), 2)
    return [_seen(node, STEPS[name](n // ELEMENT), count) for n, count in sizes]


def _seen(node: Node, step: Step, count: int) -> dict[str, Any]:
    before, lost = node.counted()
    times = _times(node, step, count)
    time.sleep(REST)
    after, still = node.counted()
    return {"times": times, "wire": (after - before) / count, "lost": still - lost}


def _times(node: Node, step: Step, count: int) -> list[tuple[float, float]]:
    """From entering to leaving, on the clock that all ranks share."""
    seen = []
    for _ in range(count):
        node.meet()
        time.sleep(REST)
        node.meet()
        begun = time.monotonic()
        step()
        seen.append((begun, time.monotonic()))
    node.meet()
    return seen


def _parts(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(n), torch.empty(n // dist.get_world_size())


def _send(n: int) -> Step:
    r, x = dist.get_rank(), torch.ones(n)
    return partial(dist.send, x, 1) if r == 0 else partial(dist.recv, x, 0)


def _all_reduce(n: int) -> Step:
    return partial(dist.all_reduce, torch.ones(n))


def _reduce_scatter(n: int) -> Step:
    whole, part = _parts(n)
    return partial(dist.reduce_scatter_single, part, whole)


def _all_gather(n: int) -> Step:
    whole, part = _parts(n)
    return partial(dist.all_gather_single, whole, part)


def _all_to_all(n: int) -> Step:
    return partial(dist.all_to_all_single, torch.empty(n), torch.ones(n))


def _broadcast(n: int) -> Step:
    return partial(dist.broadcast, torch.ones(n), 0)


def _ring(n: int) -> Step:
    return partial(ring_all_reduce.ring_all_reduce, torch.ones(n))


def _halving_doubling(n: int) -> Step:
    return partial(halving_doubling.all_reduce, torch.ones(n))


def _swap(n: int, *, receive_first: bool) -> Step:
    x, y, other = torch.ones(n), torch.empty(n), 1 - dist.get_rank()
    order = [partial(dist.isend, x, other), partial(dist.irecv, y, other)]

    def step() -> None:
        for work in [begin() for begin in (order[::-1] if receive_first else order)]:
            assert work is not None
            work.wait()

    return step


STEPS: dict[str, Callable[[int], Step]] = {
    "send": _send,
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "ring": _ring,
    "halving_doubling": _halving_doubling,
    "send_first": partial(_swap, receive_first=False),
    "receive_first": partial(_swap, receive_first=True),
}
