"""How far to trust the oracle: what is exact, what is published, what was measured."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from atlas import record
from atlas.planner.accuracy import published_view as published
from atlas.planner.units import seconds
from atlas.site import address, shaped
from atlas.site.text import attr, front, listing, md
from atlas.views.context import Context

__all__ = ["HERE", "page"]

HERE = "accuracy.md"
GOLDEN = "tests/planner/data/golden.json"
STUDIES = "measurements/studies"
#: Kahira et al. 2021: what its abstract says of itself, and the goals set by that.
PARADL_MEAN, PARADL_BEST = 0.8674, 0.9757
GOAL_MEAN, GOAL_DATA = 0.90, 0.976
WIDE, HIGH = 640, 420
LEFT, RIGHT, ABOVE, BELOW = 58, 12, 12, 40
Json = dict[str, Any]


def page(ctx: Context) -> str:
    """The four tiers, failures included."""
    parts = [
        front("How far to trust it"),
        address.assets(HERE, "studies.css", "race.js"),
        "# How far to trust it",
        "The oracle answers with numbers, and a number without an error is a guess. "
        "What can be counted is held to the byte; what has been published is held to "
        "every printed digit; what takes time is measured, and the page shows how "
        "far off the prediction was, failures included.",
        "## Exact: what can be counted { #exact }",
        _exact(ctx),
        "## Golden: what has been published { #golden }",
        *_golden(ctx),
        "## Published runs: GPUs that others had { #published }",
        *_published(ctx),
        "## Statistical: what takes time { #statistical }",
        *_statistical(ctx, _study(ctx, "accuracy")),
        "## On a shaped link: communication alone { #shaped }",
        _shaped(_study(ctx, "shaped-link")),
    ]
    return "\n\n".join(parts) + "\n"


def _study(ctx: Context, name: str) -> Json | None:
    path = ctx.root / STUDIES / f"{name}.json"
    if not path.is_file():
        return None
    found: Json = json.loads(path.read_text(encoding="utf-8"))
    return found


# Exact


def _exact(ctx: Context) -> str:
    claims = {
        t.id: [c for c in t.claims if c.kind in ("exact", "bound") and c.formula]
        for t in ctx.atlas.techniques.values()
    }
    rows = []
    for backend in ("gloo", "dry", "emulated"):
        found = [(t, ctx.record(t, backend)) for t in claims if claims[t]]
        kept = [(t, r) for t, r in found if r is not None]
        counted = sum(len(claims[t]) for t, _ in kept)
        rows.append(f"| {backend} | {len(kept)} | {counted} |")
    return "\n".join(
        [
            "Calls, bytes, rounds, parameters, saved activations and model states are "
            "formulas that a run refutes with `==`. What the meter counted of the "
            "recorded runs, against the formula, is a test of every build:",
            "",
            "| backend | techniques with a record | claims with a formula |",
            "|---|--:|--:|",
            *rows,
            "",
            "And the oracle itself: for every exemplar it predicts a strategy on a "
            "network of the exemplar's own sizes, and calls, bytes, held state, saved "
            "activations and the operations of all products, forward and backward, are "
            "those that the meter counted, of every rank or of the fullest, on "
            "gloo at 2 to 8 ranks and dry at 8, 64 and 1024, or as many as a technique "
            "allows (`tests/planner/test_oracle_exact.py`). What an exemplar keeps "
            "beyond its strategy, as spatial ones copy every map they convolve, is "
            "added there by name. Listed, with the reason of each, are the figures "
            "that no strategy predicts.",
            "",
            "Dry runs are the first, second and last rank; the emulated device checks "
            "what NCCL would refuse. Nothing here has been run on GPUs unless a "
            "technique's own page says so.",
        ]
    )


# Golden


def _golden(ctx: Context) -> Iterator[str]:
    path = ctx.root / GOLDEN
    if not path.is_file():
        return
    tables: Json = json.loads(path.read_text(encoding="utf-8"))
    yield (
        "Tables that others printed, and what they measured: the oracle is held "
        "against every cell (`tests/planner/test_oracle_golden.py`, in every run "
        "of the tests), by the digits that are printed or by an error that the test "
        "states:"
    )
    rows = ["| table | numbers | source |", "|---|--:|---|"]
    source = ""
    for name, table in tables.items():
        source = table.get("source", source)  # a table without one follows its like
        words = name.replace("_", " ")
        rows.append(f"| {md(words)} | {_numbers(table)} | {md(source)} |")
    yield "\n".join(rows)


def _numbers(value: Any) -> int:
    """How many there are in a table."""
    match value:
        case dict():
            return sum(_numbers(v) for v in value.values())
        case list():
            return sum(_numbers(v) for v in value)
        case bool() | str():
            return 0
    return 1


# Published runs


def _published(ctx: Context) -> Iterator[str]:
    shown = published.view(ctx.root)
    yield (
        "Tables of training runs whose whole layout was published: each row is "
        "predicted as it was run and held against what was measured. A few constants "
        "of each device are fitted on runs of a single node from one table; those "
        "rows are listed apart, and everything else is judged with nothing tuned. "
        "Bias below zero: predicted too fast. A band is what every prediction prints; "
        "it is made from all sets of the device, so the share that a band of the "
        "*other* sets holds is shown beside it. `atlas accuracy --published` prints "
        "the same."
    )
    head = [f"| {' | '.join(published.HEADS)} |", "|---" + "|--:" * 10 + "|"]
    rows = [
        f"| [{md(line.cells[0])}]({line.link}) | {' | '.join(line.cells[1:])} |"
        for line in shown.lines
    ]
    yield "\n".join([*head, *rows])
    yield "The goals, missed ones too:"
    yield "\n".join(f"- {md(line)}" for line in (*shown.goals, *shown.notes))
    yield "The worst row of each set, as predicted over measured:"
    yield "\n".join(f"- {md(line.set)}: {md(line.worst)}" for line in shown.lines)


# Statistical


def _statistical(ctx: Context, study: Json | None) -> Iterator[str]:
    if study is None:
        yield "*Not measured yet: `atlas accuracy` does it.*"
        return
    rows, told = study["rows"], study["summary"]
    yield (
        "ParaDL's own experiment at the size of one machine: its strategies on four "
        "small convolutional networks and on VGG-16 and ResNet-50, trained over gloo "
        "by the exemplars' code. The units of each network are timed in passes "
        "through all of it, at other batches than are judged, and with a quarter of "
        "their filters or channels where half is judged; exchanges are timed after "
        "some work, at sizes of their own; then the oracle adds up. Where ranks meet "
        "in every unit, the slower one's time of it counts, there and back; where they "
        "meet at the end of a pass, the longer pass; in a pipeline their mean, and "
        "while one stage waits, the other has the machine to itself and goes at the "
        "pace of a rank alone. Nothing is fitted to a step that is judged. All of that "
        "is done "
        f"{len(rows[0]['rounds'])} times over, and medians are shown. Accuracy is "
        "ParaDL's: one, less the relative error. Measured on "
        f"{study['machine']['cores']} cores, {study['recorded']}, torch "
        f"{study['versions']['torch']}; `atlas accuracy` measures again."
    )
    if study.get("source") != record.predictor(ctx.root):
        yield (
            "*The oracle's sources have changed since: some of what it predicted then "
            "it may predict otherwise now.*"
        )
    yield from _goals(told)
    yield f"<figure>{_plot(rows)}</figure>"
    yield "\n".join(_by_strategy(told["strategies"]))
    yield (
        "Four ranks on two cores take turns, and what they wait for is the scheduler: "
        "those rows are *oversubscribed*, are shown, and count toward no goal. There "
        "a quarter of the batch may be one of those that units were timed at: "
        f"{listing(_same_batch(study['given'])) or 'on no network'}."
    )
    yield (
        "Where samples are cut by rows, the cut goes between rows of the smallest "
        "map: of seven rows one rank has four. The oracle counts that rank's."
    )
    yield "### Which strategy is the fastest { #order }"
    yield "\n".join(_by_network(told["networks"]))
    yield "### Every step { #steps }"
    yield "\n".join(_steps(rows))


def _same_batch(given: Mapping[str, Json]) -> list[str]:
    """Networks whose batch, shared by four, is one that the profile has seen."""
    return [md(n) for n, g in given.items() if g["batch"] / 4 in g["calibrated"]]


def _goals(told: Json) -> Iterator[str]:
    data = told["strategies"].get("data", {}).get("mean")
    orders = [n["right"] == n["pairs"] for n in told["networks"].values()]
    lines = [
        "| | goal | measured | |",
        "|---|--:|--:|---|",
        _goal("mean of what runs on two ranks", GOAL_MEAN, told["mean"]),
        _goal("data parallelism", GOAL_DATA, data),
        f"| networks whose strategies are in the right order | {len(orders)} "
        f"| {sum(orders)} | {_word(all(orders))} |",
        "",
        f"ParaDL reports {PARADL_MEAN:.2%} on average and {PARADL_BEST:.2%} at best, "
        "for up to 1024 GPUs: another machine, so no contest.",
    ]
    yield "\n".join(lines)


def _goal(what: str, goal: float, found: float | None) -> str:
    if found is None:
        return f"| {what} | {goal:.1%} | | not measured |"
    return f"| {what} | {goal:.1%} | {found:.1%} | {_word(found >= goal)} |"


def _word(reached: bool) -> str:
    return "reached" if reached else "**missed**"


def _by_strategy(found: Mapping[str, Json]) -> Iterator[str]:
    yield "| strategy | ranks | mean | worst | on | rank correlation |"
    yield "|---|--:|--:|--:|---|--:|"
    for name, row in found.items():
        ranks = f"{row['ranks']}" + (", oversubscribed" if row["ranks"] > 2 else "")
        how = "" if row["correlation"] is None else f"{row['correlation']:.2f}"
        yield (
            f"| {md(name)} | {ranks} | {row['mean']:.1%} | {row['worst']:.1%} "
            f"| {md(row['of'])} | {how} |"
        )


def _by_network(found: Mapping[str, Json]) -> Iterator[str]:
    yield "| network | predicted, fastest first | measured | pairs in order |"
    yield "|---|---|---|--:|"
    for name, row in found.items():
        orders = [listing(row[key], "then") for key in ("predicted", "measured")]
        yield (
            f"| {md(name)} | {md(orders[0])} | {md(orders[1])} "
            f"| {row['right']} of {row['pairs']} |"
        )


def _steps(rows: Sequence[Json]) -> Iterator[str]:
    yield (
        "| network | strategy | predicted (by round) | measured (least to most) "
        "| accuracy |"
    )
    yield "|---|---|--:|--:|--:|"
    for row in rows:
        said = sorted(found for found, _ in row["rounds"])
        guess = f"{seconds(said[0])} to {seconds(said[-1])}"
        span = f"{seconds(row['fastest'])} to {seconds(row['slowest'])}"
        yield (
            f"| {md(row['network'])} | {md(row['strategy'])} "
            f"| {seconds(row['predicted'])} ({guess}) "
            f"| {seconds(row['measured'])} ({span}) | {row['accuracy']:.1%} |"
        )


def _plot(rows: Sequence[Json]) -> str:
    """Measured against predicted, both by decades; on the line they are equal."""
    values = [row[key] for row in rows for key in ("predicted", "measured")]
    low, high = math.log10(min(values)) - 0.1, math.log10(max(values)) + 0.1

    def x(value: float) -> float:
        share = (math.log10(value) - low) / (high - low)
        return round(LEFT + share * (WIDE - LEFT - RIGHT), 1)

    def y(value: float) -> float:
        share = (math.log10(value) - low) / (high - low)
        return round(HIGH - BELOW - share * (HIGH - ABOVE - BELOW), 1)

    marks = [10.0**k for k in range(math.ceil(low), math.floor(high) + 1)]
    parts = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDE - RIGHT}" y1="{y(v)}" y2="{y(v)}"/>'
        f'<text class="left" x="{LEFT - 6}" y="{y(v) + 4}">{seconds(v)}</text>'
        f'<text x="{x(v)}" y="{HIGH - BELOW + 16}">{seconds(v)}</text>'
        for v in marks
    ]
    ends = 10.0**low, 10.0**high
    parts.append(
        f'<line class="even" x1="{x(ends[0])}" y1="{y(ends[0])}" x2="{x(ends[1])}" '
        f'y2="{y(ends[1])}"/>'
    )
    names = list(dict.fromkeys(row["strategy"] for row in rows))
    for i, name in enumerate(names):
        dots = [
            f'<circle cx="{x(r["predicted"])}" cy="{y(r["measured"])}" r="5">'
            f"<title>{attr(_dot(r))}</title></circle>"
            for r in rows
            if r["strategy"] == name
        ]
        parts.append(f'<g class="c{i % 9}" data-line="{i}">{"".join(dots)}</g>')
    middle = (LEFT + WIDE - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HIGH - 4}">predicted; up: measured</text>')
    key = "".join(
        f'<button type="button" class="c{i % 9}" aria-pressed="true" '
        f'data-line="{i}">{md(name)}</button>'
        for i, name in enumerate(names)
    )
    label = f"Measured against predicted seconds of {len(rows)} steps; on the line both"
    return (
        f'<svg class="curve race dots" viewBox="0 0 {WIDE} {HIGH}" role="img" '
        f'aria-label="{attr(label)} are equal">{"".join(parts)}</svg>'
        f'<p class="race-key">{key}</p>'
    )


def _dot(row: Json) -> str:
    return (
        f"{row['network']}, {row['strategy']}: predicted "
        f"{seconds(row['predicted'])}, measured {seconds(row['measured'])}"
    )


def _shaped(study: Json | None) -> str:
    if study is None:
        return "*Not measured yet: `python3 -m atlas.planner.accuracy.shaped` does it.*"
    return shaped.shaped_section(study)
