"""The bubble playground: every named schedule, drawn and priced in the browser."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from atlas.schedule import GENERATORS, Placed, Schedule, generate
from atlas.site import address
from atlas.site.templating import macro, markup, script_data
from atlas.site.text import listing, number, raw
from atlas.views import bubbles
from atlas.views.bubbles import EXEMPLARS, FIRST, MESSAGES, NAMES, Figures, Row
from atlas.views.context import Context

HERE = "bubble.md"
SHOWN = ("zb-h1", "1f1b")
SECOND, LANE, LEFT = 22, 22, 52  # points of a second, of a rank, before the first


def first() -> tuple[int, int, dict[str, float]]:
    """Ranks, micro-batches and seconds that the page begins with."""
    return int(FIRST["p"]), int(FIRST["m"]), {k: FIRST[k] for k in "FBW"}


def playground(ctx: Context) -> str:
    """Controls, and the first two schedules drawn as they are without a script."""
    p, m, seconds = first()
    still = "".join(_still(generate(name, p, m), seconds) for name in SHOWN)
    told = {
        "first": {**FIRST, "a": SHOWN[0], "b": SHOWN[1], "v": bubbles.CHUNKS[0]},
        "names": NAMES,
        "free": [name for name, one in GENERATORS.items() if one.free],
        "folder": address.link(HERE, "assets/js/schedules/"),
        "ran": {name: bubbles.recorded(ctx, name) for name in GENERATORS},
        "pages": {name: _page(ctx, name) for name in GENERATORS},
    }
    made = macro(
        "bubble.html.j2",
        "playground",
        HERE,
        NAMES,
        FIRST,
        bubbles.RANKS,
        bubbles.MICROBATCHES,
        bubbles.CHUNKS,
        markup(still),
        markup(script_data(told)),
    )
    return raw(made)


def _page(ctx: Context, name: str) -> str:
    """The address of the schedule's technique from this page, if it has one."""
    t = ctx.atlas.techniques.get(EXEMPLARS[name])
    return address.link(HERE, f"{t.path}.md") if t else ""


def _still(schedule: Schedule, seconds: Mapping[str, float]) -> str:
    found = bubbles.figures(schedule, seconds, FIRST["message"])
    bars = [
        (r, [_block(schedule, r, x) for x in works])
        for r, works in enumerate(found.cost.ranks)
    ]
    wide = LEFT + round(SECOND * found.makespan) + 4
    high = LANE * len(bars)
    said = figures_said(found)
    name = NAMES[schedule.name]
    return macro("bubble.html.j2", "gantt", name, said, bars, wide, high, LANE)


def _block(schedule: Schedule, rank: int, placed: Placed) -> tuple[Any, ...]:
    work, start, end = placed
    second = schedule.held(rank).index(work.stage) % 2 == 1
    x, wide = LEFT + SECOND * start, SECOND * (end - start)
    return work.kind, work.micro, round(x, 2), round(wide, 2), second


def figures_said(found: Figures) -> str:
    """One line of numbers, as the script writes it."""
    copies = "copy" if found.weights == 1 else "copies"
    return (
        f"{number(round(found.makespan, 3))} seconds, bubble {found.cost.bubble:.1%}, "
        f"at most {number(round(found.held, 2))} micro-batches held, "
        f"{number(found.weights)} {copies} of the weights"
    )


def ranking(ctx: Context) -> str:
    """The table for several costs of a message."""
    pages = {
        name: f"{t.path}.md" if (t := ctx.atlas.techniques.get(technique)) else ""
        for name, technique in EXEMPLARS.items()
    }
    made = macro("bubble.html.j2", "ranking", HERE, _rows(), MESSAGES, NAMES, pages)
    return raw(made)


def _rows() -> list[Row]:
    return bubbles.ranking(*first())


def turned(_: Context) -> str:
    """Who is overtaken by whom once messages cost something, as a sentence."""
    rows = _rows()
    free, dear = rows, sorted(rows, key=lambda row: row.cells[-1][0])
    best, then = (
        [NAMES[r.name] for r in some if r.cells[at][1] == 1]
        for some, at in ((free, 0), (dear, -1))
    )
    overtaken = sum(
        a.cells[0][0] < b.cells[0][0] and a.cells[-1][0] > b.cells[-1][0]
        for a in rows
        for b in rows
    )
    pairs = f"{overtaken} pairs of schedules" if overtaken != 1 else "One pair"
    return (
        f"With free messages {listing(best)} {'is' if len(best) == 1 else 'are'} "
        f"fastest; with messages as long as a forward pass, {listing(then)}. {pairs} "
        "change places in between: more stages per rank mean more messages on the "
        "way of each micro-batch."
    )


def scripts() -> dict[str, str]:
    """A file for each schedule, which the page loads when it is chosen."""
    return {
        f"assets/js/schedules/{name}.js": (
            f"(window.atlasSchedules ??= {{}})[{json.dumps(name)}] = "
            f"{json.dumps(bubbles.packed(name), separators=(',', ':'))}\n"
        )
        for name in GENERATORS
    }


# What the hand-written page may mark, as `{{ name }}`.
PLACES: Mapping[str, Callable[[Context], object]] = {
    "assets": lambda _: address.assets(
        HERE, "bubble.css", "permalink.js", "bubble_cost.js", "bubble.js"
    ),
    "playground": playground,
    "ranking": ranking,
    "turned": turned,
    "first_p": lambda _: first()[0],
    "first_m": lambda _: first()[1],
}
