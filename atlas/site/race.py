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
    TASKS,
    said,
    source,
    study,
    verdict,
)

WIDE, HIGH = 640, 300
LEFT, RIGHT, ABOVE, BELOW = 46, 10, 10, 34
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
        "Time is virtual: a rank's step lasts one second and messages nothing, so "
        "what is seen is waiting and staleness, not a network. Where a server is "
        "needed, one of the ranks serves. Choose a line in the legend to hide it. "
        "`atlas race` runs it again."
    )
    if found["source"] != source(ctx, found):
        yield "*Recorded from an older source of the exemplars.*"
    yield '<div class="choices race" data-label="Show" markdown="1">'
    slow = f"rank 1 slower by a factor of {given['slowdown']}"
    for task in TASKS:
        for speed, words in (("equal", "equal ranks"), ("straggler", slow)):
            yield _choice(ctx, found["races"][task], task, speed, words)
    yield "</div>"
    yield "### What the surveys say, and what we see { #race-claims }"
    yield "\n".join(claims(found["races"]))
    yield from _sweep(found.get("sweep") or {})


def _choice(ctx: Context, entries: Json, task: str, speed: str, words: str) -> str:
    """One task at one speed: two plots over one legend, and the table."""
    lines = {n: e[speed] for n, e in entries.items() if speed in e}
    figures = [
        f"<figure>{_plot(lines, column, says)}</figure>"
        for column, says in enumerate(AXES.values())
    ]
    key = "".join(
        f'<button type="button" class="c{i % 9} d{i // 9}" aria-pressed="true" '
        f'data-line="{i}">{md(_short(n))}</button>'
        for i, n in enumerate(lines)
    )
    parts = [
        f'<section class="choice" markdown="1">\n\n### {md(task)}, {md(words)} '
        f"{{ #race-{task}-{speed} }}",
        f'<div class="race-plots">{"".join(figures)}</div>'
        f'<p class="race-key">{key}</p>',
        _table(ctx, entries, lines),
        "</section>",
    ]
    return "\n\n".join(parts)


def _short(name: str) -> str:
    return name.replace("local-parallelism:", "local, ").replace("-", " ")


def _plot(lines: Json, column: int, says: str) -> str:
    """Loss against one of the two, all strategies."""
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
    for i, (name, line) in enumerate(lines.items()):
        parts.append(_line(i, name, line["curve"], column, x, y))
    middle = (LEFT + WIDE - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HIGH - 4}">{says}</text>')
    ends = "; ".join(f"{_short(n)} {said(c['curve'][-1][2])}" for n, c in lines.items())
    return (
        f'<svg class="curve race" viewBox="0 0 {WIDE} {HIGH}" role="img" '
        f'aria-label="{attr(f"Loss against {says}. Last losses: {ends}")}">'
        f"{''.join(parts)}</svg>"
    )


def _line(
    i: int, name: str, curve: list[list[float]], column: int, x: Any, y: Any
) -> str:
    band = [(row[column], row[4]) for row in curve]
    band += [(row[column], row[3]) for row in reversed(curve)]
    area = " ".join(f"{x(a)},{y(b)}" for a, b in band)
    path = " ".join(f"{x(row[column])},{y(row[2])}" for row in curve)
    return (
        f'<g class="c{i % 9} d{i // 9}" data-line="{i}"><title>{attr(_short(name))}'
        f'</title><polygon points="{area}"/><polyline points="{path}"/></g>'
    )


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
