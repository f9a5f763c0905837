"""A claim over the number of ranks: the formula as a line, measurements on it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from atlas.site.text import amount, attr, number
from atlas.svg import corners, short

WIDE, HIGH = 460, 230
LEFT, RIGHT, ABOVE, BELOW = 54, 14, 14, 40
LAST = 1024

Point = tuple[int, float]


@dataclass(frozen=True, slots=True)
class Curve:
    """One chart: a title, a line, and the points of each backend."""

    title: str
    line: tuple[Point, ...]
    points: tuple[tuple[str, tuple[Point, ...]], ...]  # (backend, points)


def grid(least: int, most: int | None) -> list[int]:
    """Numbers of ranks along the axis: all small ones, then ever fewer."""
    last = min(most or LAST, LAST)
    steps = {*range(least, min(last, 16) + 1), last}
    k = 16.0
    while k < last:
        steps.add(round(k))
        k *= 2**0.25
    return sorted(p for p in steps if least <= p <= last)


def draw(curve: Curve) -> str:
    """The chart as an SVG; its colors come from the style sheet."""
    values = [y for _, y in curve.line] + [y for _, ps in curve.points for _, y in ps]
    sizes = [x for x, _ in curve.line] + [x for _, ps in curve.points for x, _ in ps]
    chart = _Chart(max([*sizes, 2]), values)
    return (
        f'<svg class="curve" viewBox="0 0 {WIDE} {HIGH}" role="img" '
        f'aria-label="{attr(describe(curve))}">'
        f"{''.join(chart.axes())}{chart.line(curve.line)}"
        f"{''.join(chart.marks(curve.points))}</svg>"
    )


def describe(curve: Curve) -> str:
    """The chart in words."""
    first, last = curve.line[0], curve.line[-1]
    text = (
        f"{curve.title}: from {number(first[1])} at p = {first[0]} "
        f"to {number(last[1])} at p = {last[0]}"
    )
    for backend, points in curve.points:
        text += f"; {backend} points at p = {', '.join(str(x) for x, _ in points)}"
    return text


class _Chart:
    """Places points: ranks on a logarithmic axis, values on a linear or log one."""

    def __init__(self, most: int, values: Sequence[float]) -> None:
        self.most = most
        self.top = max([*values, 0.0]) or 1.0
        least = min((v for v in values if v > 0), default=self.top)
        self.log = min(values, default=0) >= 0 and self.top / least > 50
        self.low = 10 ** math.floor(math.log10(least)) if self.log else 0.0
        # on a logarithmic axis zero has a place of its own, below the lowest power
        self.zero = 0.14 if self.log and min(values, default=1) == 0 else 0.0
        if self.log:
            self.top = 10 ** math.ceil(math.log10(self.top))
        else:
            self.top = ticks(self.top)[-1]

    def x(self, p: int) -> float:
        share = math.log2(p) / math.log2(self.most)
        return round(LEFT + share * (WIDE - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        share = value / self.top
        if self.log and value > 0:
            decades = math.log10(self.top / self.low)
            share = math.log10(value / self.low) / decades
            share = self.zero + (1 - self.zero) * share
        return round(HIGH - BELOW - share * (HIGH - ABOVE - BELOW), 1)

    def axes(self) -> Iterable[str]:
        levels = ticks(self.top)
        if self.log:
            span = round(math.log10(self.top / self.low))
            every = max(1, math.ceil(span / 5))
            levels = [self.low * 10**k for k in range(0, span + 1, every)]
            levels = [0.0, *levels] if self.zero else levels
        for v in levels:
            y = self.y(v)
            yield f'<path class="grid" d="M{LEFT} {short(y)}H{WIDE - RIGHT}"/>'
            at = f'x="{LEFT - 6}" y="{short(y + 4)}"'
            yield f'<text class="left" {at}>{amount(v)}</text>'
        every = 2 if self.most > 64 else 1
        for k in range(0, int(math.log2(self.most)) + 1, every):
            p = 2**k
            yield f'<text x="{short(self.x(p))}" y="{HIGH - BELOW + 16}">{p}</text>'
        middle = (LEFT + WIDE - RIGHT) / 2
        yield f'<text x="{short(middle)}" y="{HIGH - 6}">ranks, p</text>'

    def line(self, points: Sequence[Point]) -> str:
        path = corners((self.x(p), self.y(v)) for p, v in points)
        return f'<polyline class="predicted" points="{path}"/>'

    def marks(self, sets: Iterable[tuple[str, Sequence[Point]]]) -> Iterable[str]:
        for backend, points in sets:
            for p, v in points:
                x, y = self.x(p), self.y(v)
                tip = f"<title>{attr(backend)}, p = {p}: {number(v)}</title>"
                if backend == "dry":
                    yield (
                        f'<rect class="dry" x="{short(x - 4)}" y="{short(y - 4)}" '
                        f'width="8" height="8">{tip}</rect>'
                    )
                else:
                    at = f'cx="{short(x)}" cy="{short(y)}"'
                    yield f'<circle class="gloo" {at} r="4">{tip}</circle>'


def ticks(top: float) -> list[float]:
    """Zero and a few round values, the last at or above the top."""
    raw = top / 4
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(k * scale for k in (1, 2, 2.5, 5, 10) if k * scale >= raw * 0.999)
    return [step * i for i in range(math.ceil(top / step - 1e-9) + 1)]
