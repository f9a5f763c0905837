"""The oracle: what a technique must send, hold and wait for, before it is run."""

from collections.abc import Callable
from types import FunctionType

from atlas.oracle import formulas

FORMULAS: dict[str, Callable[..., int | float]] = {
    name: fn
    for name, fn in vars(formulas).items()
    if isinstance(fn, FunctionType)
    and fn.__module__ == formulas.__name__
    and not name.startswith("_")
}

__all__ = ["FORMULAS"]
