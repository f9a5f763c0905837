"""Drawings in fewer bytes: coordinates to a tenth of a point, straight runs as one.

What is drawn stays where it was to a twentieth of a point, which nobody sees; a
drawing by matplotlib keeps six decimals and every point of a horizontal line.
"""

import re
from collections.abc import Iterable, Sequence

PATH = re.compile(r'(?<= d=")[^"]*(?=")')
POINT = re.compile(r"\s*([ML])\s*(-?[\d.]+)\s+(-?[\d.]+)")
NUMBER = re.compile(r"-?\d+\.\d{2,}")
Point = tuple[str, float, float]  # "M" or "L", and where


def lighter(drawing: str) -> str:
    """The same drawing, with lighter paths."""
    return PATH.sub(lambda found: _path(found[0]), drawing)


def _path(d: str) -> str:
    body, closed = d.strip().removesuffix("z"), d.strip().endswith("z")
    if POINT.sub("", body).strip():  # curves too: only rounded
        return re.sub(r"\s+", " ", NUMBER.sub(lambda n: short(float(n[0])), d)).strip()
    points = [
        (kind, round(float(x), 1), round(float(y), 1))
        for kind, x, y in POINT.findall(body)
    ]
    kept = "".join(f"{k}{short(x)} {short(y)}" for k, x, y in _straight(points))
    return kept + ("z" if closed else "")


def short(value: float) -> str:
    """A coordinate to a tenth, and no zero after the point."""
    return f"{value:.1f}".removesuffix(".0")


def corners(points: Iterable[tuple[float, float]]) -> str:
    """The points of a polyline or polygon, without those on the way to the next."""
    kept = _straight([("L", round(x, 1), round(y, 1)) for x, y in points])
    return " ".join(f"{short(x)},{short(y)}" for _, x, y in kept)


def _straight(points: Sequence[Point]) -> list[Point]:
    """Without the points that lie between their neighbors on one line."""
    kept: list[Point] = []
    for point in points:
        while len(kept) > 1 and _between(kept[-2], kept[-1], point):
            kept.pop()
        kept.append(point)
    return kept


def _between(a: Point, b: Point, c: Point) -> bool:
    """Is b on the way from a to c, in one stroke and straight on?"""
    if b[0] == "M" or c[0] == "M":
        return False
    ab, bc = (b[1] - a[1], b[2] - a[2]), (c[1] - b[1], c[2] - b[2])
    cross = ab[0] * bc[1] - ab[1] * bc[0]
    forward = ab[0] * bc[0] + ab[1] * bc[1]
    return abs(cross) < 1e-9 and forward >= 0
