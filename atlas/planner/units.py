"""Numbers as people read them: bytes, seconds, counts."""

__all__ = ["count", "seconds", "size"]


def size(n: float) -> str:
    """Bytes, in powers of 1024."""
    for unit, power in (("TiB", 4), ("GiB", 3), ("MiB", 2), ("KiB", 1)):
        if abs(n) >= 1024**power:
            return f"{n / 1024**power:.3g} {unit}"
    return f"{n:.3g} bytes"


def seconds(t: float) -> str:
    """Seconds, with the unit that suits them."""
    for unit, below, factor in (("µs", 1e-3, 1e6), ("ms", 1.0, 1e3), ("s", 6e2, 1.0)):
        if t < below:
            return f"{t * factor:.3g} {unit}"
    return f"{t / 60:.3g} min" if t < 2 * 3600 else f"{t / 3600:.3g} h"


def count(n: float) -> str:
    """A count, in thousands."""
    for unit, power in (("T", 12), ("B", 9), ("M", 6), ("K", 3)):
        if abs(n) >= 10**power:
            return f"{n / 10**power:.3g} {unit}"
    return f"{n:.3g}"
