"""On a rank: the collectives of one size in turns, and the constants of the laws.

All take turns in one launch, in an order that changes, so that whatever else the
machine does slows all of them. A repetition begins at a barrier and ends when its
slowest rank does.
"""

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from atlas.bench.pair import keep_memory
from atlas.collectives.calls import CALLS
from atlas.planner.accuracy.nodes import Node, plug_in
from atlas.planner.accuracy.wire import Wire
from atlas.planner.calibrate.timing import timed
from exemplars.runtime import World

ELEMENT = 4  # bytes of a float32
WARM_UP = 2
#: Seconds in which a token bucket fills and the last acknowledgements go.
REST = 0.01

Times = dict[str, list[float]]
Meet = Callable[[], object]


def in_turns(
    w: World, n: int, names: Sequence[str], repeats: int, calls: int, node_size: int
) -> Times:
    """Seconds of every repetition of every collective, on n bytes."""
    keep_memory()
    steps = {name: CALLS[name](_tensor(w, n), node_size) for name in names}
    found: Times = {name: [] for name in names}
    order = random.Random(0)  # every rank draws the same
    for turn in range(-WARM_UP, repeats):
        for name in order.sample(list(names), len(names)):
            dist.barrier()
            start = time.perf_counter()
            for _ in range(calls):
                steps[name]()
            if turn >= 0:
                found[name].append((time.perf_counter() - start) / calls)
    return found


def _tensor(w: World, n: int) -> torch.Tensor:
    """Zeros: however often they are summed, they stay numbers."""
    return torch.zeros(n // ELEMENT, device=w.device)


def rounds_and_additions(
    w: World, sizes: Sequence[int], repeats: int
) -> dict[str, list[tuple[int, list[float]]]]:
    """Of one round, in which all ranks send and receive n bytes, and one addition."""
    keep_memory()
    found: dict[str, list[tuple[int, list[float]]]] = {"round": [], "add": []}
    for n in sizes:
        x, y = _tensor(w, n), _tensor(w, n)
        found["round"].append((n, timed(w, partial(_shift, w, x, y), repeats)))
        found["add"].append((n, timed(w, partial(x.add_, y), repeats)))
    return found


def _shift(w: World, outgoing: torch.Tensor, incoming: torch.Tensor) -> None:
    """Send to the right while receiving from the left."""
    pair = [
        dist.P2POp(dist.isend, outgoing, (w.rank + 1) % w.size),
        dist.P2POp(dist.irecv, incoming, (w.rank - 1) % w.size),
    ]
    for work in dist.batch_isend_irecv(pair):
        work.wait()


def between_nodes(
    w: World,
    wire: Wire,
    node_size: int,
    plan: Sequence[tuple[int, int]],
    names: Sequence[str],
    timeout: float,
) -> list[dict[str, Any]]:
    """On nodes of several ranks: by (bytes, repeats), what this rank saw of each."""
    node = plug_in(w, wire, timeout, node_size)
    found = []
    for n, repeats in plan:
        seen = {}
        for name in names:
            step = CALLS[name](_tensor(w, n), node_size)
            step()  # connections are made, and begin slowly
            seen[name] = _on_wire(node, step, repeats)
        found.append(seen)
    return found


def _on_wire(node: Node, step: Meet, repeats: int) -> dict[str, Any]:
    """When each repetition began and ended, and the bytes of this node's way out."""
    node.meet()
    time.sleep(REST)
    before, _ = node.counted()
    times = []
    for _ in range(repeats):
        node.meet()
        time.sleep(REST)
        node.meet()
        start = time.monotonic()
        step()
        times.append((start, time.monotonic()))
    node.meet()
    time.sleep(REST)
    after, lost = node.counted()
    return {"times": times, "wire": (after - before) / repeats, "lost": lost}
