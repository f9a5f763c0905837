"""The planner's arithmetic by name: plain functions of numbers and records.

The planner scores with these, `predict` names what they give, and the calculator shows
them as formulas. They are therefore written in the little Python that
`atlas.script.source` reads, and check nothing: who calls them has checked.

    placing      where a group's ranks are
    rings        seconds of a collective
    computing    what a rank computes of a micro-batch
    layerwise    what ranks tell one another inside layers
    agreement    what replicas hold, and how they agree
    pipelining   bubbles, what is in flight, the step
    holding      bytes at the peak
    blocks       the parts of a transformer
"""

from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from atlas.planner import (
    agreement,
    blocks,
    computing,
    holding,
    layerwise,
    pipelining,
    placing,
    rings,
)

__all__ = ["ARITHMETIC"]


def _functions(*modules: ModuleType) -> dict[str, Callable[..., Any]]:
    """The public functions that these modules define, in their order."""
    return {
        name: fn
        for module in modules
        for name, fn in vars(module).items()
        if isinstance(fn, FunctionType)
        and fn.__module__ == module.__name__
        and not name.startswith("_")
    }


ARITHMETIC: dict[str, Callable[..., Any]] = _functions(
    placing, rings, computing, layerwise, agreement, pipelining, holding, blocks
)
