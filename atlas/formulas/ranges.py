"""What an argument of a formula may be, as types; `@formula` refuses the rest.

    @formula
    def ring_all_reduce_rounds(ranks: Ranks) -> int:

    ring_all_reduce_rounds(0)    # ValueError: ranks = 0: must be 1 or more

The JavaScript of a formula refuses the same values with the same words.
"""

import functools
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

__all__ = [
    "Amount",
    "AtLeast",
    "Below",
    "Count",
    "Positive",
    "Range",
    "Rank",
    "Ranks",
    "formula",
    "ranges",
]


@dataclass(frozen=True)
class AtLeast:
    """A number that may not be smaller."""

    least: int

    def check(self, name: str, values: Mapping[str, Any]) -> None:
        """Refuse a value outside of the range."""
        if not values[name] >= self.least:
            raise ValueError(f"{name} = {values[name]}: must be {self.least} or more")


@dataclass(frozen=True)
class Below:
    """A whole number from 0 to one less than another argument."""

    limit: str

    def check(self, name: str, values: Mapping[str, Any]) -> None:
        """Refuse a value outside of the range."""
        limit = values[self.limit]
        if not 0 <= values[name] < limit:
            raise ValueError(
                f"{name} = {values[name]}: must be from 0 to {limit - 1}, "
                f"as {self.limit} = {limit}"
            )


Range = AtLeast | Below

Count = Annotated[int, AtLeast(0)]
Positive = Annotated[int, AtLeast(1)]
Amount = Annotated[float, AtLeast(0)]
Ranks = Annotated[int, AtLeast(1)]
Rank = Annotated[int, Below("ranks")]

Formula = TypeVar("Formula", bound=Callable[..., Any])


def ranges(fn: Callable[..., Any]) -> dict[str, Range]:
    """The range of each argument that has one, in order."""
    hints = typing.get_type_hints(fn, include_extras=True)
    return {
        name: rule
        for name, hint in hints.items()
        for rule in getattr(hint, "__metadata__", ())
        if isinstance(rule, AtLeast | Below)
    }


def formula(fn: Formula) -> Formula:
    """A function of named quantities that refuses values out of their ranges."""
    names = fn.__code__.co_varnames[: fn.__code__.co_argcount]
    rules = tuple(ranges(fn).items())

    @functools.wraps(fn)
    def checked(*args: Any, **named: Any) -> Any:
        values = dict(zip(names, args, strict=False))
        values.update(named)
        for name, rule in rules:
            if name in values:
                rule.check(name, values)
        return fn(*args, **named)

    return typing.cast(Formula, checked)
