"""What our dispatch modes share: they run without torch's compiler."""

import functools
import sys
from collections.abc import Callable
from typing import Any

from torch._compile import _disable_dynamo
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Mode", "uncompiled"]


class Mode(TorchDispatchMode):
    """One whose `__torch_dispatch__` is `uncompiled`, and not torch's to guard.

    torch keeps its compiler out of every mode, and imports it for that, which takes
    a second and a half: longer than most of what is metered.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def uncompiled(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    """The same guard, put up once somebody has imported the compiler."""
    guarded = _disable_dynamo(dispatch)

    @functools.wraps(dispatch)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        there = "torch._dynamo" in sys.modules
        return (guarded if there else dispatch)(*args, **kwargs)

    return chosen
