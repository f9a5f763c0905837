"""Counts how many outputs of a module are held for backward at once.

    held = Held()
    layer.register_forward_hook(held)
    train(layer)
    held.most               # outputs whose graph was alive at the same time

A graph is alive while something can still reach it: an output that is kept, or a
loss that was computed from it. A copy that is being sent has no graph.
"""

import weakref

from torch import Tensor, nn


class _Mark:
    """Lives as long as the graph of an output that it is a hook of."""

    def __call__(self, gradient: Tensor) -> None:
        """Leave the gradient as it is."""


class Held:
    """A forward hook: how many outputs are held now, and how many were at most."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def __call__(self, module: nn.Module, inputs: object, output: Tensor) -> None:
        """One more, until its graph is gone; what has no graph is not held."""
        if not output.requires_grad:
            return
        mark = _Mark()
        output.register_hook(mark)
        weakref.finalize(mark, self._gone)
        self.now += 1
        self.most = max(self.most, self.now)

    def _gone(self) -> None:
        self.now -= 1
