"""The replay of a recorded run: a figure that a script brings to life.

What is written here is the whole picture, lanes, blocks, arrows and byte
counts at the end of the run, so that a page without JavaScript shows it too.
docs/assets/js/replay.js redraws the same scene at any moment.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from atlas.site.text import attr, number, raw

TOP = 44  # above the first lane: the time axis
LEAST, MOST = 560, 4200  # the drawing's width in pixels


def figure(scene: Mapping[str, Any], ident: str, caption: str) -> str:
    """The figure in HTML: lanes, picture, bytes sent, and the scene as data."""
    lane = lane_height(scene["p"])
    data = json.dumps(scene, separators=(",", ":"), ensure_ascii=True)
    data = data.replace("<", "\\u003c").replace(">", "\\u003e")
    data = data.replace("&", "\\u0026").replace("`", "\\u0060")
    made = "\n".join(
        [
            f'<figure class="replay" id="{attr(ident)}" style="--lane:{lane}px">',
            '<div class="replay-stage">',
            _labels(scene["p"]),
            '<div class="replay-scroll" tabindex="0" role="group" '
            f'aria-label="{attr(summary(scene))}">{picture(scene)}</div>',
            _bytes(scene),
            "</div>",
            _legend(scene),
            f"<figcaption>{attr(caption)}{_cut_note(scene)}</figcaption>",
            f'<script type="application/json">{data}</script>',
            "</figure>",
        ]
    )
    return raw(made)


def _legend(scene: Mapping[str, Any]) -> str:
    """Which color is which; in rounds the labels say it themselves."""
    names: dict[str, int] = {}
    if not rounds(scene):
        names.update((s[1] or s[2], s[3]) for s in scene["spans"] if s[6] > s[5])
    names.update((c[1].split("× ")[-1], c[2]) for c in scene["collectives"])
    keys = [f'<span><i class="c{c}"></i>{attr(n)}</span>' for n, c in names.items()]
    if any(scene["waits"]) and not rounds(scene):
        keys.append('<span><i class="waiting"></i>waiting</span>')
    if scene["messages"] and not rounds(scene):
        keys.append('<span><i class="arrow c8"></i>message</span>')
    return f'<p class="replay-legend">{"".join(keys)}</p>' if keys else ""


def lane_height(p: int) -> int:
    """Fewer lanes, more room for each."""
    return 52 if p <= 4 else 40 if p <= 8 else 28


def summary(scene: Mapping[str, Any]) -> str:
    """What a reader who cannot see the picture is told."""
    mode = scene["modes"][0]
    parts = [f"Replay of a recorded run on {scene['p']} ranks"]
    for key, word in (
        ("spans", "spans"),
        ("messages", "messages"),
        ("collectives", "collective calls"),
    ):
        if scene[key]:
            parts.append(f"{len(scene[key])} {word}")
    parts.append(f"{mode['name'].lower()} 0 to {number(mode['end'])} {mode['unit']}")
    return ", ".join(parts).strip()


def _cut_note(scene: Mapping[str, Any]) -> str:
    if "of" not in scene:
        return ""
    return f" Drawn: the first {scene['shown']} of {scene['of']} things that happened."


def _labels(p: int) -> str:
    rows = "".join(f"<span>rank {r}</span>" for r in range(p))
    return f'<div class="replay-lanes" aria-hidden="true">{rows}</div>'


def totals(scene: Mapping[str, Any]) -> list[float]:
    """Bytes each rank has sent, or given to a collective, by the end."""
    moved = [0.0] * int(scene["p"])
    for m in scene["messages"]:
        moved[m[0]] += m[4]
    if not scene["messages"]:
        for c in scene["collectives"]:
            for r in c[0]:
                moved[r] += c[3]
    return moved


def _bytes(scene: Mapping[str, Any]) -> str:
    moved = totals(scene)
    said: Sequence[float] = scene.get("predicted") or []
    most = max([*moved, *said, 1])
    rows = []
    for r, n in enumerate(moved):
        mark = ""
        if r < len(said):
            place = f"left:{100 * said[r] / most:.2f}%"
            mark = f'<b style="{place}" title="predicted: {number(said[r])}"></b>'
        rows.append(
            f'<div><span class="replay-rank">rank {r}</span><span class="replay-bar">'
            f'<i style="width:{100 * n / most:.2f}%"></i>{mark}</span>'
            f"<output>{number(int(n))}</output></div>"
        )
    line = '<p class="replay-key">line: predicted</p>' if said else ""
    return (
        f'<div class="replay-bytes"><p>{attr(scene["moved"])}</p>'
        f"{''.join(rows)}{line}</div>"
    )


def width(scene: Mapping[str, Any]) -> int:
    """Wide enough to label a typical block, narrow enough to scroll through."""
    end = scene["modes"][0]["end"] or 1
    if rounds(scene):
        return int(min(MOST, max(LEAST, 76 * end)))
    lengths = sorted(s[6] - s[5] for s in scene["spans"] if s[6] > s[5])
    short = lengths[len(lengths) // 10] if lengths else end / 12
    return int(min(MOST, max(LEAST, room_of_label(scene) * end / short)))


def room_of_label(scene: Mapping[str, Any]) -> float:
    """Pixels that nearly every label fits in."""
    sizes = sorted(len(s[2] or s[1]) for s in scene["spans"]) or [2]
    return max(16.0, 7 * sizes[len(sizes) * 9 // 10] + 8)


def rounds(scene: Mapping[str, Any]) -> bool:
    """Is logical time counted in rounds? Then what travels is drawn, not spans."""
    return bool(scene["modes"][0]["id"] == "rounds")


def picture(scene: Mapping[str, Any]) -> str:
    """The whole run as an SVG, in the first mode of time."""
    wide, lane = width(scene), lane_height(scene["p"])
    high = TOP + lane * scene["p"] + 4
    draw = _Picture(scene, wide, lane)
    return (
        f'<svg width="{wide}" height="{high}" viewBox="0 0 {wide} {high}" role="img" '
        f'aria-label="{attr(summary(scene))}">{"".join(draw.all())}</svg>'
    )


class _Picture:
    """Draws a scene; every class it uses is in the style sheet."""

    def __init__(self, scene: Mapping[str, Any], wide: int, lane: int) -> None:
        self.scene, self.wide, self.lane = scene, wide, lane
        self.end = scene["modes"][0]["end"] or 1

    def x(self, t: float) -> float:
        return round(8 + t / self.end * (self.wide - 16), 1)

    def y(self, rank: int) -> float:
        return TOP + (rank + 0.5) * self.lane

    def all(self) -> Iterator[str]:
        yield from self.axis()
        if not rounds(self.scene):
            for w in self.scene["waits"][0]:
                yield self.wait(w)
            for s in self.scene["spans"]:
                yield self.span(s)
        for c in self.scene["collectives"]:
            yield self.collective(c)
        for m in self.scene["messages"]:
            yield self.message(m)

    def axis(self) -> Iterator[str]:
        for t in ticks(self.end, self.wide):
            x = self.x(t)
            yield (
                f'<line class="tick" x1="{x}" x2="{x}" y1="17" y2="22"/>'
                f'<text class="tick" x="{x}" y="13">{number(t)}</text>'
            )
        for name, start, end in self.scene["phases"]:
            x1, x2, over = self.x(start) + 2, self.x(end) - 6, TOP - 3
            yield (
                f'<line class="phase" x1="{x1}" x2="{x2}" y1="{over}" y2="{over}"/>'
                f'<text class="phase" x="{(x1 + x2) / 2:.1f}" y="{TOP - 7}">'
                f"{attr(name)}</text>"
            )
        for r in range(self.scene["p"]):
            y = self.y(r)
            yield f'<line class="lane" x1="0" x2="{self.wide}" y1="{y}" y2="{y}"/>'

    def wait(self, w: Sequence[float]) -> str:
        h = self.lane * 0.34
        y = self.y(int(w[0])) - h / 2
        return (
            f'<rect class="wait" x="{self.x(w[1])}" y="{y:.1f}" '
            f'width="{self.x(w[2]) - self.x(w[1]):.1f}" height="{h:.1f}"/>'
        )

    def span(self, s: Sequence[Any]) -> str:
        rank, name, label, color, depth, start, end = s[:7]
        x, wide = self.x(start), self.x(end) - self.x(start)
        if wide <= 0:
            return ""
        h = max(10.0, self.lane * 0.62 - 8 * depth)
        y = self.y(rank) - h / 2
        text = label or name
        word = ""
        if len(text) * 6.5 + 4 <= wide:
            word = (
                f'<text class="on" x="{x + wide / 2:.1f}" y="{self.y(rank) + 4:.1f}">'
                f"{attr(text)}</text>"
            )
        return (
            f'<rect class="span c{color}" x="{x}" y="{y:.1f}" rx="4" '
            f'width="{max(1, wide - 1.5):.1f}" height="{h:.1f}"/>{word}'
        )

    def message(self, m: Sequence[Any]) -> str:
        src, dst, label, color, _, sent, arrived = m[:7]
        chip = rounds(self.scene)
        x1, x2 = self.x(sent), self.x(arrived)
        y1, y2 = self.y(src), self.y(dst)
        out = ""
        if chip:
            out = (
                f'<rect class="chip c{color}" x="{x1 + 2}" y="{y1 - 11}" width="22" '
                f'height="22" rx="4"/><text class="on" x="{x1 + 13}" y="{y1 + 4}">'
                f"{attr(label[-3:])}</text>"
            )
            x1, x2 = x1 + 25, x2 - 6
        return (
            f'{out}<line class="message c{color}" x1="{x1:.1f}" y1="{y1}" '
            f'x2="{x2:.1f}" y2="{y2}"/>'
            f'<circle class="message c{color}" cx="{x2:.1f}" cy="{y2}" r="3.5"/>'
        )

    def collective(self, c: Sequence[Any]) -> str:
        group, name, color, _, start, end = c[:6]
        flat = 2.5 if end <= start else 0  # a moment is drawn around its time
        x, wide = self.x(start), max(5.0, self.x(end) - self.x(start) - 2)
        top = self.y(min(group)) - self.lane * 0.44
        high = self.y(max(group)) + self.lane * 0.44 - top
        return (
            f'<rect class="band c{color}" x="{x - flat:.1f}" y="{top:.1f}" rx="4" '
            f'width="{wide:.1f}" height="{high:.1f}"><title>{attr(name)}</title></rect>'
        )


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
