"""A contract: cases that a part must pass on every number of ranks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from exemplars.runtime import World

Options = Mapping[str, Any]


class Broken(Exception):
    """The part does not do what its contract says; one line, with numbers."""


@dataclass(frozen=True)
class Case:
    """One thing that must hold; the earlier, the smaller.

    What is `optional` may be refused with an error on every rank, but not be wrong.
    """

    name: str
    run: Callable[["World", Any, Options], None]
    optional: bool = False
    most: Callable[[int], int] | None = None  # bytes that all ranks may send, by p
    least: Callable[[int], int] | None = None


@dataclass(frozen=True)
class Contract:
    """What a part must do, what it looks like, and the cases."""

    id: str
    says: str
    fits: str  # what the reader's object may be
    cases: Sequence[Case]
    ranks: Sequence[int] = (1, 2, 3, 4)
    options: Sequence[str] = field(default=())  # of ours; the others are the part's
    called: bool = True  # or else the part is an object with methods


def close(
    what: str,
    value: Tensor,
    expected: Tensor,
    roundings: float,
    coarsest: torch.dtype | None = None,
) -> None:
    """Within so many roundings of the largest number; integers exactly.

    The roundings are of the tensor's dtype, or of the coarsest on the way to it.
    """
    if value.shape != expected.shape:
        raise Broken(
            f"{what} has shape {tuple(value.shape)}, not {tuple(expected.shape)}"
        )
    if value.dtype != expected.dtype:
        raise Broken(f"{what} has dtype {value.dtype}, not {expected.dtype}")
    if not expected.numel():
        return
    off = (value.double() - expected.double()).abs()
    if not value.is_floating_point():
        limit = 0.0
    else:
        eps = torch.finfo(coarsest or value.dtype).eps
        limit = roundings * eps * expected.double().abs().max().item()
    worst = int(off.argmax())
    if not off.flatten()[worst].item() <= limit:  # or not a number
        raise Broken(
            f"{what}: element {worst} is {value.flatten()[worst].item():.6g}, not "
            f"{expected.flatten()[worst].item():.6g}"
        )
