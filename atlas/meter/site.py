"""Which line of whose code a collective was called from.

The innermost frame that is neither torch's nor ours nor the standard library's is the
reader's; what of torch stands between it and the operator is who called on its behalf.
"""

import os
import sys
import sysconfig
from functools import lru_cache
from types import FrameType
from typing import NamedTuple

import torch

_TORCH = os.path.dirname(torch.__file__) + os.sep
_ATLAS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STANDARD = sysconfig.get_paths()["stdlib"] + os.sep
#: A part of torch -> the name under which its users know it; the first that fits.
PARTS = {
    "nn/parallel/distributed.py": "DistributedDataParallel",
    "nn/modules/_functions.py": "SyncBatchNorm",
    "distributed/fsdp/_fully_shard/": "FSDP2",
    "distributed/_composable/fsdp/": "FSDP2",
    "distributed/fsdp/": "FSDP",
    "distributed/tensor/": "DTensor",
    "distributed/_tensor/": "DTensor",
    "distributed/pipelining/": "pipelining",
    "distributed/optim/": "ZeroRedundancyOptimizer",
    "distributed/checkpoint/": "checkpoint",
    "distributed/algorithms/": "DDP hook",
}
_CALLERS = ("distributed/distributed_c10d.py", "distributed/_functional_collectives.py")


class Site(NamedTuple):
    """A line of the reader's code, and what of torch called for it."""

    line: str  # train.py:31, or "" in a thread without Python
    by: str = ""


def call_site() -> Site:
    """Of the operation that is just being posted."""
    frame: FrameType | None = sys._getframe(1)
    by, called, backward, outside = "", False, False, ""
    while frame is not None:
        whose, part = _whose(frame.f_code.co_filename)
        if whose == "reader":
            line = f"{part}:{frame.f_lineno}"
            return Site(line, by or _native(called, backward))
        if whose == "torch":
            by = by or part
            called = called or frame.f_code.co_filename.endswith(_CALLERS)
            backward = backward or "/autograd/" in frame.f_code.co_filename
        elif whose == "library" and not outside:
            outside = f"{part}:{frame.f_lineno}"
        frame = frame.f_back
    return Site(outside, by or _native(called, backward or not outside))


def _native(called: bool, backward: bool) -> str:
    """In a backward pass, what nobody called in Python was DDP's reducer."""
    return "DistributedDataParallel" if backward and not called else ""


@lru_cache(maxsize=4096)
def _whose(path: str) -> tuple[str, str]:
    """Whose file this is, and its name as a reader would say it."""
    if path.startswith(_TORCH):
        inside = path.removeprefix(_TORCH).replace(os.sep, "/")
        return "torch", next((n for p, n in PARTS.items() if inside.startswith(p)), "")
    if path.startswith((_ATLAS, "<frozen")):
        return "ours", ""
    if "site-packages" in path or "dist-packages" in path:
        return "library", path.partition("-packages" + os.sep)[2]
    if path.startswith(_STANDARD):
        return "standard", ""
    return "reader", path.removeprefix(os.getcwd() + os.sep)
