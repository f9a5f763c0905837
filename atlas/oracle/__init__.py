"""The oracle: what a technique must send, hold and wait for, before it is run."""

from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from atlas.oracle import (
    agreement,
    blocks,
    computing,
    formulas,
    holding,
    layerwise,
    pipelining,
    placing,
    rings,
)

Formula = Callable[..., int | float]


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


#: One formula, one function, one citation.
FORMULAS: dict[str, Formula] = _functions(formulas)
#: What composes them: functions of numbers and records, for the calculator too.
CORE: dict[str, Callable[..., Any]] = _functions(
    placing, rings, computing, layerwise, agreement, pipelining, holding, blocks
)

__all__ = ["CORE", "FORMULAS"]
