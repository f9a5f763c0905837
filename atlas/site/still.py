"""The still picture of a replay: the whole run as an SVG, in the first mode of time.

A page shows many runs, its own and those of its mutants, and they have much in
common: ranks that do the same at the same time, mutants that only spoil values.
What a page has drawn once, it refers to afterwards (`Shapes`). Blocks say where
they begin and how wide they are; the style sheet knows the rest from --h, the
height that a group of blocks has around the middle of its lane.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from atlas.site.text import attr, number
from atlas.svg import short

TOP = 44  # above the first lane: the time axis
LEAST, MOST = 560, 4200  # the drawing's width in pixels
CHIP = 22  # the side of the square that stands for what travels
Scene = Mapping[str, Any]


class Shapes:
    """What a page has drawn already: the same again is a reference to it."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def draw(self, shape: str, y: float = 0) -> str:
        """The shape, moved down by y."""
        if not shape:
            return ""
        if known := self._known.get(shape):
            down = f' y="{short(y)}"' if y else ""
            return f'<use href="#{known}"{down}/>'
        ident = self._known[shape] = f"shape-{len(self._known) + 1}"
        made = f'<g class="drawn" id="{ident}">{shape}</g>'
        return f'<g transform="translate(0 {short(y)})">{made}</g>' if y else made


def picture(scene: Scene, shapes: Shapes, summary: str) -> str:
    """The whole run, without any script."""
    draw = _Picture(scene)
    high = TOP + draw.lane * scene["p"] + 4
    parts = [shapes.draw(draw.axis())]
    parts += [shapes.draw(draw.blocks(r), draw.y(r)) for r in range(scene["p"])]
    parts += [shapes.draw("".join(draw.bands())), shapes.draw("".join(draw.arrows()))]
    return (
        f'<svg width="{draw.wide}" height="{high}" viewBox="0 0 {draw.wide} {high}" '
        f'role="img" aria-label="{attr(summary)}">{"".join(parts)}</svg>'
    )


def lane_height(p: int) -> int:
    """Fewer lanes, more room for each."""
    return 52 if p <= 4 else 40 if p <= 8 else 28


def rounds(scene: Scene) -> bool:
    """Is logical time counted in rounds? Then what travels is drawn, not spans."""
    return bool(scene["modes"][0]["id"] == "rounds")


def width(scene: Scene) -> int:
    """Wide enough to label a typical block, narrow enough to scroll through."""
    end = scene["modes"][0]["end"] or 1
    if rounds(scene):
        return int(min(MOST, max(LEAST, 76 * end)))
    lengths = sorted(s[6] - s[5] for s in scene["spans"] if s[6] > s[5])
    typical = lengths[len(lengths) // 10] if lengths else end / 12
    return int(min(MOST, max(LEAST, room_of_label(scene) * end / typical)))


def room_of_label(scene: Scene) -> float:
    """Pixels that nearly every label fits in."""
    sizes = sorted(len(s[2] or s[1]) for s in scene["spans"]) or [2]
    return max(16.0, 7 * sizes[len(sizes) * 9 // 10] + 8)


class _Picture:
    """Draws a scene; every class it uses is in the style sheet."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.wide, self.lane = width(scene), lane_height(scene["p"])
        self.end = scene["modes"][0]["end"] or 1

    def x(self, t: float) -> float:
        return round(8 + t / self.end * (self.wide - 16), 1)

    def y(self, rank: int) -> float:
        return TOP + (rank + 0.5) * self.lane

    # Behind everything: time above, the lanes below it

    def axis(self) -> str:
        times = [(self.x(t), number(t)) for t in ticks(self.end, self.wide)]
        marks = "".join(f"M{short(x)} 17v5" for x, _ in times)
        lanes = [
            f'<path class="lane" d="M0 {short(self.y(r))}H{self.wide}"/>'
            for r in range(self.scene["p"])
        ]
        parts = [f'<path class="tick" d="{marks}"/>', _words("tick", times, 13)]
        return "".join([*parts, *self.phases(), *lanes])

    def phases(self) -> Iterator[str]:
        found = [(n, self.x(a) + 2, self.x(b) - 6) for n, a, b in self.scene["phases"]]
        if found:
            lines = (f"M{short(a)} {TOP - 3}H{short(b)}" for _, a, b in found)
            yield f'<path class="phase" d="{"".join(lines)}"/>'
            yield _words("phase", [((a + b) / 2, n) for n, a, b in found], TOP - 7)

    # In a lane, around its middle

    def blocks(self, rank: int) -> str:
        """What one rank does: its waits and its work, or what it sends."""
        if rounds(self.scene):
            return "".join(self.chips(rank))
        return "".join([self.waits(rank), *self.spans(rank)])

    def waits(self, rank: int) -> str:
        places = [
            (self.x(w[1]), self.x(w[2]) - self.x(w[1]))
            for w in self.scene["waits"][0]
            if w[0] == rank
        ]
        return _rects("wait", places, self.lane * 0.34)

    def spans(self, rank: int) -> Iterator[str]:
        """Outer spans first, each kind with its words on it."""
        mine = [s for s in self.scene["spans"] if s[0] == rank]
        for depth in sorted({s[4] for s in mine}):
            colors: dict[int, list[tuple[float, float]]] = defaultdict(list)
            words = []
            for _, name, label, color, _, start, end, *_ in _of(mine, depth):
                x, wide = self.x(start), self.x(end) - self.x(start)
                if wide <= 0:
                    continue
                colors[color].append((x, max(1, wide - 1.5)))
                text = label or name
                if len(text) * 6.5 + 4 <= wide:
                    words.append((x + wide / 2, text))
            high = max(10.0, self.lane * 0.62 - 8 * depth)
            for color, places in colors.items():
                yield _rects(f"span c{color}", places, high)
            yield _words("on", words, 4)

    def chips(self, rank: int) -> Iterator[str]:
        mine = [m for m in self.scene["messages"] if m[0] == rank]
        colors: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for m in mine:
            colors[m[3]].append((self.x(m[5]) + 2, CHIP))
        for color, places in colors.items():
            yield _rects(f"chip c{color}", places, CHIP)
        yield _words("on", [(self.x(m[5]) + 13, m[2][-3:]) for m in mine], 4)

    # From lane to lane

    def bands(self) -> Iterator[str]:
        """Collectives, one group of blocks for each kind and its ranks."""
        kinds: dict[tuple[Any, ...], list[tuple[float, float]]] = defaultdict(list)
        for group, name, color, _, start, end, *_ in self.scene["collectives"]:
            flat = 2.5 if end <= start else 0  # a moment is drawn around its time
            wide = max(5.0, self.x(end) - self.x(start) - 2)
            ends = (min(group), max(group))
            kinds[name, color, ends].append((self.x(start) - flat, wide))
        for (name, color, (low, high)), places in kinds.items():
            tall = self.y(high) - self.y(low) + self.lane * 0.88
            middle = (self.y(low) + self.y(high)) / 2
            made = _rects(f"band c{color}", places, tall, title=name)
            yield f'<g transform="translate(0 {short(middle)})">{made}</g>'

    def arrows(self) -> Iterator[str]:
        """Messages, one path a color: lines, and dots where they end."""
        lines: dict[int, list[str]] = defaultdict(list)
        dots: dict[int, list[str]] = defaultdict(list)
        before, after = (25, 6) if rounds(self.scene) else (0, 0)  # room for a chip
        for src, dst, _, color, _, sent, arrived, *_ in self.scene["messages"]:
            x1, x2 = self.x(sent) + before, self.x(arrived) - after
            tip = f"{short(x2)} {short(self.y(dst))}"
            lines[color].append(f"M{short(x1)} {short(self.y(src))}L{tip}")
            dots[color].append(f"M{tip}h0")
        for color, drawn in lines.items():
            yield f'<path class="message c{color}" d="{"".join(drawn)}"/>'
            yield f'<path class="dot c{color}" d="{"".join(dots[color])}"/>'


def _of(spans: Iterable[Sequence[Any]], depth: int) -> list[Sequence[Any]]:
    return [s for s in spans if s[4] == depth]


def _rects(
    kind: str, places: Iterable[tuple[float, float]], high: float, title: str = ""
) -> str:
    """Blocks of one kind, each from its x and as wide as it is."""
    made = "".join(f'<rect x="{short(x)}" width="{short(w)}"/>' for x, w in places)
    said = f"<title>{attr(title)}</title>" if title else ""
    style = f'style="--h:{short(high)}px"'
    return f'<g class="{kind}" {style}>{said}{made}</g>' if made else ""


def _words(kind: str, words: Iterable[tuple[float, str]], y: float) -> str:
    made = "".join(f'<text x="{short(x)}">{attr(text)}</text>' for x, text in words)
    at = f'transform="translate(0 {y})"'
    return f'<g class="{kind}" {at}>{made}</g>' if made else ""


def ticks(end: float, wide: float) -> list[float]:
    """Round times, about one every 90 pixels."""
    if end <= 0:
        return [0]
    raw = end / max(1, wide / 90)
    scale = 10.0 ** (len(f"{int(raw)}") - 1) if raw >= 1 else 1.0
    while raw < scale:
        scale /= 10
    step = next(k * scale for k in (1, 2, 5, 10) if k * scale >= raw * 0.999)
    return [round(i * step, 9) for i in range(int(end / step + 1e-9) + 1)]
