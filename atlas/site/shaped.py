"""The study on links of known speed, as a section of a page: all from its record."""

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

from atlas.site.evidence import badge
from atlas.site.text import attr, listing, md, number, raw

WIDE, HIGH = 400, 340
LEFT, RIGHT, ABOVE, BELOW = 50, 12, 12, 40
MARK = 3.5
NEAR = 0.05
Json = dict[str, Any]


def shaped_section(study: Json) -> str:
    """Below a heading of the page's own: verdict, plot, tables, findings."""
    parts = [_intro(study), _verdict(study), raw(_figure(study))]
    for p in study["given"]["nodes"]:
        rows = [r for r in study["rows"] if r["nodes"] == p]
        parts += [f"### {p} nodes {{ #shaped-link-{p} }}", _table(study, rows)]
        parts.append(raw(_every(study, rows, p)))
    found = "\n".join(f"- {finding}" for finding in findings(study))
    parts += ["### What was found { #shaped-link-found }", found]
    return "\n\n".join(parts) + "\n"


def _intro(study: Json) -> str:
    given = study["given"]
    rates = listing(f"{rate / 1e6:g}" for rate in given["rates"])
    sizes = given["sizes"]
    at_once = f"{given['burst_seconds'] * 1e3:g} ms"
    return (
        f"Here the communication term stands alone. Each of "
        f"{listing(given['nodes'], 'or')} nodes is a network namespace of its own; "
        f"what leaves it is held to {rates} Mbit/s (tc-tbf). A full frame has "
        f"{given['frame']} bytes, of which {given['payload']} are payload, and an "
        f"acknowledgement {given['acknowledgement']}: the time of a byte follows from "
        f"the declared rate. The latency is that of messages of {given['small']} "
        f"bytes. Judged are {sizes[0] / 1e6:g} to {sizes[-1] / 1e6:g} MB, on which "
        f"nothing was fitted. After a rest, {at_once} of sending pass at once; the "
        "predictions allow for that. `python3 -m atlas.planner.accuracy.shaped` does "
        "it again."
    )


def _verdict(study: Json) -> str:
    judged, goal = study["summary"]["judged"], study["given"]["goal"]
    held = judged["median"] <= goal
    told = badge("held") if held else badge("not held", "bad")
    text = (
        f"**Median error {judged['median']:.1%}** over {judged['rows']} rows of gloo's "
        f"exchanges, failures included; at most {goal:.0%} was promised: {told}. With "
        f"the formula of every exchange's name, whatever gloo does under it, it would "
        f"be {judged['named_median']:.1%}; see what was found. "
        f"Worst {judged['worst']:.0%}; ParaDL's accuracy, the mean of 1 − |predicted − "
        f"measured| / measured, is {judged['accuracy']:.1%}. Bytes on the wire: median "
        f"{judged['wire_median']:.2%} from what was said, worst "
        f"{judged['wire_worst']:.1%}.{_ours(study)}"
    )
    load = study["machine"]["load"]
    busy = f"{load[0]:g} before and {load[1]:g} after"
    return (
        f"{text}\n\n*Recorded {md(study['recorded'])} on {study['machine']['cores']} "
        f"cores, Linux {md(study['machine']['kernel'])}, torch "
        f"{md(study['versions']['torch'])}; load {busy}.*"
    )


def _ours(study: Json) -> str:
    ours = study["summary"].get("ours")
    if ours is None:
        return ""
    return (
        f" The exemplars, written by hand, lie beside and are not judged: median "
        f"{ours['median']:.1%} over {ours['rows']} rows."
    )


def _names(rows: Sequence[Json]) -> list[str]:
    return list(dict.fromkeys(r["exchange"] for r in rows))


def took_turns(r: Json) -> bool:
    """Whether it is nearer to one direction after the other than to both at once."""
    seen = r["seconds"]
    return "turns" in r and abs(r["turns"] - seen) < abs(r["predicted"] - seen)


# --- the plot


def _figure(study: Json) -> str:
    rows, says = study["rows"], study["exchanges"]
    colors = {name: i % 9 for i, name in enumerate(_names(rows))}
    key = "".join(
        f'<span style="white-space:nowrap"><span class="k c{i}" style="background:'
        f'var(--c);display:inline-block"></span> {attr(_label(says[name]))}</span>'
        for name, i in colors.items()
    )
    shapes = "a circle is 2 nodes, a square more; on the line they agree"
    return (
        '<figure class="chart" style="max-width:32rem"><figcaption>Measured against '
        f"predicted seconds, both logarithmic; {shapes}.</figcaption>"
        f"{_plot(rows, says, colors)}"
        f'<p class="curve-key">{key}</p></figure>'
    )


def _label(exchange: Json) -> str:
    ours = " (ours)" if exchange["by"] == "ours" else ""
    return f"{exchange['says']}{ours}"


def _plot(rows: Sequence[Json], says: Json, colors: dict[str, int]) -> str:
    values = [r[k] for r in rows for k in ("seconds", "predicted")]
    low = math.floor(math.log10(min(values)) * 2) / 2
    high = math.ceil(math.log10(max(values)) * 2) / 2

    def x(value: float) -> float:
        share = (math.log10(value) - low) / (high - low)
        return round(LEFT + share * (WIDE - LEFT - RIGHT), 1)

    def y(value: float) -> float:
        share = (math.log10(value) - low) / (high - low)
        return round(HIGH - BELOW - share * (HIGH - ABOVE - BELOW), 1)

    ends = 10**low, 10**high
    line = " ".join(f"{x(v)},{y(v)}" for v in ends)
    marks = "".join(_mark(r, says, colors, x, y) for r in rows)
    middle = (LEFT + WIDE - RIGHT) / 2
    return (
        f'<svg class="curve" viewBox="0 0 {WIDE} {HIGH}" role="img" '
        f'aria-label="{attr(_spoken(rows))}">{"".join(_axes(low, high, x, y))}'
        f'<polyline class="predicted" points="{line}"/>{marks}'
        f'<text x="{middle}" y="{HIGH - 6}">predicted seconds</text></svg>'
    )


def _axes(
    low: float, high: float, x: Callable[[float], float], y: Callable[[float], float]
) -> Iterator[str]:
    for k in range(math.ceil(low), math.floor(high) + 1):
        for step in (1, 3):
            v = step * 10.0**k
            if v > 10**high * 1.001:
                continue
            yield (
                f'<line class="grid" x1="{LEFT}" x2="{WIDE - RIGHT}" y1="{y(v)}" '
                f'y2="{y(v)}"/><text class="left" x="{LEFT - 6}" y="{y(v) + 4}">'
                f'{v:g}</text><text x="{x(v)}" y="{HIGH - BELOW + 16}">{v:g}</text>'
            )


def _mark(
    r: Json,
    says: Json,
    colors: dict[str, int],
    x: Callable[[float], float],
    y: Callable[[float], float],
) -> str:
    at, up = x(r["predicted"]), y(r["seconds"])
    tip = (
        f"{_label(says[r['exchange']])}, {r['nodes']} nodes, {r['rate'] / 1e6:g} "
        f"Mbit/s, {r['bytes'] / 1e6:g} MB: {_seconds(r['seconds'])}, said "
        f"{_seconds(r['predicted'])}"
    )
    shape = (
        f'<circle cx="{at}" cy="{up}" r="{MARK}">'
        if r["nodes"] == 2
        else f'<rect x="{at - MARK:.1f}" y="{up - MARK:.1f}" width="{2 * MARK:g}" '
        f'height="{2 * MARK:g}">'
    )
    close = "</circle>" if r["nodes"] == 2 else "</rect>"
    color = f'class="c{colors[r["exchange"]]}" style="fill:var(--c);fill-opacity:.75"'
    return f"<g {color}>{shape}<title>{attr(tip)}</title>{close}</g>"


def _spoken(rows: Sequence[Json]) -> str:
    near = sum(abs(r["error"]) <= NEAR for r in rows)
    above = sum(r["error"] < -NEAR for r in rows)
    return (
        f"Measured against predicted seconds of {len(rows)} exchanges: {near} within "
        f"{NEAR:.0%}, {above} slower than that, {len(rows) - near - above} faster"
    )


# --- the tables


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.1f} ms"


def _percent(value: float) -> str:
    return f"{round(value, 3) + 0.0:+.1%}".replace("-", "−")


def _table(study: Json, rows: Sequence[Json]) -> str:
    """By exchange: the median error at every rate, and bytes over the formula's."""
    rates = study["given"]["rates"]
    head = " | ".join(f"{rate / 1e6:g} Mbit/s" for rate in rates)
    out = [
        f"| exchange | {head} | payload / ideal | wire / payload | |",
        "|---|" + "--:|" * (len(rates) + 2) + "---|",
    ]
    for name in _names(rows):
        mine = [r for r in rows if r["exchange"] == name]
        cells = [
            _percent(median(r["error"] for r in mine if r["rate"] == rate))
            for rate in rates
        ]
        ideal = median(r["payload"] / r["ideal"] for r in mine)
        wire = median(max(r["wire"]) / r["payload"] for r in mine)
        turns = sum(map(took_turns, mine))
        note = f"{turns} of {len(mine)} took turns" if turns else ""
        out.append(
            f"| {md(_label(study['exchanges'][name]))} | {' | '.join(cells)} "
            f"| {ideal:.2f} | {wire:.3f} | {note} |"
        )
    out.append("")
    sizes = len(study["given"]["sizes"])
    out.append(
        f"*Errors: medians over {sizes} sizes, of what is really done; negative where "
        "it took longer than said.*"
    )
    return "\n".join(out)


def _every(study: Json, rows: Sequence[Json], p: int) -> str:
    """All rows, folded."""
    heads = ("exchange", "Mbit/s", "MB", "measured", "from", "to", "said", "error")
    head = "".join(f"<th>{h}</th>" for h in (*heads, "wire bytes", "said"))
    body = "".join(f"<tr>{''.join(_cells(study, r))}</tr>" for r in rows)
    return (
        f'<details class="ranks"><summary>All {len(rows)} rows, {p} nodes: medians, '
        "the fastest and the slowest, and bytes of the busiest node</summary>"
        '<div class="wide" tabindex="0" role="region" aria-label="Every row">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></details>"
    )


def _cells(study: Json, r: Json) -> Iterator[str]:
    yield f"<td>{attr(_label(study['exchanges'][r['exchange']]))}</td>"
    for text in (
        f"{r['rate'] / 1e6:g}",
        f"{r['bytes'] / 1e6:g}",
        *(_seconds(r[k]) for k in ("seconds", "fastest", "slowest", "predicted")),
        _percent(r["error"]),
        number(max(r["wire"])),
        number(max(r["wire_predicted"])),
    ):
        yield f"<td>{attr(text)}</td>"


# --- the findings


def findings(study: Json) -> list[str]:
    """What the formulas by name did not say."""
    return [*_other(study), *_turns(study)]


def _groups(study: Json) -> Iterator[tuple[str, int, list[Json]]]:
    """Rows by exchange and number of nodes, with the exchange's label."""
    for name in _names(study["rows"]):
        label = md(_label(study["exchanges"][name]))
        for p in study["given"]["nodes"]:
            rows = study["rows"]
            yield (
                label,
                p,
                [r for r in rows if (r["exchange"], r["nodes"]) == (name, p)],
            )


def _other(study: Json) -> Iterator[str]:
    """Where something else is done than the name says."""
    for label, p, rows in _groups(study):
        mine = [r for r in rows if "named" in r and not _same(r)]
        if not mine:
            continue
        why = md(study["exchanges"][mine[0]["exchange"]]["why"])
        more = median(r["payload"] / r["ideal"] for r in mine)
        bytes_ = f" {more:.2g} times the formula's bytes leave a node."
        by_name = median(abs(r["named_error"]) for r in mine)
        really = median(abs(r["error"]) for r in mine)
        yield (
            f"gloo's {label} on {p} nodes is {why}.{bytes_ if more > 1.01 else ''} The "
            f"formula of its name is off by {by_name:.0%}, that of what is done by "
            f"{really:.1%} (medians)."
        )


def _same(r: Json) -> bool:
    """Whether its name says what is done, as far as time goes."""
    return bool(abs(r["named"] - r["predicted"]) < 0.01 * r["predicted"])


def _turns(study: Json) -> Iterator[str]:
    """What the order of sending and receiving costs, and where it is seen."""
    swaps = {r["exchange"]: r for r in study["swaps"]}
    first, last = swaps["receive_first"], swaps["send_first"]
    counts = [
        f"{label} on {p} nodes ({turns} of {len(rows)} rows)"
        for label, p, rows in _groups(study)
        if (turns := sum(map(took_turns, rows)))
    ]
    where = f" It is seen in {listing(counts)}." if counts else ""
    yield (
        f"Receive first, then send. Two nodes swap {first['bytes'] / 1e6:g} MB at "
        f"{first['rate'] / 1e6:g} Mbit/s. If both post the receive first, it takes "
        f"{_took(first)}; if both send first, {_took(last)}, though the same bytes "
        f"cross the wires. Predicted are {_seconds(last['predicted'])} for both "
        f"directions at once and {_seconds(last['turns'])} for one after the other. "
        "Before gloo sends, the receiver's notice has to be there, and a notice waits "
        "in line behind the data of its own rank; so of two ranks that both send "
        f"first, the late one goes first, and then the other.{where}"
    )


def _took(r: Json) -> str:
    low, high = _seconds(r["fastest"]), _seconds(r["slowest"])
    return f"{_seconds(r['seconds'])} ({low} to {high})"
