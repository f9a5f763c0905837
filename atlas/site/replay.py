"""The replay of a recorded run: a figure that a script brings to life.

What is written here is the whole picture, lanes, blocks, arrows and byte
counts at the end of the run, so that a page without JavaScript shows it too.
docs/assets/js/replay.js redraws the same scene at any moment.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atlas.site.still import Shapes, lane_height, picture, rounds
from atlas.site.templating import markup, render, script_data
from atlas.site.text import number, raw

Scene = Mapping[str, Any]
FINEST = 1e-3  # milliseconds: scenes keep no more of the wall clock


def figure(scene: Scene, ident: str, caption: str, shapes: Shapes | None = None) -> str:
    """The figure in HTML: lanes, picture, bytes sent, and the scene as data."""
    said = summary(scene)
    made = render(
        "replay.html.j2",
        ident=ident,
        caption=caption,
        scene=scene,
        lane=lane_height(scene["p"]),
        summary=said,
        picture=markup(picture(scene, shapes or Shapes(), said)),
        bars=bars(scene),
        colors=colors(scene),
        works=not rounds(scene),
        data=markup(script_data(packed(scene))),
    )
    return raw(made.strip())


def colors(scene: Scene) -> dict[str, int]:
    """Which color is which; in rounds the labels say it themselves."""
    names: dict[str, int] = {}
    if not rounds(scene):
        names.update((s[1] or s[2], s[3]) for s in scene["spans"] if s[6] > s[5])
    names.update((c[1].split("× ")[-1], c[2]) for c in scene["collectives"])
    return names


def summary(scene: Scene) -> str:
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


# Bytes


def totals(scene: Scene) -> list[float]:
    """Bytes each rank has sent, or given to a collective, by the end."""
    moved = [0.0] * int(scene["p"])
    for m in scene["messages"]:
        moved[m[0]] += m[4]
    if not scene["messages"]:
        for c in scene["collectives"]:
            for r in c[0]:
                moved[r] += c[3]
    return moved


@dataclass(frozen=True)
class Bar:
    """A rank's bytes, and those predicted; shares are of the most, in percent."""

    moved: int
    share: str
    predicted: float | None
    mark: str


def bars(scene: Scene) -> list[Bar]:
    """One bar for each rank."""
    moved = totals(scene)
    said: Sequence[float | None] = scene.get("predicted") or [None] * len(moved)
    most = max([*moved, *(n for n in said if n is not None), 1])
    return [
        Bar(int(n), _percent(n / most), p, _percent((p or 0) / most))
        for n, p in zip(moved, said, strict=True)
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.2f}".rstrip("0").rstrip(".")


# The scene as the script reads it


def packed(scene: Scene) -> dict[str, Any]:
    """The scene in few bytes, as docs/assets/js/replay.js unpacks it.

    Words and groups of ranks are listed once and referred to by their place; times
    of the wall clock are whole ticks, a beginning and how long from there.
    """
    words, groups = _Listed(), _Listed()
    first, wall = scene["modes"]
    tick = _tick(wall["end"])

    def since(start: float, end: float) -> tuple[int, int]:
        begin = round(start / tick)
        # what took any time at all stays visible
        least = 1 if end > start else 0
        return begin, max(least, round(end / tick) - begin)

    last = round(math.ceil(round(wall["end"] / tick, 3)) * tick, 3)
    return dict(scene) | {
        "modes": [first, wall | {"end": last}],
        "tick": tick,
        "spans": [
            [s[0], words.at(s[1]), words.at(s[2]), *s[3:7], *since(*s[7:])]
            for s in scene["spans"]
        ],
        "messages": [
            [*m[:2], words.at(m[2]), *m[3:7], *since(*m[7:])] for m in scene["messages"]
        ],
        "collectives": [
            [groups.at(tuple(c[0])), words.at(c[1]), *c[2:6], *since(*c[6:])]
            for c in scene["collectives"]
        ],
        "waits": [
            scene["waits"][0],
            [[w[0], *since(*w[1:])] for w in scene["waits"][1]],
        ],
        "words": words.all(),
        "groups": groups.all(),
    }


def _tick(end: float) -> float:
    """A power of ten that cuts the run into some ten thousand moments."""
    if end <= 0:
        return FINEST
    return float(max(FINEST, 10.0 ** math.floor(math.log10(end / 5000))))


class _Listed:
    """Things by the place where they were first listed."""

    def __init__(self) -> None:
        self._places: dict[Any, int] = {}

    def at(self, thing: Any) -> int:
        return self._places.setdefault(thing, len(self._places))

    def all(self) -> list[Any]:
        return list(self._places)
