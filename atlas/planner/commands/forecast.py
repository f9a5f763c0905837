"""A prediction on a terminal: stacked bars, tables, sentences, and as JSON."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from atlas.planner import budget
from atlas.planner.findings import NAMES
from atlas.planner.prediction import Prediction
from atlas.planner.units import count, seconds, size

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

WIDTH = 48  # of a bar, in characters
COLOURS = ("blue", "cyan", "magenta", "yellow", "green", "red", "bright_blue", "white")
MARKS = "█▓▒░"  # bars stay readable where there are no colors
MEMORY = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations",
    "buffers": "buffers",
}


def rows_of(names: dict[str, str], values: Any) -> list[tuple[str, float]]:
    """The parts of times or bytes that are not nothing, in words, as they come."""
    found = values._asdict().items()
    return [(names[name], value) for name, value in found if value > 0]


def stacked(values: Sequence[float], whole: float, width: int = WIDTH) -> "Text":
    """Parts of a whole as one bar; what is left of the whole stays empty."""
    from rich.text import Text

    bar = Text()
    done, at = 0.0, 0
    for i, value in enumerate(values):
        done += value
        until = min(width, round(width * done / whole)) if whole > 0 else at
        bar.append(MARKS[i % 4] * (until - at), COLOURS[i % len(COLOURS)])
        at = max(at, until)
    bar.append("·" * (width - at), "dim")
    return bar


def grid(columns: int, *right: int) -> "Table":
    """So many columns without lines; those named are set to the right."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    for i in range(columns):
        table.add_column(justify="right" if i in right else "left")
    return table


def lines(text: str = "") -> "Table":
    """A table with a head and nothing else."""
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), title=text)


def parts(rows: Iterable[tuple[str, float]], whole: float, show: Any) -> "Table":
    """Each part, with the mark that it has in the bar, its value and its share."""
    from rich.text import Text

    table = grid(4, 2, 3)
    for i, (name, value) in enumerate(rows):
        mark = Text(MARKS[i % 4], COLOURS[i % len(COLOURS)])
        table.add_row(mark, name, show(value), f"{value / whole:.1%}")
    return table


def collectives(p: Prediction) -> "Table":
    """Every collective of a step."""
    table = lines()
    for name in ("axis", "collective", "carries"):
        table.add_column(name)
    for name in ("ranks", "calls", "payload", "sent", "time"):
        table.add_column(name, justify="right")
    table.add_column("level")
    for c in p.collectives:
        table.add_row(
            *(c.axis, c.op, c.what, str(c.ranks), count(c.count)),
            *(size(c.payload), size(c.wire), seconds(c.seconds), c.level),
        )
    return table


def headline(p: Prediction) -> str:
    """The step's time with its band, and what it uses of the devices."""
    band = "not calibrated: no error band"
    if p.low < p.high:
        of = p.cluster.band.of
        band = f"{seconds(p.low)} to {seconds(p.high)}, from {of}"
    return (
        f"{seconds(p.seconds)} per step ({band}); {p.samples_per_second:.4g} samples "
        f"per second; {p.mfu:.1%} of peak (MFU), {p.hfu:.1%} with recomputation (HFU)"
    )


def room(p: Prediction) -> str:
    """Memory against the device's."""
    said = {
        "fits": "fits",
        "tight": "TIGHT: most runs this full crash",
        "does not fit": "DOES NOT FIT",
    }[p.verdict]
    return f"{size(sum(p.memory))} of {size(p.capacity)}: {said}"


def cost(
    p: Prediction, tokens: float | None, epochs: float | None, price: float | None
) -> str:
    """A whole training, in words; nothing without a budget."""
    if tokens is None and epochs is None:
        return ""
    c = budget.cost(p, tokens=tokens, epochs=epochs, price=price)
    said = (
        f"{c.steps:,} steps, {c.hours / 24:.3g} days, {c.gpu_hours:,.0f} device-hours"
    )
    if c.money is None:
        return f"{said}; no price known: give --price"
    return f"{said}, {c.money:,.0f} {c.currency} at {c.price:g} per device-hour"


def plain(p: Prediction) -> dict[str, Any]:
    """As JSON."""
    return {
        "model": p.model.name,
        "cluster": p.cluster.name,
        "strategy": str(p.strategy),
        "ranks": p.strategy.ranks,
        "batch": p.train.batch,
        "micro_batch": p.micro_batch,
        "micro_batches": p.micro_batches,
        "recompute": p.train.recompute,
        "precision": p.train.precision.name,
        "optimizer": p.train.optimizer.name,
        "seconds": p.seconds,
        "low": p.low,
        "high": p.high,
        "band": p.cluster.band.of,
        "times": p.times._asdict(),
        "memory": p.memory._asdict(),
        "bytes": sum(p.memory),
        "capacity": p.capacity,
        "fits": p.fits,
        "verdict": p.verdict,
        "mfu": p.mfu,
        "hfu": p.hfu,
        "samples_per_second": p.samples_per_second,
        "binds": p.binds,
        "collectives": [vars(c) for c in p.collectives],
        "findings": [vars(f) for f in p.findings],
    }


def plain_cost(
    p: Prediction, tokens: float | None, epochs: float | None, price: float | None
) -> dict[str, Any] | None:
    """A whole training as JSON; None without a budget."""
    if tokens is None and epochs is None:
        return None
    return vars(budget.cost(p, tokens=tokens, epochs=epochs, price=price))


def times_of(p: Prediction) -> list[tuple[str, float]]:
    """Where the time goes."""
    return rows_of(NAMES, p.times)


def memory_of(p: Prediction) -> list[tuple[str, float]]:
    """What the fullest rank holds."""
    return rows_of(MEMORY, p.memory)
