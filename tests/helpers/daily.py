"""What of each exemplar is run with every change; the rest runs every night.

A changed exemplar is run whole before its record is made, and a record of older source
fails the build. The daily tests guard what all exemplars share, so each exemplar runs
once on gloo and once on the emulated GPU, on different numbers of ranks, with one of
its mutants and at one other size. `nox -s nightly -- -k NAME` runs all of one.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar
from zlib import crc32

import pytest

from atlas.taxonomy import Technique

T = TypeVar("T")


def one_of(technique: Technique, every: Sequence[T]) -> T:
    """The same one on every machine, and not the same for every technique."""
    return every[crc32(technique.id.encode()) % len(every)]


def allowed(technique: Technique, counts: Iterable[int]) -> list[int]:
    """The numbers of ranks that a technique can have, of these."""
    most = technique.max_ranks
    return [p for p in counts if technique.min_ranks <= p and (not most or p <= most)]


def marks(daily: bool) -> list[pytest.MarkDecorator]:
    """For the night, unless it is run with every change."""
    return [] if daily else [pytest.mark.nightly]
