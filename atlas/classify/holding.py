"""Who holds what: a category's bytes on p ranks against those on twice as many."""

from fractions import Fraction
from typing import Literal

Held = Literal["whole", "1/p", "partly", "none"]
#: What does not divide is rounded up, and small parts are often kept whole. A tenth
#: tells halves from wholes, and both from what grows.
SLACK = Fraction(1, 10)


def share(fewer: int, more: int) -> Held:
    """From the bytes of the fullest rank of p, and of the fullest of 2p."""
    if not fewer:
        return "partly" if more else "none"
    ratio = Fraction(more, fewer)
    if abs(ratio - 1) <= SLACK:
        return "whole"
    return "1/p" if abs(ratio - Fraction(1, 2)) <= SLACK else "partly"
