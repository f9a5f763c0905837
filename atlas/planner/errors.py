"""The one error of the oracle: a question outside its range, and what is in it."""

import difflib
from collections.abc import Iterable

__all__ = ["OracleError", "nearest", "numbers"]


class OracleError(ValueError):
    """One line: the reader's own input, why it is refused, and the nearest choices."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that was probably meant, or all of them."""
    known = list(known)
    close = difflib.get_close_matches(name[:80], known, n=1)
    if close:
        return f'"{close[0]}"'
    return "one of " + ", ".join(known) if known else "nothing: none is known"


def numbers(asked: int, legal: Iterable[int]) -> str:
    """The legal numbers on both sides of the one that was asked for."""
    legal = list(legal)
    below = max((n for n in legal if n < asked), default=None)
    above = min((n for n in legal if n > asked), default=None)
    found = [str(n) for n in (below, above) if n is not None]
    return " or ".join(found) if found else "no other number"
