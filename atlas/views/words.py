"""Numbers and lists as people write them."""

from collections.abc import Iterable

_THIN = "\u202f"  # a thin space between thousands that does not break


def number(value: object) -> str:
    """A count or a measure as people write it: 1 200 032, 7.1e-15, 0.3333."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, str):
        return value
    if not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}".replace(",", _THIN)
    if abs(value) >= 1e-3:
        return f"{value:.4g}"
    return f"{value:.1e}"


def amount(value: float) -> str:
    """A short figure for an axis: 1.2M, 40k, 6."""
    for scale, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:.3g}{unit}"
    return f"{value:.3g}"


def listing(items: Iterable[object], last: str = "and") -> str:
    """One, two and three."""
    words = [str(i) for i in items]
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"
