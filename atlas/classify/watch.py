"""Runs an exemplar so that its updates and what it sends can be told apart."""

import hashlib
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from atlas.launch import launch
from atlas.measure import DEADLINE, entry_point
from atlas.taxonomy import Technique

if TYPE_CHECKING:
    from exemplars.runtime import World

#: Categories of a ledger that nobody holds: what is on its way, and the sum.
PASSING = ("other", "total", "gathered", "activations")


def watched(technique: Technique, ranks: int, **sizes: Any) -> list[dict[str, Any]]:
    """The trace of every rank and the bytes it held, from a run on gloo."""
    env = {"CUDA_VISIBLE_DEVICES": ""}
    return launch(
        watch_exemplar, ranks, technique.module, sizes, timeout=DEADLINE, env=env
    )


def digest(tensors: Any) -> str:
    """Shape and content of tensors, in a few letters each; nothing for none."""
    import torch
    from torch import Tensor
    from torch.distributed.tensor import DTensor
    from torch.utils._pytree import tree_leaves

    leaves = [t.detach() for t in tree_leaves(tensors) if isinstance(t, Tensor)]
    found = [t.to_local() if isinstance(t, DTensor) else t for t in leaves]
    if not found or any(t.is_meta for t in found):  # a shape without values
        return ""
    content = hashlib.sha256()
    for t in found:
        content.update(t.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    shapes = str([tuple(t.shape) for t in found]).encode()
    return f"{hashlib.sha256(shapes).hexdigest()[:8]}:{content.hexdigest()[:16]}"


# On a rank


def watch_exemplar(w: "World", module: str, sizes: dict[str, Any]) -> dict[str, Any]:
    """The exemplar's main, with every update of its `train` noted."""
    from atlas.meter import note
    from exemplars.runtime import run

    honest = importlib.import_module(module)
    changed: dict[str, Any] = {}
    kept: list[dict[str, int]] = []
    if train := getattr(honest, "train", None):

        def noted(w: "World", task: Any, **given: Any) -> Iterator[Any]:
            note("start")
            for step in train(w, task, **given):
                note("update", digest(list(step.weights)))
                if w.ledger is not None:
                    kept.append(w.ledger.live())
                yield step
            note("stop")

        changed = {"train": noted}
    w.digest = digest
    with forwards(lambda module: note("read", digest(list(module.parameters())))):
        run(w, entry_point(module, None, changed), **sizes)
    outcome = w.outcome()
    return {"events": outcome["events"], "held": held(outcome["memory"], kept)}


@contextmanager
def forwards(tell: Callable[[Any], None]) -> Iterator[None]:
    """Tell of each outermost module whose forward pass begins and will be learned from.

    For all modules there are, without touching one.
    """
    import torch
    from torch.nn.modules import module as modules

    inside: list[Any] = []

    def before(module: Any, inputs: Any) -> None:
        if not inside and torch.is_grad_enabled():
            tell(module)
        inside.append(module)

    def after(module: Any, inputs: Any, output: Any) -> None:
        inside.pop()

    hooks = [
        modules.register_module_forward_pre_hook(before),
        modules.register_module_forward_hook(after, always_call=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def held(
    memory: Mapping[str, Any] | None, kept: Sequence[Mapping[str, int]]
) -> dict[str, int]:
    """Bytes by category: what stays after a step; of activations, the most at once."""
    peak: Mapping[str, int] = memory["peak"] if memory else {}
    found = {name: size for name, size in peak.items() if name not in PASSING}
    if kept:
        found = {name: max(step.get(name, 0) for step in kept) for name in found}
    return found | {n: peak[n] for n in ("activations",) if n in peak}


def fullest(ranks: Sequence[dict[str, Any]]) -> dict[str, int]:
    """By category, the bytes of the rank that holds most of it."""
    names = dict.fromkeys(name for rank in ranks for name in rank["held"])
    return {name: max(rank["held"].get(name, 0) for rank in ranks) for name in names}
