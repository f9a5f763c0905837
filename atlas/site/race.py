"""The race of the strategies, from its study: plots, a table, and what surveys say."""

from collections.abc import Iterator
from math import floor
from typing import Any

from atlas.site.curve import ticks
from atlas.site.text import amount, attr, md
from atlas.views.context import Context, Json
from atlas.views.race import (
    CLAIMS,
    DIVERGED,
    LEFT_OUT,
    TASKS,
    TIES,
    groups,
    outdated,
    said,
    study,
    tied,
    verdict,
)

WIDE, HIGH = 640, 300
LEFT, RIGHT, ABOVE, BELOW = 46, 168, 10, 34
APART = 13.0  # of two labels
AXES = {"samples": "samples seen, by all ranks", "time": "virtual seconds"}
TOP = 4.0  # of the plots: what is above lies on the edge


def section(ctx: Context) -> Iterator[str]:
    """What the page of the sync-strategy axis shows of it."""
    found = study(ctx)
    if found is None:
        return
    given = found["given"]
    yield "## The race { #race }"
    seeds, grid = len(given["seeds"]), ", ".join(f"{r:g}" for r in given["grid"])
    yield (
        f"The exemplars themselves, on {given['ranks']} ranks, each learning from the "
        f"same number of samples in shares of {given['share']}. Every strategy runs at "
        f"its own best rate of one grid ({grid}), chosen on a seed of its own; lines "
        f"are means over {seeds} other seeds, bands the lowest and the highest. "
        "Bulk-synchronous SGD is in every plot, to compare with. Time is virtual: a "
        "rank's step lasts one second and messages nothing, so what is seen is waiting "
        "and staleness, not a network. Where a server is needed, one of the ranks "
        "serves. Choose a line in the legend to hide it. `atlas race` runs it again."
    )
    if old := outdated(ctx, found):
        names = ", ".join(ctx.atlas.techniques[id].name for id in old)
        yield f"*Recorded from an older source of the exemplars: {names}.*"
    yield '<div class="choices race" data-label="Show" markdown="1">'
    slow = f"rank 1 slower by a factor of {given['slowdown']}"
    for task in TASKS:
        for speed, words in (("equal", "equal ranks"), ("straggler", slow)):
            yield _choice(ctx, found["races"][task], task, speed, words)
    yield "</div>"
    yield from _ties(found["races"])
    yield "### What the surveys say, and what we see { #race-claims }"
    yield "\n".join(claims(found["races"]))
    yield from _sweep(found.get("sweep") or {})


def _ties(races: Json) -> Iterator[str]:
    """Which strategies end alike, why, and which do not race."""
    yield "### Why some of them tie { #race-ties }"
    for names, why in TIES:
        places = [md(task) for task in TASKS if tied(races[task], names)]
        seen = (
            f"equal on {' and '.join(places)}" if places else "not equal in this race"
        )
        yield f"- {', '.join(md(_short(n)) for n in names)} ({seen}): {md(why)}"
    yield "Not in the race:"
    reasons: dict[str, list[str]] = {}
    for name, why in LEFT_OUT.items():
        reasons.setdefault(why, []).append(md(_short(name)))
    yield "\n".join(
        f"- {', '.join(names)}: {md(why)}." for why, names in reasons.items()
    )


def _choice(ctx: Context, entries: Json, task: str, speed: str, words: str) -> str:
    """One task at one speed: two plots for each group of strategies, and the table."""
    lines = {n: e[speed] for n, e in entries.items() if speed in e}
    parts = [
        f'<section class="choice" markdown="1">\n\n### {md(task)}, {md(words)} '
        f"{{ #race-{task}-{speed} }}"
    ]
    number = {name: i for i, name in enumerate(lines)}
    for title, names in groups(ctx, entries):
        parts.append(_group(title, {n: lines[n] for n in names if n in lines}, number))
    parts += [_table(ctx, entries, lines), "</section>"]
    return "\n\n".join(parts)


def _group(title: str, lines: Json, number: dict[str, int]) -> str:
    """Two plots over one legend, as one block of HTML."""
    figures = [
        f"<figure>{_plot(lines, number, column, says)}</figure>"
        for column, says in enumerate(AXES.values())
    ]
    key = "".join(
        f'<button type="button" class="{_style(i)}" aria-pressed="true" '
        f'data-line="{number[n]}">{md(_short(n))}</button>'
        for i, n in enumerate(lines)
    )
    return (
        f'<div class="race-group"><p class="race-title">{md(title)}</p>'
        f'<div class="race-plots">{"".join(figures)}</div>'
        f'<p class="race-key">{key}</p></div>'
    )


def _style(i: int) -> str:
    """The color and the dashes of the i-th line of a plot."""
    return f"c{i % 9} d{i // 9}"


def _short(name: str) -> str:
    return name.replace("local-parallelism:", "local, ").replace("-", " ")


def _plot(lines: Json, number: dict[str, int], column: int, says: str) -> str:
    """Loss against one of the two, each line named where it ends."""
    curves = [line["curve"] for line in lines.values()]
    right = max(row[column] for curve in curves for row in curve)
    seen = [row[2] for curve in curves for row in curve if row[2] < DIVERGED]
    lowest = min(row[3] for curve in curves for row in curve)
    low = floor(2 * lowest) / 2  # so that what is alike can be told apart
    levels = [low + v for v in ticks(min(max(seen), TOP) - low)]
    top = levels[-1]

    def x(value: float) -> float:
        return round(LEFT + value / right * (WIDE - LEFT - RIGHT), 1)

    def y(value: float) -> float:
        share = (min(value, top) - low) / (top - low)
        return round(HIGH - BELOW - share * (HIGH - ABOVE - BELOW), 1)

    parts = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDE - RIGHT}" y1="{y(v)}" y2="{y(v)}"/>'
        f'<text class="left" x="{LEFT - 6}" y="{y(v) + 4}">{v:g}</text>'
        for v in levels
    ]
    parts += [
        f'<text x="{x(v)}" y="{HIGH - BELOW + 16}">{amount(v)}</text>'
        for v in ticks(right)
        if v <= right
    ]
    heights = spread([y(line["curve"][-1][2]) for line in lines.values()])
    for i, (name, line) in enumerate(lines.items()):
        end = (x(line["curve"][-1][column]), y(line["curve"][-1][2]))
        drawn = _line(name, line["curve"], column, x, y) + _label(name, end, heights[i])
        parts.append(f'<g class="{_style(i)}" data-line="{number[name]}">{drawn}</g>')
    middle = (LEFT + WIDE - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HIGH - 4}">{says}</text>')
    parts.append(
        f'<text class="axis" transform="translate(12 {(HIGH - BELOW) / 2}) '
        'rotate(-90)">loss</text>'
    )
    ends = "; ".join(f"{_short(n)} {said(c['curve'][-1][2])}" for n, c in lines.items())
    return (
        f'<svg class="curve race" viewBox="0 0 {WIDE} {HIGH}" role="img" '
        f'aria-label="{attr(f"Loss against {says}. Last losses: {ends}")}">'
        f"{''.join(parts)}</svg>"
    )


def _line(name: str, curve: list[list[float]], column: int, x: Any, y: Any) -> str:
    band = [(row[column], row[4]) for row in curve]
    band += [(row[column], row[3]) for row in reversed(curve)]
    area = " ".join(f"{x(a)},{y(b)}" for a, b in band)
    path = " ".join(f"{x(row[column])},{y(row[2])}" for row in curve)
    return (
        f'<title>{attr(_short(name))}</title><polygon points="{area}"/>'
        f'<polyline points="{path}"/>'
    )


def _label(name: str, end: tuple[float, float], height: float) -> str:
    """The name right of the plot, with a thin line to where the curve ends."""
    edge = WIDE - RIGHT
    return (
        f'<path class="leader" d="M{end[0]} {end[1]}L{edge + 4} {height}"/>'
        f'<text class="end" x="{edge + 7}" y="{height + 3.5}">{md(_short(name))}</text>'
    )


def spread(heights: list[float]) -> list[float]:
    """Heights of labels: in the same order, none on another, none below the plot."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    placed = dict[int, float]()
    above = float("-inf")
    for i in order:
        above = placed[i] = max(heights[i], above + APART)
    below = HIGH - BELOW + APART
    for i in reversed(order):
        below = placed[i] = min(placed[i], below - APART)
    return [round(placed[i], 1) for i in range(len(heights))]


def _table(ctx: Context, entries: Json, lines: Json) -> str:
    rows = [
        "| strategy | best rate | last loss | virtual seconds | staleness, mean (most) "
        "| sent by all | most alive on a rank |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, line in lines.items():
        t = ctx.atlas.techniques[entries[name]["technique"]]
        link = f"[{md(_short(name))}](../{t.path}.md)"
        if line["alone"]:
            age = f"{line['alone']} steps alone"
        elif line["staleness"] is None:
            age = "not told"
        else:
            age = f"{line['staleness']:.2f} ({line['oldest']})"
        _, at, loss, low, high = line["curve"][-1]
        rows.append(
            f"| {link} | {line['rate']:g} | {said(loss)} ({said(low)} to {said(high)}) "
            f"| {at:.0f} | {age} | {amount(line['bytes'])}B "
            f"| {amount(entries[name]['peak'])}B |"
        )
    return "\n".join(rows)


def claims(races: Json) -> list[str]:
    """By task: does the first end higher than the second, beyond the seeds' range?"""
    rows = ["| what is said | task | losses | seen here? |", "|---|---|---|---|"]
    for worse, better, says in CLAIMS:
        for task in TASKS:
            entries = races[task]
            if worse not in entries or better not in entries:
                continue
            a, b = (entries[n]["equal"]["curve"][-1] for n in (worse, better))
            ends = ((worse, a[2]), (better, b[2]))
            losses = ", ".join(f"{md(_short(n))} {said(loss)}" for n, loss in ends)
            rows.append(f"| {md(says)} | {md(task)} | {losses} | {verdict(a, b)} |")
    return rows


def _sweep(sweeps: Json) -> Iterator[str]:
    if not sweeps:
        return
    yield "### Batch size, serial time and compute { #race-sweep }"
    yield (
        "Laskin 2020 argues that beyond some batch size data parallelism has nothing "
        "left to give, and that layers which learn alone can still be spread. Steps to "
        "a loss, each at its best rate; serial time in forwards of one "
        "layer with a rank for every sample (backprop goes through four layers and "
        "back, chunks of two through two, greedy layers through one); compute is what "
        "all samples take together, local classifiers left out."
    )
    for task, found in sweeps.items():
        rates = ", ".join(f"{rate:g}" for rate in found["grid"])
        yield f"**{md(task)}**, to a loss of {found['target']:g}; rates {rates}:"
        yield "\n".join(_sweep_rows(found))


def _sweep_rows(found: Json) -> Iterator[str]:
    yield "| batch | " + " | ".join(md(_short(n)) for n in found["points"]) + " |"
    yield "|--:|" + "--:|" * len(found["points"])
    for points in zip(*found["points"].values(), strict=True):
        cells = [_sweep_cell(p, found["most"]) for p in points]
        yield f"| {points[0]['batch']} | " + " | ".join(cells) + " |"


def _sweep_cell(point: Json, most: int) -> str:
    if point["steps"] is None:
        return f"not in {most} steps"
    return (
        f"{point['steps']:.0f} steps, serial {amount(point['serial'])}, "
        f"compute {amount(point['compute'])}"
    )
