"""Marks a rank's steps in its journal: optimizer steps, what was read, what is held.

torch tells of every optimizer's step, whoever makes it, and of every module's forward
pass. Weights are named by their bits, so that ranks and versions can be compared.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from atlas.yours.script import Here


@contextlib.contextmanager
def steps(here: Here) -> Iterator[Callable[[], None]]:
    """A watcher: writes a line for each step and each forward pass."""
    from torch.optim.optimizer import (
        Optimizer,
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    from atlas.classify.watch import forwards

    seen: dict[int, Optimizer] = {}
    held: dict[str, int] = {}

    def before(optimizer: Optimizer, *_: Any) -> None:
        held["gradients"] = nbytes(p.grad for p in parameters(optimizer))

    def after(optimizer: Optimizer, *_: Any) -> None:
        seen.setdefault(id(optimizer), optimizer)
        first = next(iter(seen.values())) is optimizer
        mine = parameters(optimizer)
        held["parameters"] = nbytes(mine)
        held["optimizer"] = nbytes(_state(optimizer))
        here.journal.write("step", first=first, what=named(mine), held=dict(held))

    def read(module: Any) -> None:
        here.journal.write("read", what=named(module.parameters()))

    here.journal.digest = named
    hooks = [
        register_optimizer_step_pre_hook(before),
        register_optimizer_step_post_hook(after),
    ]
    try:
        with forwards(read):
            yield lambda: None
    finally:
        for hook in hooks:
            hook.remove()


def parameters(optimizer: Any) -> list[Any]:
    """All that an optimizer updates."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def _state(optimizer: Any) -> Iterator[Any]:
    for state in optimizer.state.values():
        if isinstance(state, dict):
            yield from (value for value in state.values() if hasattr(value, "numel"))


def local(tensor: Any) -> Any:
    """The part of it that is here."""
    return getattr(tensor, "_local_tensor", tensor)


def nbytes(tensors: Iterable[Any]) -> int:
    """The bytes of those that are there, each storage once."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        if tensor is not None:
            t = local(tensor)
            sizes[id(tensor)] = t.numel() * t.element_size()
    return sum(sizes.values())


def named(tensors: Any) -> str:
    """Shapes and bits of tensors in a few letters, at the cost of reading them once.

    The sum and the exclusive or of their words: no hash that withstands an adversary,
    but weights that training made unequal have unequal names.
    """
    import torch
    from torch import Tensor

    both: list[int] = []
    shapes: list[tuple[int, ...]] = []
    for tensor in [tensors] if isinstance(tensors, Tensor) else tensors:
        t = local(tensor).detach()
        if t.is_meta or not t.numel():
            continue
        shapes.append(tuple(t.shape))
        bits = t.contiguous().view(-1).view(torch.uint8)
        whole = bits.numel() // 8 * 8
        words = bits[:whole].view(torch.int64)
        if whole:
            mixed = torch.hash_tensor(words).view(torch.int64)  # it is unsigned
            both += [int(words.sum()), int(mixed)]
        both += bits[whole:].tolist()
    if not both:
        return ""
    shape, content = hash(tuple(shapes)) % 2**32, hash(tuple(both)) % 2**64
    return f"{shape:08x}:{content:016x}"
