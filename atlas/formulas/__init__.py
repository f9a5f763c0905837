"""What each claim predicts: plain functions of named quantities, by path.

A technique of <axis>/<family> has its formulas in `atlas/formulas/<axis>/<family>.py`.
The number in a test, the LaTeX of a page and the JavaScript of a slider all come from
their source. Their arguments are the words of `taxonomy/symbols.yaml`. Integers in,
integers out, exactly: sizes are divided with `//` alone.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType

Formula = Callable[..., int | float]

__all__ = ["FORMULAS", "Formula", "functions"]


def _modules(package: str) -> Iterator[ModuleType]:
    found = importlib.import_module(package)
    yield found
    for _, name, _ in sorted(pkgutil.iter_modules(getattr(found, "__path__", ()))):
        yield from _modules(f"{package}.{name}")


def functions(module: ModuleType) -> dict[str, Formula]:
    """The formulas that a module defines, in their order."""
    return {
        name: fn
        for name, fn in vars(module).items()
        if isinstance(fn, FunctionType)
        and fn.__module__ == module.__name__
        and hasattr(fn, "__wrapped__")
    }


def _collected() -> dict[str, Formula]:
    """Every formula by its name, which no other has."""
    found: dict[str, Formula] = {}
    for module in _modules(__name__):
        for name, fn in functions(module).items():
            assert name not in found, f"two formulas are called {name}"
            found[name] = fn
    return found


#: One formula, one function, one citation.
FORMULAS: dict[str, Formula] = _collected()
