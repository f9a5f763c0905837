"""Nodes that exchange until it is enough, for the tests that end them."""

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from atlas.launch import launch
from atlas.planner.accuracy import nodes
from atlas.planner.accuracy.wire import Wire

if TYPE_CHECKING:
    from exemplars.runtime import World

__all__ = ["LINK", "exchanging", "launch", "networks"]

LINK = Wire(100_000_000)


def networks(process: int | str = "[0-9]*") -> set[str]:
    """The networks that this process, or any, is in or holds open."""
    found = set()
    for pattern in (f"{process}/task/*/ns/net", f"{process}/fd/*"):
        for place in Path("/proc").glob(pattern):
            with contextlib.suppress(OSError):  # it ended meanwhile
                found.add(os.readlink(place))
    return {name for name in found if name.startswith("net:")}


def exchanging(w: "World", folder: str) -> None:
    """On a node: tell our process and networks, and exchange until it is enough."""
    import torch
    import torch.distributed as dist

    home = os.readlink("/proc/self/ns/net")
    nodes.plug_in(w, LINK, 30.0)
    own = networks(os.getpid()) - {home}
    written = Path(folder, f"new.{w.rank}")
    written.write_text(json.dumps([os.getpid(), sorted(own)]))
    written.rename(Path(folder, f"ready.{w.rank}"))
    stop = torch.zeros(100_000)
    while not stop[0]:
        stop += Path(folder, "enough").exists()
        dist.all_reduce(stop)
