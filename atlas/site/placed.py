"""Where its runs place a technique: the answers with their evidence, and the graph."""

from math import cos, pi, sin
from typing import Any

from atlas.classify.judged import judge
from atlas.site.templating import macro
from atlas.svg import short
from atlas.taxonomy import Technique
from atlas.views.context import Context

PARTS = "placed.html.j2"
RADIUS, MIDDLE = 62.0, 80.0


def section(ctx: Context, t: Technique) -> str:
    """The answers that runs gave, and who sent to whom; nothing if it was not run."""
    found = ctx.placed.get(t.id)
    if found is None:
        return ""
    answers = [j for j in judge(ctx.atlas, t, found) if j.measured is not None]
    seen = found["topology"]
    lines, dots = graph(seen, found["ranks"][-1])
    about = f"{t.path}.md", found["ranks"], ", ".join(seen["shapes"])
    return macro(PARTS, "placed", *about, answers, lines, dots)


def graph(
    seen: dict[str, Any], ranks: int
) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Messages as lines between ranks on a circle: ends and width; and the ranks."""

    def at(rank: int) -> tuple[float, float]:
        angle = 2 * pi * rank / ranks - pi / 2
        return MIDDLE + RADIUS * cos(angle), MIDDLE + RADIUS * sin(angle)

    both: dict[tuple[int, int], int] = {}
    for a, b, size in seen["edges"]:
        both[min(a, b), max(a, b)] = both.get((min(a, b), max(a, b)), 0) + size
    most = max(both.values(), default=1)
    lines = [
        (*map(short, (*at(a), *at(b))), short(1 + 4 * size / most))
        for (a, b), size in sorted(both.items())
    ]
    dots = [(*map(short, at(rank)), str(rank)) for rank in range(ranks)]
    return lines, dots
