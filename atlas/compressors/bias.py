"""Bias, with its confidence: do the errors of many draws cancel?"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

#: 97.5 % of Student's t lies below it, for the 31 degrees of freedom of 32 blocks.
STUDENT = 2.040


@dataclass(frozen=True)
class Bias:
    """The squared norm of the mean error over the gradient's, and its band of 95 %."""

    square: float
    low: float
    high: float


def bias(products: Sequence[Sequence[float]], norm: float) -> Bias:
    """From the inner products of independent mean errors, block with block.

    The product of two independent errors has the squared bias as its expectation, so
    their mean over all pairs is unbiased; the square of one would count its noise. The
    band is the jackknife's: one block is left out at a time.
    """
    count = len(products)
    if count < 3:
        raise ValueError(f"{count} blocks: at least 3 are needed for a band")
    total = sum(map(sum, products)) - sum(products[i][i] for i in range(count))
    without = [total - 2 * (sum(products[i]) - products[i][i]) for i in range(count)]
    square = total / (count * (count - 1)) / norm**2
    left = [x / ((count - 1) * (count - 2)) / norm**2 for x in without]
    middle = sum(left) / count
    spread = sqrt((count - 1) / count * sum((x - middle) ** 2 for x in left))
    return Bias(square, square - STUDENT * spread, square + STUDENT * spread)
