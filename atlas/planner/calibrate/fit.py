"""Fits seconds as a sum of costs, none negative, by relative error.

Seconds span four decades here, from a small message to a large product. Absolute
errors would let the largest point decide alone; relative ones weigh all alike.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

__all__ = ["Fit", "fit"]

Row = tuple[Sequence[float], float]  # how often each cost occurs, and the seconds


@dataclass(frozen=True)
class Fit:
    """The costs, and measured over fitted for every row."""

    costs: tuple[float, ...]
    ratios: tuple[float, ...]

    @property
    def error(self) -> float:
        """Mean relative error of what is fitted."""
        return fmean(abs(1 / r - 1) for r in self.ratios)


def fit(rows: Iterable[Row]) -> Fit:
    """The costs of the least mean square of relative errors.

    There are few costs, so every choice of those that are not zero is tried: the
    best of the plain solutions without a negative is the constrained one.
    """
    known = [(tuple(counts), seconds) for counts, seconds in rows]
    width = len(known[0][0])
    best, least = (0.0,) * width, float("inf")
    for size in range(1, width + 1):
        for chosen in combinations(range(width), size):
            costs = _solved(known, chosen)
            if costs is None or min(costs) < 0:
                continue
            off = sum((_seconds(c, costs) / s - 1) ** 2 for c, s in known)
            if off < least - 1e-15:
                best, least = costs, off
    return Fit(best, tuple(s / (_seconds(c, best) or s) for c, s in known))


def _seconds(counts: Sequence[float], costs: Sequence[float]) -> float:
    return sum(n * cost for n, cost in zip(counts, costs, strict=True))


def _solved(rows: Sequence[Row], chosen: Sequence[int]) -> tuple[float, ...] | None:
    """Least squares with these costs alone; None if they cannot be told apart."""
    scaled = [[counts[i] / seconds for i in chosen] for counts, seconds in rows]
    size = len(chosen)
    # Columns to length one: bytes and calls are nine decades apart.
    norms = [sum(row[i] ** 2 for row in scaled) ** 0.5 for i in range(size)]
    if min(norms) == 0:
        return None
    scaled = [[x / n for x, n in zip(row, norms, strict=True)] for row in scaled]
    normal = [
        [sum(row[i] * row[j] for row in scaled) for j in range(size)]
        + [sum(row[i] for row in scaled)]
        for i in range(size)
    ]
    found = _eliminated(normal)
    if found is None:
        return None
    costs = [0.0] * len(rows[0][0])
    for i, x, n in zip(chosen, found, norms, strict=True):
        costs[i] = x / n
    return tuple(costs)


def _eliminated(matrix: list[list[float]]) -> list[float] | None:
    """Gauss and Jordan, with the largest pivot; None if there is none."""
    size = len(matrix)
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(matrix[r][i]))
        if abs(matrix[pivot][i]) < 1e-12:
            return None
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        matrix[i] = [x / matrix[i][i] for x in matrix[i]]
        for r in range(size):
            if r != i:
                factor = matrix[r][i]
                pairs = zip(matrix[r], matrix[i], strict=True)
                matrix[r] = [x - factor * y for x, y in pairs]
    return [row[-1] for row in matrix]
