"""Virtual time: how long each rank computes, as a pure function of (rank, step).

Any rank may evaluate it for any other, so no time and no decision has to
travel in a message: a server knows by name whom it hears from next. Order of
arrival, staleness and loss are then the same on every run and every backend.

    clock = one_slow(rank=1, factor=3)
    clock(1, 0), clock(2, 0)       # (3.0, 1.0)
"""

import hashlib
from collections.abc import Callable

Clock = Callable[[int, int], float]


def constant(seconds: float = 1.0) -> Clock:
    """Every rank takes the same time for every step."""
    return lambda rank, step: seconds


def one_slow(*, rank: int, factor: float, seconds: float = 1.0) -> Clock:
    """One rank takes `factor` times as long as the others, always."""
    return lambda r, step: seconds * factor if r == rank else seconds


def one_pauses(*, rank: int, step: int, pause: float, seconds: float = 1.0) -> Clock:
    """One rank stands still once, for `pause` more, at one step."""
    return lambda r, s: seconds + pause if (r, s) == (rank, step) else seconds


def jitter(*, spread: float, seed: int = 0, seconds: float = 1.0) -> Clock:
    """Each step takes between 1 and 1 + spread times `seconds`, seeded."""
    return lambda rank, step: seconds * (1 + spread * _uniform(seed, rank, step))


def _uniform(*key: int) -> float:
    """A number in [0, 1) that depends on the key and on nothing else."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48
