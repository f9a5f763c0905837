"""Aligns the tensors of many ranks with those of one process, and makes shards whole.

A tensor of p ranks becomes its *copies*: p of them if it is replicated, one if it is
sharded, two if it is sharded over half of the ranks and replicated over the rest.
DTensors say where their pieces belong; for other tensors it follows from the shapes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atlas.check.capture import Capture, Piece, Pieces


@dataclass
class Copy:
    """One whole tensor, and the ranks whose pieces it is made of."""

    tensor: Tensor
    ranks: tuple[int, ...]


Copies = dict[str, list[Copy]]


def aligned(one: Capture, rank: Capture) -> dict[str, str]:
    """This rank's names -> those of one process, where there is a counterpart."""
    ours, theirs = _start(rank), _start(one)
    same = {n: n for n in ours if n in theirs}
    if same:
        return same | _by_value(ours, theirs, same)
    by_suffix = _by_suffix(ours, theirs)
    if by_suffix:
        return by_suffix
    shapes = [_shape(p) for p in ours.values()]
    if shapes == [_shape(p) for p in theirs.values()]:
        return dict(zip(ours, theirs, strict=True))
    return _by_value(ours, theirs, {})


def _start(capture: Capture) -> Pieces:
    return capture.steps[0].weights if capture.steps else {}


def _shape(p: Piece) -> tuple[int, ...]:
    return p.shape if p.shape is not None else tuple(p.local.shape)


def _by_suffix(ours: Pieces, theirs: Pieces) -> dict[str, str]:
    """A wrapper puts its own name before every name."""
    found = {
        n: [t for t in theirs if n.endswith("." + t) or t.endswith("." + n)]
        for n in ours
    }
    return {n: max(t, key=len) for n, t in found.items() if t}


def _by_value(ours: Pieces, theirs: Pieces, known: Mapping[str, str]) -> dict[str, str]:
    """Stages of a pipeline count their layers anew, but start from the same bits."""
    free = {n: p.local for n, p in theirs.items() if n not in known.values()}
    found: dict[str, str] = {}
    for name, p in ours.items():
        if name in known or p.shape is not None:
            continue
        match = [n for n, t in free.items() if _equal(t, p.local)]
        if match:  # of several equal ones, such as zeros, the first that is left
            found[name] = match[0]
            del free[match[0]]
    return found


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)


def copies(
    pieces: Sequence[Pieces],
    names: Sequence[Mapping[str, str]],
    shapes: Mapping[str, tuple[int, ...]],
) -> Copies:
    """Every tensor of one process, as the ranks hold it together."""
    found: Copies = {}
    for name, shape in shapes.items():
        held = {
            r: own[mine]
            for r, own in enumerate(pieces)
            for mine, theirs in names[r].items()
            if theirs == name and mine in own
        }
        made = _copies(held, shape) if held else None
        if made:
            found[name] = made
    return found


def _copies(held: Mapping[int, Piece], shape: tuple[int, ...]) -> list[Copy] | None:
    first = next(iter(held.values()))
    if first.shape is not None:
        if first.shape != shape:
            return None
        if first.partial:
            total = sum((p.local.double() for p in held.values()), torch.tensor(0.0))
            return [Copy(total.to(first.local.dtype), tuple(held))]
        return _filled(held, shape)
    if all(tuple(p.local.shape) == shape for p in held.values()):
        return [Copy(p.local, (r,)) for r, p in held.items()]
    return _joined(held, shape)


def _filled(held: Mapping[int, Piece], shape: tuple[int, ...]) -> list[Copy]:
    """Pieces at their places; a place that is taken begins another copy."""
    begun: list[tuple[Tensor, Tensor, list[int]]] = []
    for rank, p in held.items():
        at = tuple(
            slice(o, o + n) for o, n in zip(p.offset, p.local.shape, strict=True)
        )
        free = next((copy for copy in begun if not copy[1][at].any()), None)
        if free is None:
            empty = torch.zeros(shape, dtype=p.local.dtype)
            free = empty, torch.zeros(shape, dtype=torch.bool), []
            begun.append(free)
        whole, taken, ranks = free
        whole[at], taken[at] = p.local, True
        ranks.append(rank)
    return [Copy(whole, tuple(ranks)) for whole, _, ranks in begun]


def _joined(held: Mapping[int, Piece], shape: tuple[int, ...]) -> list[Copy] | None:
    """Shards of a hand-written cut: side by side in one dimension, or flat, padded."""
    parts, ranks = [p.local for p in held.values()], tuple(held)
    for dim in range(len(shape)):
        lengths = [t.shape[dim] for t in parts if t.dim() == len(shape)]
        rest = [
            t.dim() == len(shape)
            and all(t.shape[d] == shape[d] for d in range(len(shape)) if d != dim)
            for t in parts
        ]
        if all(rest) and sum(lengths) == shape[dim]:
            return [Copy(torch.cat(parts, dim), ranks)]
    elements = math.prod(shape)
    padding = sum(t.numel() for t in parts) - elements
    if all(t.dim() == 1 for t in parts) and 0 <= padding < len(parts):
        return [Copy(torch.cat(parts)[:elements].reshape(shape), ranks)]
    return None
