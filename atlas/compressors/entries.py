"""Who takes part: every exemplar of a compressor, and the settings it is given.

One whose name is not below takes part too, with the sizes of its own `main`.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from atlas.compressors.protocol import Compressor
from atlas.taxonomy import Technique
from atlas.views.compressors import PLAIN
from exemplars.runtime import defaults

SHARE = 100  # of how many entries a sparse compressor keeps one
GIVEN = ("steps", "local_batch", "rate")
#: By technique: settings other than those of its `main`, for a gradient of n entries.
SETTINGS: dict[str, Callable[[int], dict[str, Any]]] = {
    #: As many cells in a row of the table as two for each entry that is kept.
    "count-sketch": lambda n: {"columns": 2 * n // SHARE},
    #: Of each half of a node's sum, as a node has two ranks here.
    "hierarchical-top-k": lambda n: {"kept": n // SHARE // 2},
    #: From the first step on as few entries as later.
    "deep-gradient-compression": lambda n: {"warmup": 0},
    #: One of 64, the fewest that can be sent of a chunk.
    "momentum-components": lambda n: {"components": 1},
}


@dataclass(frozen=True)
class Entry:
    """A compressor in the study; it travels to the ranks by name."""

    name: str
    module: str

    @property
    def train(self) -> Compressor:
        """The exemplar's own."""
        return cast(Compressor, importlib.import_module(self.module).train)

    def settings(self, elements: int) -> dict[str, Any]:
        """What `train` is given beside steps, batch and rate."""
        asked = inspect.signature(self.train).parameters
        main = getattr(importlib.import_module(self.module), "main", None)
        offered: dict[str, Any] = defaults(main) if main else {}
        offered |= {"kept": elements // SHARE}
        offered |= SETTINGS.get(self.name, lambda n: {})(elements)
        mine = [name for name in asked if name not in ("w", "task", *GIVEN)]
        return {name: offered[name] for name in mine if name in offered}


@dataclass(frozen=True)
class Nature:
    """What is known of a compressor beforehand; tests hold it against runs."""

    draws: bool = False  # its messages depend on random numbers
    memory: bool = False  # what it did not send is carried to the next step
    scaled: bool = False  # the length of its update is not the gradient's


NATURES: Mapping[str, Nature] = {
    PLAIN: Nature(),
    "one-bit-sgd": Nature(memory=True),
    "one-bit-adam": Nature(memory=True, scaled=True),
    "qsgd": Nature(draws=True),
    "sign-majority-vote": Nature(scaled=True),
    "ternary-gradients": Nature(draws=True),
    "top-k-error-feedback": Nature(memory=True),
    "global-top-k": Nature(memory=True),
    "hierarchical-top-k": Nature(memory=True),
    "random-k": Nature(draws=True, memory=True),
    "deep-gradient-compression": Nature(memory=True, scaled=True),
    "momentum-components": Nature(memory=True, scaled=True),
    "powersgd": Nature(memory=True),
    "count-sketch": Nature(memory=True),
    "sparse-gradients": Nature(),
}


def nature(name: str) -> Nature:
    """Of a compressor; of one that is not known, nothing is assumed."""
    return NATURES.get(name, Nature(memory=True))


def plain() -> Entry:
    """The all-reduce that all are held to."""
    return Entry(PLAIN, "atlas.compressors.plain")


def entry(technique: Technique) -> Entry:
    """The technique's exemplar."""
    return Entry(technique.id, technique.module)
