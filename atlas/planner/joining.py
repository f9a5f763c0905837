"""The work of several parts as that of one: most of it adds up."""

from typing import Any

from atlas.planner.blocks import block_work, embedding_work, head_work
from atlas.planner.records import Block, Work

__all__ = ["joined", "repeated", "stage_work"]

#: Of these fields the larger part's counts; `passed` is the last part's.
LARGEST = ("largest", "working", "working_cut", "seat_working")
#: Widths of the narrowest layer, and the field that counts such layers.
NARROWEST = {"narrow": "convolutions", "thin": "channelled"}


def repeated(w: Work, n: int) -> Work:
    """So many of the same, one after the other."""
    alike = (*LARGEST, *NARROWEST, "passed")
    return Work(**{f: x if f in alike else n * x for f, x in w._asdict().items()})


def joined(a: Work, b: Work) -> Work:
    """One part and the part after it."""
    return Work(**{field: _both(field, a, b) for field in Work._fields})


def _both(field: str, a: Work, b: Work) -> Any:
    """What two parts come to in one field: a number of the field's own type."""
    x, y = getattr(a, field), getattr(b, field)
    if field == "passed":
        return y
    if field in LARGEST:
        return max(x, y)
    if field in NARROWEST:  # of which a part may have no layers at all
        some, more = getattr(a, NARROWEST[field]), getattr(b, NARROWEST[field])
        return y if some == 0 else x if more == 0 else min(x, y)
    return x + y


def stage_work(b: Block, blocks: int, first: bool, last: bool) -> Work:
    """A stage of so many layers, with the embedding if first, the head if last.

    Source: Narayanan et al. 2021: a stage has an equal number of layers.
    """
    middle = repeated(block_work(b), blocks)
    front = joined(embedding_work(b), middle) if first else middle
    return joined(front, head_work(b, 0 if first else 1)) if last else front
