"""Who holds what: a category's bytes on p ranks against those on twice as many."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Word = Literal["whole", "1/p", "none", "between"]


@dataclass(frozen=True)
class Share:
    """How the bytes of a category on the fullest rank go with the number of ranks."""

    word: Word
    fewer: int  # bytes on p ranks
    more: int  # on 2p

    @property
    def ratio(self) -> Fraction:
        """Bytes at twice the ranks, of those before."""
        return Fraction(self.more, self.fewer) if self.fewer else Fraction(0)


def shares(
    fewer: Mapping[str, int], more: Mapping[str, int], slack: Fraction = Fraction(1, 10)
) -> dict[str, Share]:
    """By category, from the bytes of the fullest rank at p and at 2p ranks.

    What does not divide is rounded up, and small parts are often kept whole, so a
    ratio may be off by `slack`: a tenth tells halves from wholes and from what grows.
    """
    return {
        category: Share(
            _word(bytes_, more.get(category, 0), slack), bytes_, more.get(category, 0)
        )
        for category, bytes_ in fewer.items()
    }


def _word(fewer: int, more: int, slack: Fraction) -> Word:
    if not fewer and not more:
        return "none"
    ratio = Fraction(more, fewer) if fewer else Fraction(10)
    if abs(ratio - 1) <= slack:
        return "whole"
    if abs(ratio - Fraction(1, 2)) <= slack:
        return "1/p"
    return "between"
