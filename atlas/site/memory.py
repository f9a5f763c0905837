"""Memory over time: every live byte of a recorded run, stacked by category."""

from collections.abc import Iterator, Sequence
from typing import Any

from atlas.site.curve import ticks
from atlas.site.text import amount, attr, md
from atlas.svg import corners

WIDE, HIGH = 640, 230
LEFT, RIGHT, ABOVE, BELOW = 58, 8, 10, 26
POINTS = 120  # at most, so that a page stays light; extremes are kept

Json = dict[str, Any]


def section(run: Json | None) -> Iterator[str]:
    """The plot of the rank that held most, and a table for those who cannot see it."""
    found = _fullest(run) if run else None
    if found is None:
        return
    rank, series = found
    names = [n for n in _order(series) if max(series[n])]
    yield "### Memory over time { #memory-over-time }"
    peak = max(map(sum, zip(*(series[n] for n in names), strict=True)))
    yield (
        f"Every byte of every tensor that was alive on rank {rank}, which held most, "
        "from birth to death: counted, not sampled. The step is one birth or death; "
        f"the peak is {amount(peak)}B."
    )
    keys = "".join(
        f'<span class="k c{i % 9}" style="background:var(--c)"></span>{md(_words(n))} '
        f"({amount(max(series[n]))}B)"
        for i, n in enumerate(names)
    )
    yield f'<figure class="memory">{draw(names, series)}</figure>'
    yield f'<p class="curve-key">{keys}</p>'


def _fullest(run: Json) -> tuple[int, dict[str, list[int]]] | None:
    """The rank with the highest peak, and its series."""
    best: tuple[int, dict[str, list[int]]] | None = None
    most = -1
    for rank in run["ranks"]:
        memory = rank.get("memory") or {}
        series = memory.get("series")
        if series and memory["peak"]["total"] > most:
            most = memory["peak"]["total"]
            best = int(rank["rank"]), series
    return best


def _order(series: dict[str, list[int]]) -> list[str]:
    """What stays at the bottom, what comes and goes above it."""
    first = [n for n in series if n not in ("activations", "other")]
    held = sorted(first, key=lambda n: (-min(series[n][len(series[n]) // 2 :]), n))
    return [*held, *(n for n in ("activations", "other") if n in series)]


def _words(name: str) -> str:
    return name.replace("_", " ")


def draw(names: Sequence[str], series: dict[str, list[int]]) -> str:
    """Areas on top of one another; colors come from the style sheet."""
    picks = _picks([sum(row) for row in zip(*(series[n] for n in names), strict=True)])
    top = ticks(max(sum(series[n][i] for n in names) for i in picks) or 1)[-1]
    last = max(len(series[names[0]]) - 1, 1)

    def x(i: int) -> int:  # whole pixels: half the text
        return round(LEFT + i / last * (WIDE - LEFT - RIGHT))

    def y(value: float) -> int:
        return round(HIGH - BELOW - value / top * (HIGH - ABOVE - BELOW))

    parts = []
    for v in ticks(top):
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDE - RIGHT}" y1="{y(v)}" '
            f'y2="{y(v)}"/><text class="left" x="{LEFT - 6}" y="{y(v) + 4}">'
            f"{amount(v)}B</text>"
        )
    below = dict.fromkeys(picks, 0)
    for k, name in enumerate(names):
        above = {i: below[i] + series[name][i] for i in picks}
        edge = [(i, above[i]) for i in picks]
        back = [(i, below[i]) for i in reversed(picks)]
        points = corners((x(i), y(v)) for i, v in [*edge, *back])
        title = f"<title>{attr(_words(name))}</title>"
        parts.append(f'<polygon class="c{k % 9}" points="{points}">{title}</polygon>')
        below = above
    middle = (LEFT + WIDE - RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{HIGH - 6}">births and deaths of tensors</text>'
    )
    told = ", ".join(f"{_words(n)} at most {amount(max(series[n]))}B" for n in names)
    label = attr(f"Live bytes over time, stacked: {told}")
    return (
        f'<svg class="curve memory" viewBox="0 0 {WIDE} {HIGH}" role="img" '
        f'aria-label="{label}">{"".join(parts)}</svg>'
    )


def _picks(totals: Sequence[int]) -> list[int]:
    """Which moments are drawn: all, or of each stretch its highest and lowest."""
    if len(totals) <= POINTS:
        return list(range(len(totals)))
    stretch = -(-2 * len(totals) // POINTS)
    picks = {0, len(totals) - 1}
    for start in range(0, len(totals), stretch):
        inside = range(start, min(start + stretch, len(totals)))
        picks |= {max(inside, key=totals.__getitem__)}
        picks |= {min(inside, key=totals.__getitem__)}
    return sorted(picks)
